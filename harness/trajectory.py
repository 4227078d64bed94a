"""What an agent did, turn by turn: the only thing that flows from acting to learning.

A trajectory carries all that a memory, an edit or a training row may later need to name as its evidence: the
harness version, the model, the ids of what was retrieved, the very messages and tools, the tokens if the server gave
them, and the cost. `score` None never stands for a failure: it is a gap, missing data with its `reason`, or, where the
`status` is no gap, an episode that nobody scored (a foreign agent's, in a world that is not ours).
"""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from harness.model import Message, Mode, ToolCall, Usage

#: Whose an episode's end was, by the border where it broke: the provider, the model's output (unusable), the context
#: (overflow), the world, its sandbox, a limit of ours, or a bug (of control.py: the agent's own; of instar: a gap).
Fault = Literal["", "provider", "output", "overflow", "environment", "sandbox", "limit", "bug"]


class Call(BaseModel):
    """One model call of a turn, whole: `messages` or `prompt` is what was sent, with the schemas of the `tools`.

    `digest` is the model's name and the request's hash; it ends in `#n` where only the n-th equal request of the same
    episode may be given this answer again. `cached`: the answer came from the record. `faults`: the kinds of the tries
    that failed before it was given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    tools: tuple[dict[str, JsonValue], ...] = ()
    output: str
    digest: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish_reason: str = "stop"
    mode: Mode | None = None  # how the answer was held to choices or a schema
    cached: bool = False
    faults: tuple[str, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    output_logprobs: tuple[float, ...] | None = None

    def model_post_init(self, context: object, /) -> None:
        """Raise ValueError for what is no call. (A validator would run again for each turn that holds the call.)"""
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("a call has either messages or a prompt, and not both")

    @property
    def text(self) -> str:
        """What was sent, for people to read: the prompt, or the conversation with the calls that were made in it."""
        return "\n\n".join(map(_said, self.messages)) if self.messages is not None else self.prompt or ""


class Turn(BaseModel):
    """One action: what was seen, what was recalled, what the model was asked, what was done, what it earned.

    `invalid`: the model's answer was no usable action, so nothing reached the world (`action` is empty).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    observation: str
    action: str
    situation: str = ""  # the key under which this moment can be remembered
    move: str = ""  # the action in the wording of the situation
    retrieved: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    reward: float | None = None
    feedback: str = ""  # an evaluator's words on the action; for learning, the agent does not see them
    invalid: bool = False


class Lost(BaseModel):
    """What tries that broke had asked for and the last try did not ask again: nobody else is charged with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: int = 0
    usage: Usage = Usage(dollars=0.0)


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
    lost: Lost = Lost()
    final: str = ""  # the last observation
    score: float | None = None
    status: Literal["done", "truncated", "gap"]
    fault: Fault = ""
    reason: str = ""
    arm: str = ""
    started: float = 0.0
    seconds: float = 0.0

    @property
    def all_calls(self) -> tuple[Call, ...]:
        """Every model call of the last try, those of an unfinished turn last."""
        return (*(call for turn in self.turns for call in turn.calls), *self.unfinished)

    @property
    def calls(self) -> int:
        """Model calls, lost ones and answers from the record included: a budget must not depend on what was cached."""
        return len(self.all_calls) + self.lost.calls

    @property
    def cached(self) -> int:
        """Calls that were answered from the record and cost nothing."""
        return sum(call.cached for call in self.all_calls)

    @property
    def retried(self) -> Counter[str]:
        """Tries of calls that failed, by kind, and were followed by an answer."""
        return Counter(kind for call in self.all_calls for kind in call.faults)

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all calls."""
        usages = (self.lost.usage, *(call.usage for call in self.all_calls))
        return sum(usage.prompt_tokens + usage.output_tokens for usage in usages)

    @property
    def dollars(self) -> float | None:
        """Price of all calls, None when the price of some call is unknown."""
        return total_dollars((*(call.usage.dollars for call in self.all_calls), self.lost.usage.dollars))

    @property
    def retrieved(self) -> tuple[str, ...]:
        """Ids of all items that were in some prompt, each once, in order of first use."""
        return tuple(dict.fromkeys(item for turn in self.turns for item in turn.retrieved))


def total_dollars(prices: Iterable[float | None]) -> float | None:
    """The sum of prices, None as soon as one is unknown: unknown is not free."""
    total = 0.0
    for price in prices:
        if price is None:
            return None
        total += price
    return total


def _said(message: Message) -> str:
    head = message.role if message.tool_call_id is None else f"{message.role} {message.tool_call_id}"
    made = (f"-> {call.name}({call.arguments}) [{call.id}]" for call in message.tool_calls)
    return "\n".join(filter(None, (f"[{head}]", message.content, *made)))
