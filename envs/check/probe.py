"""How the conformance rules touch an environment: every call is guarded, timed and written down.

What the environment raises becomes a finding with the file and line of its own code, so that no rule mistakes a
fault of the environment for one of its own; only `EnvFault` and a time-out pass through, because they decide nothing.
"""

import asyncio
import contextlib
import inspect
import json
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from envs.benchmark import Benchmark, Policy, PolicyMaker
from envs.env import Env, EnvFault
from envs.source import where_raised
from envs.task import Observation, Step, Task, Tool

T = TypeVar("T")
#: A call during which the event loop stands still longer than this holds up every other episode.
BLOCKED_S = 0.1
_TICK_S = 0.01


class Finding(Exception):
    """A rule is broken: what was `seen`, and the `cure`. `warning` for what works but will hurt."""

    def __init__(self, seen: str, cure: str, *, warning: bool = False) -> None:
        super().__init__(seen)
        self.seen, self.cure, self.warning = seen, cure, warning


class NotApplicable(Exception):
    """The rule has nothing to look at here; the text says why."""


@dataclass(frozen=True)
class Shot:
    """One answer of the world, in a form that can be compared."""

    text: str
    choices: tuple[str, ...] | None
    data: str
    reward: float | None
    done: bool

    def differs(self, other: "Shot") -> str:
        """The first difference in words, empty when there is none."""
        for name in ("text", "choices", "data", "reward", "done"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                return f"{name} {brief(mine)} and then {brief(its)}"
        return ""


@dataclass
class Trace:
    """One episode as it was played: shots[0] answers reset, shots[i] answers actions[i - 1]."""

    task: Task
    seed: int
    policy: str
    actions: list[str] = field(default_factory=list)
    shots: list[Shot] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)  # seconds the loop stood still, one a shot
    impure: list[str] = field(default_factory=list)  # what could not be journalled

    @property
    def done(self) -> bool:
        return bool(self.shots) and self.shots[-1].done

    @property
    def rewards(self) -> list[float | None]:
        return [shot.reward for shot in self.shots[1:]]

    def differs(self, other: "Trace") -> str:
        """Where and how `other`, a replay of this episode, differs; empty when it does not."""
        for number, (mine, its) in enumerate(zip(self.shots, other.shots, strict=False)):
            if said := mine.differs(its):
                return f"{self.at(number)}: {said}"
        if len(self.shots) != len(other.shots):
            return f"{self.at(min(len(self.shots), len(other.shots)))}: one of the two episodes had ended"
        return ""

    def at(self, number: int) -> str:
        where = f"step {number} ({brief(self.actions[number - 1])})" if number else "reset"
        return f"task '{self.task.id}', seed {self.seed}, {where}"


@dataclass
class Probe:
    """A benchmark under examination: sampled tasks, and the episodes played on them so far."""

    benchmark: Benchmark
    seed: int
    episodes: int
    spec: str | None = None  # how another process can load the benchmark
    tasks: list[Task] = field(default_factory=list)  # the sample, spread over the splits
    all_tasks: dict[str, list[Task]] = field(default_factory=dict)
    traces: list[Trace] = field(default_factory=list)

    def random(self, *names: str | int) -> random.Random:
        """A stream of the checker's own."""
        return random.Random("\x1f".join(str(part) for part in (self.seed, *names)))

    def seed_of(self, task: Task) -> int:
        """The seed of the episodes on `task`: 63 bits, as the runner's are."""
        return self.random("episode", task.id).getrandbits(63)

    def guarded(self, what: str, call: Callable[[], T], cure: str) -> T:
        """`call()`; what it raises is a finding about `what`."""
        try:
            return call()
        except (EnvFault, Finding, NotApplicable):
            raise
        except (Exception, SystemExit) as error:
            raise _raised(what, error, cure) from error

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Env]:
        """A fresh environment, closed at the end."""
        env = self.guarded("make_env()", self.benchmark.make_env, "make_env takes no argument and returns a fresh Env.")
        lacks = [name for name in ("reset", "step", "tools", "close") if not callable(getattr(env, name, None))]
        if lacks:
            raise Finding(
                f"make_env() returned a {type(env).__name__} without {', '.join(lacks)}.",
                "Give the class the four methods of envs.Env (a class Mine(Env) inherits tools and close).",
            )
        try:
            yield env
        except BaseException:
            with contextlib.suppress(Finding, EnvFault):  # what broke first is the finding
                await self._close(env)
            raise
        await self._close(env)

    async def _close(self, env: Env) -> None:
        await self.awaited("close()", env.close, "close() frees what the world holds and may be called at any time.")

    async def awaited(self, what: str, call: Callable[[], Awaitable[T]], cure: str) -> T:
        """`await call()`; what it raises is a finding about `what`."""
        try:
            waiting = call()
            if inspect.isawaitable(waiting):
                return await waiting
        except (EnvFault, Finding, NotApplicable):
            raise
        except (Exception, SystemExit) as error:
            raise _raised(what, error, cure) from error
        raise Finding(f"{what} returned a {type(waiting).__name__}, not an awaitable.", "Write it as 'async def'.")

    async def reset(self, env: Env, trace: Trace) -> Observation:
        """Start the trace's episode and write it down."""
        what = f"reset(task '{trace.task.id}', seed {trace.seed})"
        cure = "reset must start every task with every seed up to 63 bits; raise EnvFault if the world is down."
        with _Watch() as watch:
            seen = await self.awaited(what, lambda: env.reset(trace.task, trace.seed), cure)
        if not isinstance(seen, Observation):
            raise Finding(f"{what} returned a {type(seen).__name__}.", "Return envs.Observation(text, choices).")
        self._write(trace, what, Step(seen), watch.longest)
        return seen

    async def step(self, env: Env, trace: Trace, action: str) -> Step:
        """Do `action` in the trace's episode and write it down."""
        what = f"task '{trace.task.id}', seed {trace.seed}, step {len(trace.shots)}: step({brief(action)})"
        cure = "Answer any text with a Step (an illegal action too); raise EnvFault if the world is down."
        with _Watch() as watch:
            said = await self.awaited(what, lambda: env.step(action), cure)
        if not isinstance(said, Step) or not isinstance(said.observation, Observation):
            got = type(said.observation if isinstance(said, Step) else said).__name__
            raise Finding(f"{what} returned a {got}.", "Return envs.Step(envs.Observation(text), reward, done).")
        if not isinstance(said.done, bool):
            raise Finding(f"{what}: done is {said.done!r}, a {type(said.done).__name__}.", "done is True or False.")
        if said.reward is not None and not (isinstance(said.reward, (int, float)) and math.isfinite(said.reward)):
            raise Finding(
                f"{what}: the reward is {said.reward!r}.", "A reward is a finite float, or None for unscored."
            )
        trace.actions.append(action)
        self._write(trace, what, said, watch.longest)
        return said

    def _write(self, trace: Trace, what: str, said: Step, blocked: float) -> None:
        seen = said.observation
        if not isinstance(seen.text, str):
            raise Finding(f"{what}: the observation's text is a {type(seen.text).__name__}.", "text is a str.")
        if seen.choices is not None and not isinstance(seen.choices, (tuple, list)):
            raise Finding(f"{what}: choices is a {type(seen.choices).__name__}.", "choices is a tuple of str, or None.")
        choices = None if seen.choices is None else tuple(seen.choices)
        data = json.dumps(seen.data, default=repr, sort_keys=True, skipkeys=True)
        reward = None if said.reward is None else float(said.reward)
        for name, plain in (("data", seen.data), ("info", said.info)):
            try:
                json.dumps(plain, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                trace.impure.append(f"{what}: {name} cannot be written as JSON: {brief(str(error), 200)}")
        trace.shots.append(Shot(seen.text, choices, data, reward, said.done))
        trace.blocked.append(blocked)

    async def play(
        self, env: Env, task: Task, policy: str = "random", limit: int | None = None, luck: int = 0
    ) -> Trace:
        """One episode of `policy` ("random", or one of the benchmark's), to its end or `limit` steps.

        Another `luck` is another choice of moves.
        """
        trace = Trace(task, self.seed_of(task), policy)
        seen = await self.reset(env, trace)
        rng = self.random("policy", policy, task.id, *([luck] if luck else []))
        maker = self.benchmark.policies.get(policy, random_policy)
        cure = "A policy maker takes (env, rng) after reset; the policy takes an Observation and returns a str."
        choose = self.guarded(f"policy '{policy}'", lambda: maker(env, rng), cure)
        for _ in range(self.benchmark.max_steps if limit is None else limit):
            action = self.guarded(f"policy '{policy}' on task '{task.id}'", _deciding(choose, seen), cure)
            if not isinstance(action, str):
                raise Finding(f"policy '{policy}' returned a {type(action).__name__}.", cure)
            said = await self.step(env, trace, action)
            seen = said.observation
            if said.done:
                break
        return trace

    async def replay(self, env: Env, old: Trace, steps: int | None = None) -> Trace:
        """The same task, seed and actions again (only the first `steps`)."""
        trace = Trace(old.task, old.seed, old.policy)
        await self.reset(env, trace)
        for action in old.actions[:steps]:
            said = await self.step(env, trace, action)
            if said.done:
                break
        return trace


def brief(value: Any, most: int = 80) -> str:
    """`value` as text that is short and safe to print."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def random_policy(env: Env, rng: random.Random) -> Policy:
    """Any of the choices; where the world names none, one of its tools or words of what it said."""
    tools = list(env.tools())

    def choose(seen: Observation) -> str:
        if seen.choices:
            return str(rng.choice(seen.choices))
        words = seen.text.split() or ["look"]
        if tools and rng.random() < 0.8:
            return _tool_call(rng.choice(tools), words, rng)
        return " ".join(rng.sample(words, min(len(words), rng.randint(1, 3))))

    return choose


def _tool_call(tool: Tool, words: Sequence[str], rng: random.Random) -> str:
    def value(schema: Any) -> Any:
        kind = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(schema, dict) and schema.get("enum"):
            return rng.choice(schema["enum"])
        numbers = {"integer": rng.randint(0, 9), "number": rng.random(), "boolean": rng.random() < 0.5}
        return numbers.get(str(kind), [] if kind == "array" else {} if kind == "object" else rng.choice(words))

    wanted = {name: value(schema) for name, schema in dict(tool.parameters.get("properties", {})).items()}
    return json.dumps({"name": tool.name, "arguments": wanted})


def _deciding(choose: Policy, seen: Observation) -> Callable[[], str]:
    return lambda: choose(seen)


def _raised(what: str, error: BaseException, cure: str) -> Finding:
    return Finding(f"{what} raised {type(error).__name__}: {brief(str(error), 200)} (at {where_raised(error)}).", cure)


class _Watch:
    """How long the event loop stood still while inside: a ticker beats, and the longest silence counts."""

    longest = 0.0

    def __enter__(self) -> "_Watch":
        self._last = time.perf_counter()
        self._ticker = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
        return self

    def _tick(self) -> None:
        self._beat()
        self._ticker = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _beat(self) -> None:
        now = time.perf_counter()
        self.longest, self._last = max(self.longest, now - self._last), now

    def __exit__(self, *_: object) -> None:
        self._ticker.cancel()
        self._beat()


__all__ = ["BLOCKED_S", "Finding", "NotApplicable", "PolicyMaker", "Probe", "Shot", "Trace", "brief", "random_policy"]
