"""What an agent did, turn by turn: the only thing that flows from acting to learning.

A trajectory carries all that a memory, an edit or a training row may later need to name as its evidence: the
harness version, the model, the ids of what was retrieved, the tokens if the server gave them, and the cost.
`score` None is a gap, missing data with its `reason`; it never stands for a failure.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from harness.model import ToolCall, Usage

FORMAT = 1


class Call(BaseModel):
    """One model call of a turn. `prompt` is the text that was sent; `cached` that the answer came from the record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str
    output: str
    digest: str = ""  # model name and hash of the request
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish_reason: str = "stop"
    cached: bool = False
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    output_logprobs: tuple[float, ...] | None = None


class Turn(BaseModel):
    """One action: what was seen, what was recalled, what the model was asked, what was done, what it earned."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    observation: str
    action: str
    situation: str = ""  # the key under which this moment can be remembered
    move: str = ""  # the action in the wording of the situation
    retrieved: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    reward: float | None = None
    invalid: bool = False  # the model's answer was no usable action


class Trajectory(BaseModel):
    """One episode. `status`: done (the world ended it), truncated (a limit of ours did), gap (infrastructure broke)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    task: str
    split: str
    goal: str
    episode: int
    seed: int
    harness: str
    model: str
    turns: tuple[Turn, ...] = ()
    unfinished: tuple[Call, ...] = ()  # calls after the last turn, when a limit or a fault came before the next action
    final: str = ""  # the last observation
    score: float | None = None
    status: Literal["done", "truncated", "gap"]
    reason: str = ""
    arm: str = ""
    parent: str | None = None
    started: float = 0.0
    seconds: float = 0.0

    @property
    def all_calls(self) -> tuple[Call, ...]:
        """Every model call, those of an unfinished turn last."""
        return (*(call for turn in self.turns for call in turn.calls), *self.unfinished)

    @property
    def calls(self) -> int:
        """Model calls, answers from the record included: a budget must not depend on what happened to be cached."""
        return len(self.all_calls)

    @property
    def cached(self) -> int:
        """Calls that were answered from the record and cost nothing."""
        return sum(call.cached for call in self.all_calls)

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all calls."""
        return sum(call.usage.prompt_tokens + call.usage.output_tokens for call in self.all_calls)

    @property
    def dollars(self) -> float | None:
        """Price of all calls, None when the price of some call is unknown."""
        prices = [call.usage.dollars for call in self.all_calls]
        return sum(price for price in prices if price is not None) if None not in prices else None

    @property
    def retrieved(self) -> tuple[str, ...]:
        """Ids of all items that were in some prompt, each once, in order of first use."""
        return tuple(dict.fromkeys(item for turn in self.turns for item in turn.retrieved))
