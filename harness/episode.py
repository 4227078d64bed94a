"""One episode being played: all that a loop may see and do, with its cost and its luck accounted for.

A loop reads `observation`, asks the model with `ask`, recalls with `recall` and acts with `act`, until `over`. Each
turn is in the journal before the next one starts. A model's fault is retried here, call by call; what stays broken
ends the episode as a gap, never as a score.
"""

import asyncio
import math
import random
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from envs import Benchmark, Env, Observation, Step, Task, Tool
from envs.env import EnvFault
from harness.model import Completion, Model, ModelFault, Request
from harness.seeds import seed_for, stream
from harness.trajectory import Call, Turn


class Remembered(Protocol):
    """What an episode needs to know of a remembered item."""

    @property
    def id(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def body(self) -> str: ...


#: Finds items for a query text, with a random stream for exploration.
Recall = Callable[[str, random.Random], Sequence[Remembered]]
#: Serves an answer from the record by request digest, if there is one.
Lookup = Callable[[str], Completion | None]


class EpisodeLimit(Exception):
    """A limit of ours ended the episode; the agent is scored on what it has."""


class Episode:
    """One try at one task. `turns` grows; `rewards` are the world's; `over` says that the world ended it."""

    def __init__(
        self, benchmark: Benchmark, task: Task, *, number: int, run_seed: int, max_steps: int,
        max_tokens: int = 0, max_invalid: int = 5, retries: int = 4, record: Callable[[Turn], Turn], lookup: Lookup,
    ) -> None:  # fmt: skip
        self.benchmark, self.task, self.number = benchmark, task, number
        self.run_seed, self.max_steps, self.max_tokens, self.max_invalid = run_seed, max_steps, max_tokens, max_invalid
        self.retries, self._record, self._lookup = retries, record, lookup
        self.seed = seed_for(run_seed, task.id, number, "env")
        self.observation = Observation("")
        self.turns: list[Turn] = []
        self.over = False
        self._env: Env | None = None
        self._calls: list[Call] = []
        self._tokens = self._invalid = self._asked = 0
        self._streams: dict[str, random.Random] = {}

    @property
    def env(self) -> Env:
        """The world; there is one after `start`."""
        if self._env is None:
            raise RuntimeError("the episode has not started")
        return self._env

    @property
    def unfinished(self) -> tuple[Call, ...]:
        """The calls since the last turn."""
        return tuple(self._calls)

    @property
    def asked(self) -> int:
        """Answers of the model so far."""
        return self._asked

    @property
    def rewards(self) -> list[float | None]:
        """Rewards so far, one a turn."""
        return [turn.reward for turn in self.turns]

    def stream(self, role: str) -> random.Random:
        """The random stream of `role` in this episode; the same object each time."""
        if role not in self._streams:
            self._streams[role] = stream(self.run_seed, self.task.id, self.number, role)
        return self._streams[role]

    async def start(self) -> None:
        """Make the world and reset it. Raises EnvFault."""
        try:
            self._env = self.benchmark.make_env()
            found = await self._env.reset(self.task, self.seed)
        except EnvFault:
            raise
        except Exception as error:
            raise EnvFault(_where(error)) from error
        if not isinstance(found, Observation):
            raise EnvFault(f"reset returned a {type(found).__name__}, no Observation")
        self.observation = found

    async def close(self) -> str:
        """Close the world; what went wrong there, as text, since it cannot change what the episode earned."""
        if self._env is None:
            return ""
        try:
            await self._env.close()
        except Exception as error:  # noqa: BLE001 - the border to code that is not ours: said in the record
            return f"the environment did not close: {_where(error)}"
        return ""

    def tools(self) -> Sequence[Tool]:
        """The functions that the world offers now. Raises EnvFault."""
        try:
            return self.env.tools()
        except EnvFault:
            raise
        except Exception as error:
            raise EnvFault(_where(error)) from error

    async def ask(self, model: Model, request: Request) -> Completion:
        """The model's answer, retried over its faults, counted in the next turn. Raises EpisodeLimit or ModelFault."""
        if self.max_tokens and self._tokens >= self.max_tokens:
            raise EpisodeLimit(f"the episode used its {self.max_tokens} tokens")
        if request.temperature > 0 and request.seed is None:
            seed = seed_for(self.run_seed, self.task.id, self.number, "model", self._asked) % 2**31
            request = request.model_copy(update={"seed": seed})
        self._asked += 1
        digest = request.digest()
        known = self._lookup(f"{model.name}:{digest}")
        completion = known or await self._complete(model, request)
        used = completion.usage
        self._tokens += used.prompt_tokens + used.output_tokens
        text = request.prompt if request.prompt is not None else _transcript(request)
        self._calls.append(
            Call(
                digest=f"{model.name}:{digest}", prompt=text, output=completion.text, usage=used,
                cached=known is not None, tool_calls=completion.tool_calls, finish_reason=completion.finish_reason,
                prompt_ids=completion.prompt_ids, output_ids=completion.output_ids,
                output_logprobs=completion.output_logprobs,
            )
        )  # fmt: skip
        return completion

    async def act(
        self, action: str, *, situation: str = "", move: str = "", retrieved: Sequence[str] = (), invalid: bool = False
    ) -> None:
        """Do `action` in the world and write the turn down. Raises EpisodeLimit when it was the last one allowed."""
        if self.over:
            raise RuntimeError("the episode is over: a loop must stop when episode.over is true")
        before = self.observation.text
        await asyncio.sleep(0)  # where neither world nor model ever waits, Ctrl-C and the time-out come through here
        try:
            step = await self.env.step(action)
        except EnvFault:
            raise
        except Exception as error:  # the border to code that is not ours: whatever breaks there is missing data
            raise EnvFault(_where(error)) from error
        if fault := _fault(step):
            raise EnvFault(f"step returned {fault}")
        turn = Turn(
            observation=before, action=action, situation=situation, move=move or action, retrieved=tuple(retrieved),
            calls=tuple(self._calls), reward=step.reward, invalid=invalid,
        )  # fmt: skip
        self._calls.clear()
        self.turns.append(self._record(turn))
        self.observation, self.over = step.observation, step.done
        if self.over:
            return
        self._invalid = self._invalid + 1 if invalid else 0
        if self._invalid >= self.max_invalid:
            raise EpisodeLimit(f"the model gave no usable action {self._invalid} times in a row")
        if len(self.turns) >= self.max_steps:
            raise EpisodeLimit(f"{self.max_steps} steps were not enough")

    async def _complete(self, model: Model, request: Request) -> Completion:
        for attempt in range(self.retries + 1):
            started = time.monotonic()
            try:
                completion = await model.complete(request)
            except ModelFault as fault:
                if attempt == self.retries or not fault.transient:
                    raise
                wait = min(60.0, fault.retry_after or 0.5 * 2**attempt) * (1 + 0.1 * self.stream("backoff").random())
                await asyncio.sleep(wait)
                continue
            if not completion.usage.seconds:
                usage = completion.usage.model_copy(update={"seconds": time.monotonic() - started})
                completion = completion.model_copy(update={"usage": usage})
            return completion
        raise AssertionError("unreachable")


def _transcript(request: Request) -> str:
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in request.messages)


def _fault(step: object) -> str:
    """What is wrong with a world's answer; a reward that is no finite number must not become a score."""
    if not isinstance(step, Step) or not isinstance(step.observation, Observation):
        return f"a {type(step).__name__}, no Step with an Observation"
    if step.reward is not None and not (isinstance(step.reward, int | float) and math.isfinite(step.reward)):
        return f"the reward {step.reward!r}, which is no finite number"
    return ""


def _where(error: Exception) -> str:
    """What broke in code that is not ours, with the file and line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"


def no_lookup(_: str) -> None:
    """A record that holds nothing."""
