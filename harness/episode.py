"""One episode being played: all that a loop may see and do, with its cost and its luck accounted for.

A loop reads `observation`, asks the model with `ask`, recalls with `recall` and acts with `act`, until `over`. Each
turn is in the journal before the next action. A model's fault is retried here, call by call; what stays broken
ends the episode as a gap, never as a score. What its `clock` counts tells a time-out from an agent that is slow.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from envs import Benchmark, Env, EnvFault, Observation, Task, Tool
from harness.border import border, offered, seen, stepped
from harness.clock import Clock
from harness.model import Completion, ContextOverflow, Digests, Model, ModelFault, Request, Usage
from harness.seeds import seed_for, stream
from harness.settings import HarnessError, LimitSettings
from harness.throttle import ABSENT, Throttle, Throttles
from harness.trajectory import Call, Fault, Turn

RETRIES = 20  # of one model call, not counting those while the provider is gone
PATIENCE = 600.0  # seconds that a server may ask us to wait
NOTABLE = 2.0  # seconds of a pause that are worth telling
CLOSING = 10.0  # seconds that a world has to close
FEEDBACK = 2000  # characters of an evaluator's words that are kept of a step


T = TypeVar("T")


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
#: Serves an answer from the record, if there is one: by the call's digest, its turn, and its number in the turn.
Lookup = Callable[[str, int, int], Completion | None]


#: Told what the episode waits for, and "" when that is over.
Tell = Callable[[str], None]


class NoChoices(HarnessError):
    """The world offers no choices, and the loop needs some."""


class BrokenControl(Exception):
    """The harness's own control.py raised an exception; the message names file and line."""


class EpisodeLimit(Exception):
    """A limit of ours ended the episode; the agent is scored on what it has. `fault`: what it stumbled over."""

    def __init__(self, message: str, fault: Fault = "limit") -> None:
        super().__init__(message)
        self.fault = fault


class Episode:
    """One try at one task. `turns` grows; `rewards` are the world's; `over` says that the world ended it."""

    def __init__(
        self, benchmark: Benchmark, task: Task, *, number: int, run_seed: int, max_steps: int, max_calls: int,
        limits: LimitSettings, record: Callable[[Turn], Turn], lookup: Lookup, tell: Tell = lambda text: None,
        throttles: Throttles | None = None, worlds: asyncio.Semaphore | None = None,
    ) -> None:  # fmt: skip
        self.benchmark, self.task, self.number, self.run_seed = benchmark, task, number, run_seed
        self.max_steps, self.max_calls, self.limits = max_steps, max_calls, limits
        self._record, self._lookup, self._tell = record, lookup, tell
        self._throttles, self._worlds = throttles or Throttles(), worlds
        self.seed = seed_for(run_seed, task.id, number, "env")
        self.observation = Observation("")
        self.turns: list[Turn] = []
        self.over = False
        self._env: Env | None = None
        self._calls: list[Call] = []
        self._tokens = self._invalid = self._asked = 0
        self._dollars = 0.0
        self._telling = False
        self._digests = Digests()
        self._equal: dict[str, int] = {}
        self._streams: dict[str, random.Random] = {}
        self.clock = Clock(limits.seconds, limits.wall)
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

        async def first() -> Observation:
            self._env = self.benchmark.make_env()
            return seen(await self._env.reset(self.task, self.seed), "reset")

        self._see(await self._of_the_world(first))

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
        if self.limits.dollars and self._dollars >= self.limits.dollars:
            raise EpisodeLimit(f"the episode used its {self.limits.dollars:g} dollars")
        if request.temperature > 0 and request.seed is None:
            seed = seed_for(self.run_seed, self.task.id, self.number, "model", self._asked) % 2**31
            request = request.model_copy(update={"seed": seed})
        self._asked += 1
        digest = f"{model.name}:{self._digests.of(request)}"
        if not getattr(model, "deterministic", False):  # an equal request may get another answer, so that one is asked
            self._equal[digest] = self._equal.get(digest, 0) + 1
            digest = f"{digest}#{self._equal[digest]}"
        known = self._lookup(digest, len(self.turns), len(self._calls))
        faults: list[str] = []
        completion, seconds = (known, 0.0) if known is not None else await self._complete(model, request, faults)
        used = completion.usage
        if seconds and not used.seconds:
            used = Usage(**{**vars(used), "seconds": seconds})
        self._tokens += used.prompt_tokens + used.output_tokens
        self._dollars += self._price(model, used)
        self._calls.append(
            Call(
                messages=request.messages if request.prompt is None else None, prompt=request.prompt,
                tools=request.tools, digest=digest, output=completion.text, usage=used, cached=known is not None,
                tool_calls=completion.tool_calls, finish_reason=completion.finish_reason,
                faults=tuple(faults), mode=completion.mode, prompt_ids=completion.prompt_ids,
                output_ids=completion.output_ids, output_logprobs=completion.output_logprobs,
            )
        )  # fmt: skip
        return completion

    async def act(self, action: str, *, situation: str = "", move: str = "", retrieved: Sequence[str] = ()) -> None:
        """Do `action` in the world and write the turn down. Raises EpisodeLimit when it was the last one allowed."""
        self._check_open()
        before = self.observation.text
        await asyncio.sleep(0)  # where neither world nor model ever waits, Ctrl-C and the time-out come through here

        async def step() -> tuple[Observation, float | None, bool, str]:
            return stepped(await self.env.step(action))

        observation, reward, done, feedback = await self._of_the_world(step)
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
            raise EpisodeLimit(f"the model gave no usable action {self._invalid} times in a row", "output")
        if len(self.turns) >= self.max_steps:
            raise EpisodeLimit(f"{self.max_steps} steps were not enough")

    def _see(self, observation: Observation) -> None:
        self.observation = observation
        self.had_choices = self.had_choices or bool(observation.choices)

    def _price(self, model: Model, used: Usage) -> float:
        if used.dollars is None and self.limits.dollars:
            raise HarnessError(
                f"[limits] dollars is set, but the price of {model.name} is unknown. "
                "Cure: give price_in and price_out (dollars per million tokens) in [model] options"
            )
        return used.dollars or 0.0

    async def _of_the_world(self, work: Callable[[], Awaitable[T]]) -> T:
        """What the world answers when it is its turn, with its faults told from ours."""
        if self._worlds is None:
            with self.clock.waits_for("the world"), border():
                return await work()
        with self.clock.queues():
            await self._worlds.acquire()
        try:
            with self.clock.waits_for("the world"), border():
                return await work()
        finally:
            self._worlds.release()

    async def _complete(self, model: Model, request: Request, faults: list[str]) -> tuple[Completion, float]:
        """Ask until there is an answer; it, and how long it took. `faults` gets the kinds of the tries that failed."""
        throttle, tries = self._throttles.of(model), 0
        while True:
            if not throttle.enter():
                await self._queue(throttle)
            began = time.monotonic()
            try:
                with self.clock.waits_for("the model"):
                    completion = await model.complete(request)
            except ModelFault as fault:
                faults.append(fault.kind)
                if not fault.transient:  # an answer, too
                    throttle.succeed(began)
                    raise
                pause, its_own = self._after(throttle, fault, began, len(faults))
                tries += its_own
                if tries > RETRIES:
                    text = f"{fault} (the last of {len(faults)} tries)"
                    raise ModelFault(text, retry_after=fault.retry_after, kind=fault.kind) from fault
                failed = fault
            except ContextOverflow:
                throttle.succeed(began)
                raise
            else:
                throttle.succeed(began, len(faults))
                return completion, time.monotonic() - began
            finally:
                throttle.leave()
            if pause:
                await self._pause(failed, pause)

    def _after(self, throttle: Throttle, fault: ModelFault, began: float, tries: int) -> tuple[float, bool]:
        """Tell the throttle: the seconds that this call should pause, and whether it was the call that failed.

        A rate limit or an outage that nobody escapes is not held against it. Raises what nobody should wait for.
        """
        if (fault.retry_after or 0) > PATIENCE:
            raise ModelFault(
                f"{fault} (asked to wait {fault.retry_after:.0f} s, and no more than {PATIENCE:.0f} are waited)",
                kind=fault.kind,
            )
        its_own = fault.kind not in ABSENT or (throttle.answered or 0.0) > began
        if fault.kind == "429":
            return throttle.slow_down(fault, began), its_own
        pause = throttle.fail(fault, tries)
        if throttle.down:
            self._say(f"the provider seems to be gone, and is asked now and then: {fault}")
        return pause, its_own

    async def _queue(self, throttle: Throttle) -> None:
        with self.clock.queues():
            await throttle.queue()
        if self._telling:
            self._say("")

    async def _pause(self, fault: ModelFault, seconds: float) -> None:
        """Wait before the next try."""
        if seconds >= NOTABLE:
            self._say(f"waiting {seconds:.0f} s for the model: {fault}")
        seconds += min(seconds, 4.0) * 0.25 * self.stream("backoff").random()  # who failed together comes not together
        try:
            with self.clock.pauses():
                await asyncio.sleep(seconds)
        finally:
            if self._telling:
                self._say("")

    def _say(self, text: str) -> None:
        self._telling = bool(text)
        self._tell(text)
