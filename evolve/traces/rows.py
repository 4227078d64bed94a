"""Rows for a trainer: the very tokens that were sampled, or text that says it is only text.

Text that is tokenised again does not give the sampled ids back, so nothing here tokenises. Where the server gave token
ids, the calls of a trajectory become token rows: a call whose prompt begins with all that a row holds already joins it,
any other one begins a row of its own (a trajectory then has several `parts`, and counts once in its group's baseline).
`loss_mask` is 1 on sampled ids and nowhere else. Where it gave none, each call becomes a text row (messages and
completion), good for SFT and DPO and marked as not for RL. A row whose lengths disagree cannot be made.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from harness.known import TAPED
from harness.model import Message
from harness.trajectory import Call, Trajectory

FORMAT = 1
#: Why a call has no token row.
FORCED, NO_IDS, NO_PROMPT, UNEQUAL = (
    "a replay forced this answer, which was sampled for another request",
    "the server gave no token ids",
    "the server gave no token ids of the prompt",
    "the server gave another number of log-probabilities than of token ids",
)


class Sampled(BaseModel):
    """One model call of a row; its answer is `token_ids[start:end]` (both None in a text row)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turn: int
    start: int | None = None
    end: int | None = None
    finish_reason: str
    mode: str | None = None  # how the answer was held to choices or a schema
    cached: bool = False


class Row(BaseModel):
    """What every row tells. `rewards` are the world's, by turn; `outcome_reward` None: unscored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    kind: Literal["tokens", "text"]
    rl: bool  # whether the ids that were sampled are known
    run: str
    trajectory: str
    part: int
    parts: int
    group: str  # what shares a baseline: tries of one task by one arm in one phase
    task: str
    split: str
    arm: str
    harness_version: str
    model: str
    status: str
    outcome_reward: float | None
    rewards: tuple[float | None, ...]
    calls: tuple[Sampled, ...]

    def to_json(self) -> str:
        """The row as one line of JSON."""
        return json.dumps(self.model_dump(mode="json"))


class TokenRow(Row):
    """Ids with their mask, all of one length; `old_logprobs` None where nothing was sampled or the server gave none.

    `step_ids`: for each id the turn in which it came up, the first of them 0.
    """

    kind: Literal["tokens"] = "tokens"
    rl: bool = True
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    old_logprobs: tuple[float | None, ...]
    step_ids: tuple[int, ...]

    @model_validator(mode="after")
    def _of_one_length(self) -> Self:
        lengths = {len(self.token_ids), len(self.loss_mask), len(self.old_logprobs), len(self.step_ids)}
        if len(lengths) != 1:
            raise ValueError(f"{self.trajectory}: ids, mask, log-probabilities and steps differ in length: {lengths}")
        sampled = {at for call in self.calls for at in range(call.start or 0, call.end or 0)}
        if sampled != {at for at, masked in enumerate(self.loss_mask) if masked}:
            raise ValueError(f"{self.trajectory}: the mask is not on what was sampled")
        if any(told is not None and not masked for told, masked in zip(self.old_logprobs, self.loss_mask, strict=True)):
            raise ValueError(f"{self.trajectory}: a log-probability of something that was not sampled")
        return self


class TextRow(Row):
    """One call as text, as the journal has it, in the form TRL takes; `why` there are no tokens."""

    kind: Literal["text"] = "text"
    rl: bool = False
    why: str
    prompt: str | list[dict[str, Any]]
    completion: str | list[dict[str, Any]]
    tools: tuple[dict[str, Any], ...] = ()


@dataclass
class _Open:
    """A token row that later calls may still join."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    calls: list[Sampled] = field(default_factory=list)

    def goes_on_in(self, prompt: tuple[int, ...]) -> bool:
        return len(prompt) >= len(self.ids) and list(prompt[: len(self.ids)]) == self.ids

    def add(self, turn: int, call: Call, prompt: tuple[int, ...], output: tuple[int, ...]) -> None:
        new = prompt[len(self.ids) :]
        told = [p if math.isfinite(p) else None for p in call.output_logprobs or ()] or [None] * len(output)
        start = len(prompt)
        self.calls.append(_sampled(turn, call, start, start + len(output)))
        self.ids += [*new, *output]
        self.mask += [0] * len(new) + [1] * len(output)
        self.logprobs += [*(None for _ in new), *told]
        self.steps += [turn] * (len(new) + len(output))


def rows_of(trajectory: Trajectory, run: str = "") -> Iterator[TokenRow | TextRow]:
    """The rows of one trajectory, token rows first; none where no model was asked."""
    open_rows: list[_Open] = []
    texts: list[tuple[int, Call, str]] = []
    for turn, call in _calls(trajectory):
        why, prompt, output = _tokens(call)
        if why:
            texts.append((turn, call, why))
            continue
        row = next((row for row in reversed(open_rows) if row.goes_on_in(prompt)), None)
        if row is None:
            open_rows.append(row := _Open())
        row.add(turn, call, prompt, output)
    common = _common(trajectory, run) | {"parts": len(open_rows) + len(texts)}
    for part, row in enumerate(open_rows):
        yield TokenRow(
            **common, part=part, calls=tuple(row.calls), token_ids=tuple(row.ids), loss_mask=tuple(row.mask),
            old_logprobs=tuple(row.logprobs), step_ids=tuple(row.steps),
        )  # fmt: skip
    for part, (turn, call, why) in enumerate(texts, len(open_rows)):
        prompt_text, completion = _text(call)
        yield TextRow(
            **common, part=part, calls=(_sampled(turn, call),), why=why, prompt=prompt_text, completion=completion,
            tools=call.tools,
        )  # fmt: skip


def _calls(trajectory: Trajectory) -> Iterator[tuple[int, Call]]:
    """Each call with its turn; those of a turn that a limit cut off belong to the one after the last."""
    for number, turn in enumerate(trajectory.turns):
        for call in turn.calls:
            yield number, call
    for call in trajectory.unfinished:
        yield len(trajectory.turns), call


def _tokens(call: Call) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Why there are none (""), and the ids of prompt and answer."""
    prompt, output, told = call.prompt_ids, call.output_ids, call.output_logprobs
    if call.digest.endswith(TAPED):  # its ids and log-probabilities are of the run that was replayed
        return FORCED, (), ()
    if not output:
        return NO_IDS, (), ()
    if not prompt:
        return NO_PROMPT, (), ()
    if told is not None and len(told) != len(output):
        return UNEQUAL, (), ()
    return "", prompt, output


def _common(trajectory: Trajectory, run: str) -> dict[str, Any]:
    rewards = [turn.reward for turn in trajectory.turns] + [None] * bool(trajectory.unfinished)
    return {
        "run": run, "trajectory": trajectory.id,
        "group": trajectory.id.rpartition("/")[0] or trajectory.task,
        "task": trajectory.task,
        "split": trajectory.split, "arm": trajectory.arm, "harness_version": trajectory.harness,
        "model": trajectory.model, "status": trajectory.status, "outcome_reward": trajectory.score,
        "rewards": tuple(rewards),
    }  # fmt: skip


def _sampled(turn: int, call: Call, start: int | None = None, end: int | None = None) -> Sampled:
    return Sampled(
        turn=turn, start=start, end=end, finish_reason=call.finish_reason, mode=call.mode, cached=call.cached
    )


def _text(call: Call) -> tuple[str | list[dict[str, Any]], str | list[dict[str, Any]]]:
    if call.messages is None:
        return call.prompt or "", call.output
    answer = Message(role="assistant", content=call.output, tool_calls=call.tool_calls)
    return [_chat(message) for message in call.messages], [_chat(answer)]


def _chat(message: Message) -> dict[str, Any]:
    """A message in the shape of chat completions, which trainers and templates take."""
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        told["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        told["tool_call_id"] = message.tool_call_id
    return told
