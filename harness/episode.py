"""One episode being played: all that a loop may see and do, with its cost and its luck accounted for.

A loop reads `observation`, asks the model with `ask`, recalls with `recall` and acts with `act`, until `over`. Each
turn is in the journal before the next one starts. A model's fault is retried here, call by call; what stays broken
ends the episode as a gap, never as a score. What its `clock` counts tells a time-out from an agent that is slow.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from envs import Benchmark, Env, EnvFault, Observation, Task, Tool
from harness.border import border, offered, seen, stepped
from harness.clock import Clock
from harness.model import Completion, Model, ModelFault, Request
from harness.seeds import seed_for, stream
from harness.settings import HarnessError, LimitSettings
from harness.trajectory import Call, Turn

RETRIES = 4  # of one model call
PATIENCE = 600.0  # seconds that a server may ask us to wait
NOTABLE = 2.0  # seconds of a pause that are worth telling
CLOSING = 10.0  # seconds that a world has to close
FEEDBACK = 2000  # characters of an evaluator's words that are kept of a step


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
#: Serves an answer from the record by the digest of its call, if there is one.
Lookup = Callable[[str], Completion | None]


#: Told what the episode waits for, and "" when that is over.
Tell = Callable[[str], None]


class NoChoices(HarnessError):
    """The world offers no choices, and the loop needs some."""


class EpisodeLimit(Exception):
    """A limit of ours ended the episode; the agent is scored on what it has."""


class Episode:
    """One try at one task. `turns` grows; `rewards` are the world's; `over` says that the world ended it."""

    def __init__(
        self, benchmark: Benchmark, task: Task, *, number: int, run_seed: int, max_steps: int, max_calls: int,
        limits: LimitSettings, record: Callable[[Turn], Turn], lookup: Lookup, tell: Tell = lambda text: None,
    ) -> None:  # fmt: skip
        self.benchmark, self.task, self.number, self.run_seed = benchmark, task, number, run_seed
        self.max_steps, self.max_calls, self.limits = max_steps, max_calls, limits
        self._record, self._lookup, self._tell = record, lookup, tell
        self.seed = seed_for(run_seed, task.id, number, "env")
        self.observation = Observation("")
        self.turns: list[Turn] = []
        self.over = False
        self._env: Env | None = None
        self._calls: list[Call] = []
        self._tokens = self._invalid = self._asked = 0
        self._equal: Counter[str] = Counter()
        self._streams: dict[str, random.Random] = {}
        self.clock = Clock(limits.seconds)
        self.had_choices = False

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
    def rewards(self) -> list[float | None]:
        """The world's rewards so far, one for each action that reached it: a metric never sees a rejected answer."""
        return [turn.reward for turn in self.turns if not turn.invalid]

    def stream(self, role: str) -> random.Random:
        """The random stream of `role` in this episode; the same object each time."""
        if role not in self._streams:
            self._streams[role] = stream(self.run_seed, self.task.id, self.number, role)
        return self._streams[role]

    async def start(self) -> None:
        """Make the world and reset it. Raises EnvFault."""
        with self.clock.waits_for("the world"), border():
            self._env = self.benchmark.make_env()
            self._see(seen(await self._env.reset(self.task, self.seed), "reset"))

    async def close(self) -> str:
        """Close the world; what went wrong there, as text, since it cannot change what the episode earned."""
        if self._env is None:
            return ""
        try:
            async with asyncio.timeout(CLOSING) as clock:
                with border():
                    await self._env.close()
        except (EnvFault, TimeoutError) as fault:
            if clock.expired():
                return f"the environment did not close within {CLOSING:g} s"
            return f"the environment did not close: {fault}"
        return ""

    def tools(self) -> Sequence[Tool]:
        """The functions that the world offers now. Raises EnvFault."""
        with border():
            return offered(self.env.tools())

    async def ask(self, model: Model, request: Request) -> Completion:
        """The model's answer, retried over its faults, counted in the next turn. Raises EpisodeLimit or ModelFault."""
        if self._asked >= self.max_calls:
            raise EpisodeLimit(f"{self.max_calls} answers of the model were not enough")
        if self.limits.tokens and self._tokens >= self.limits.tokens:
            raise EpisodeLimit(f"the episode used its {self.limits.tokens} tokens")
        if request.temperature > 0 and request.seed is None:
            seed = seed_for(self.run_seed, self.task.id, self.number, "model", self._asked) % 2**31
            request = request.model_copy(update={"seed": seed})
        self._asked += 1
        digest = f"{model.name}:{request.digest()}"
        if not getattr(model, "deterministic", False):  # an equal request may get another answer, so that one is asked
            self._equal[digest] += 1
            digest = f"{digest}#{self._equal[digest]}"
        known = self._lookup(digest)
        completion = known or await self._complete(model, request)
        used = completion.usage
        self._tokens += used.prompt_tokens + used.output_tokens
        self._calls.append(
            Call(
                messages=request.messages if request.prompt is None else None, prompt=request.prompt,
                tools=request.tools, digest=digest, output=completion.text, usage=used, cached=known is not None,
                tool_calls=completion.tool_calls, finish_reason=completion.finish_reason,
                mode=completion.mode, prompt_ids=completion.prompt_ids, output_ids=completion.output_ids,
                output_logprobs=completion.output_logprobs,
            )
        )  # fmt: skip
        return completion

    async def act(self, action: str, *, situation: str = "", move: str = "", retrieved: Sequence[str] = ()) -> None:
        """Do `action` in the world and write the turn down. Raises EpisodeLimit when it was the last one allowed."""
        self._check_open()
        before = self.observation.text
        await asyncio.sleep(0)  # where neither world nor model ever waits, Ctrl-C and the time-out come through here
        with self.clock.waits_for("the world"), border():
            observation, reward, done, feedback = stepped(await self.env.step(action))
        self._see(observation)
        self.over = done
        self._write(
            Turn(
                observation=before, action=action, situation=situation, move=move or action, retrieved=tuple(retrieved),
                calls=tuple(self._calls), reward=reward, feedback=feedback[:FEEDBACK],
            )
        )  # fmt: skip

    async def reject(self, *, situation: str = "", retrieved: Sequence[str] = ()) -> None:
        """Write down a turn whose answer was no usable action: it costs a step, and nothing reaches the world.

        Raises EpisodeLimit when there were too many in a row, or when it was the last step.
        """
        self._check_open()
        await asyncio.sleep(0)
        self._write(
            Turn(
                observation=self.observation.text, action="", situation=situation, retrieved=tuple(retrieved),
                calls=tuple(self._calls), invalid=True,
            )
        )  # fmt: skip

    def _check_open(self) -> None:
        if self.over:
            raise RuntimeError("the episode is over: a loop must stop when episode.over is true")

    def _write(self, turn: Turn) -> None:
        self._calls.clear()
        self.turns.append(self._record(turn))
        if self.over:
            return
        self._invalid = self._invalid + 1 if turn.invalid else 0
        if self._invalid >= self.limits.invalid:
            raise EpisodeLimit(f"the model gave no usable action {self._invalid} times in a row")
        if len(self.turns) >= self.max_steps:
            raise EpisodeLimit(f"{self.max_steps} steps were not enough")

    def _see(self, observation: Observation) -> None:
        self.observation = observation
        self.had_choices = self.had_choices or bool(observation.choices)

    async def _complete(self, model: Model, request: Request) -> Completion:
        for attempt in range(RETRIES + 1):
            started = time.monotonic()
            try:
                with self.clock.waits_for("the model"):
                    completion = await model.complete(request)
            except ModelFault as fault:
                if attempt == RETRIES or not fault.transient:
                    raise
                await self._pause(fault, fault.retry_after or 0.5 * 2**attempt)
                continue
            if not completion.usage.seconds:
                usage = completion.usage.model_copy(update={"seconds": time.monotonic() - started})
                completion = completion.model_copy(update={"usage": usage})
            return completion
        raise AssertionError("unreachable")

    async def _pause(self, fault: ModelFault, seconds: float) -> None:
        """Wait before the next try, for as long as the server asked if it did; raises `fault` if that is too long."""
        if seconds > PATIENCE:
            raise ModelFault(f"{fault} (asked to wait {seconds:.0f} s, and no more than {PATIENCE:.0f} are waited)")
        seconds *= 1 + 0.1 * self.stream("backoff").random()
        notable = seconds >= NOTABLE
        if notable:
            self._tell(f"waiting {seconds:.0f} s for the model: {fault}")
        try:
            with self.clock.pauses():
                await asyncio.sleep(seconds)
        finally:
            if notable:
                self._tell("")
