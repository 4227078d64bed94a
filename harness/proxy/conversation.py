"""Episodes without a world: an agent that brings its own plays through the proxy, and its key names the episode.

Every call is a turn: what was new to the model, and what it answered. An episode ends when the client says so and with
the score that it gives, when nothing was asked for a while, or when the proxy stops; a kill ends none, and the same
command goes on with it. A score that nobody gave stays None: the episode is whole, and its score is missing.
"""

import asyncio
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, Protocol

from envs import Benchmark, Env, Task
from harness.episode import Episode
from harness.journal import Journal
from harness.model import Completion, Message, Model, Request, Usage
from harness.proxy.refusal import Refusal, bad
from harness.proxy.session import Session
from harness.proxy.wire_in import Defaults, fitting
from harness.proxy.words import one_line
from harness.settings import LimitSettings
from harness.throttle import Throttles
from harness.trajectory import Trajectory, Turn

OURS = "sk-instar-"  # how keys begin that may be written down
GOAL = 2000  # characters of the first question that stand for the goal
_PHASE = "run/agent"  # where episodes lie in the journal
_NEVER = 10**9


class Allowance(Protocol):
    """What may be spent. A call is `take`n before it is made, and then `settle`d with its cost, None if it failed."""

    async def take(self) -> None:
        """Wait until one more call is certain to be paid. Raises Exhausted."""
        ...

    def settle(self, usage: Usage | None) -> None: ...


class Conversations:
    """The episodes of a proxy, by key. `idle`: seconds without a call after which an episode ends.

    `say` is told one line of each episode that ends; it must not raise.
    """

    def __init__(
        self, journal: Journal, model: Model, *, seed: int = 0, defaults: Defaults | None = None,
        allowance: Allowance | None = None, idle: float = 600.0, say: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self.journal, self.model, self.seed, self.idle = journal, model, seed, idle
        self.defaults, self.allowance, self._say = defaults or Defaults(), allowance, say
        self.throttles = Throttles()
        self._unopened = _Unopened(model, self.defaults)
        self._open: dict[str, Conversation] = {}
        self._next: Counter[str] = Counter()
        cut_off = set(journal.unfinished())
        for event in journal.events("start"):
            name, number = event.key.removeprefix(f"{_PHASE}/").rsplit("/", 1)
            self._next[name] = max(self._next[name], int(number) + 1)
            if event.key in cut_off:
                self._open[name] = Conversation(self, name, int(number), event.at)

    def look(self, key: str) -> Session:
        """The episode that is open for `key`, or what a key is before anything was asked: nothing is kept of that."""
        found = self._open.get(name_of(key))
        return self._unopened if found is None or found.closing else found

    def find(self, key: str) -> "Conversation":
        """The episode that `key` stands for now, to ask something: the one that is open, or a new one."""
        name = name_of(key)
        found = self._open.get(name)
        if found is None or found.closing:
            found = self._open[name] = Conversation(self, name, self._next[name])
            self._next[name] += 1
        return found

    async def watch(self) -> None:
        """End episodes that were idle for too long, for ever."""
        while True:
            now = time.monotonic()
            late = [c for c in self._open.values() if not c.busy and now - c.last >= self.idle]
            for conversation in late:
                await conversation.end("truncated", f"nothing was asked for {self.idle:g} s")
            soonest = min((c.last for c in self._open.values() if not c.busy), default=now)
            await asyncio.sleep(max(0.05, soonest + self.idle - time.monotonic()))

    async def close(self) -> None:
        """End all episodes."""
        for conversation in list(self._open.values()):
            await conversation.end("truncated", "the proxy was stopped")

    def forget(self, conversation: "Conversation", trajectory: Trajectory | None) -> None:
        """`conversation` has ended, with `trajectory` where anything was asked."""
        if self._open.get(conversation.name) is conversation:
            del self._open[conversation.name]
            if trajectory is None:
                self._next[conversation.name] = conversation.number
        if trajectory is not None:
            score = "no score" if trajectory.score is None else f"score {trajectory.score:g}"
            why = f" ({one_line(trajectory.reason)})" if trajectory.reason else ""
            self._say(f"{trajectory.id}: {trajectory.status}, {score}{why}")


class Conversation(Session):
    """One episode. `began` is when it was begun in an earlier life of this proxy, None for a new one."""

    def __init__(self, home: Conversations, name: str, number: int, began: float | None = None) -> None:
        self.model, self.defaults = home.model, home.defaults
        self.name, self.number, self.key = name, number, f"{_PHASE}/{name}/{number}"
        self.closing = False
        self.last = time.monotonic()
        self._home, self._began = home, began
        self._goal = ""
        self._flying: set[asyncio.Task[Any]] = set()
        self._talk = _Talk(name, number, home, self._record)
        self._ended: asyncio.Future[dict[str, Any]] | None = None
        if began is not None:
            turns = [Turn.model_validate(e.body["turn"]) for e in home.journal.events("step", self.key)]
            self._goal = turns[0].observation[:GOAL] if turns else ""
            self._talk.go_on(turns)

    @property
    def busy(self) -> bool:
        """Whether a call is in flight."""
        return bool(self._flying)

    async def ask(self, request: Request) -> Completion:
        """The model's answer; the call is written down as a turn before it is handed out."""
        if self.closing:
            raise Refusal(409, f"the episode {self.key} has just ended; ask again for the next one", again=True)
        if self._began is None:
            self._began = time.time()
            self._home.journal.append("start", {"attempt": 0}, self.key)
        task = asyncio.current_task()
        assert task is not None
        self._flying.add(task)
        allowance, usage = self._home.allowance, None
        try:
            if allowance is not None:
                await allowance.take()
            try:
                completion = await self._talk.ask(self.model, fitting(request, self.model))
                usage = completion.usage
            finally:
                if allowance is not None:
                    allowance.settle(usage)
            seen = new_to(request.messages)  # no await from here to the end: other calls come in between otherwise
            self._goal = self._goal or seen[:GOAL]
            self._talk.said(seen, completion)
            return completion
        finally:
            self._flying.discard(task)
            self.last = time.monotonic()

    async def finish(self, score: float | None, reason: str) -> dict[str, Any]:
        """End the episode as done."""
        low, high = NO_WORLD.reward_range
        if score is not None and not low <= score <= high:  # also of whole numbers that no float holds, and of NaN
            raise bad(f"score must be a number from {low:g} to {high:g}, or null where there is none", "score")
        if self._began is None:
            raise _nothing_asked()
        return await self.end("done", reason, None if score is None else float(score))

    async def end(
        self, status: Literal["done", "truncated"], reason: str, score: float | None = None
    ) -> dict[str, Any]:
        """Write the trajectory down, when the calls in flight are answered; a second end is the first one's."""
        if self._ended is None:
            self.closing = True
            self._ended = asyncio.ensure_future(self._end(status, reason, score))
        return await asyncio.shield(self._ended)

    async def _end(self, status: Literal["done", "truncated"], reason: str, score: float | None) -> dict[str, Any]:
        if self._flying:
            await asyncio.wait(set(self._flying))
        if self._began is None:
            self._home.forget(self, None)
            return {"episode": self.key, "turns": 0}
        trajectory = Trajectory(
            id=self.key, task=self.name, split="proxy", goal=self._goal, episode=self.number, seed=self._talk.seed,
            harness="foreign", model=self.model.name, score=score, status=status,
            reason=reason or ("" if score is not None else "no score was given"), arm="agent", started=self._began,
            seconds=time.time() - self._began,
        )  # fmt: skip
        self._home.journal.finish(trajectory, 0)
        self._home.forget(self, trajectory)
        return {"episode": self.key, "turns": self._talk.steps}

    def _record(self, turn: Turn) -> Turn:
        self._home.journal.step(self.key, 0, turn)
        return turn


class _Unopened(Session):
    """What a key stands for before its first call: it can be asked about, and there is nothing to end."""

    def __init__(self, model: Model, defaults: Defaults) -> None:
        self.model, self.defaults = model, defaults

    async def finish(self, score: float | None, reason: str) -> dict[str, Any]:
        raise _nothing_asked()


class _Talk(Episode):
    """An episode that has no world: its turns are written down and not kept, since a proxy lives long."""

    def __init__(self, name: str, number: int, home: Conversations, record: Callable[[Turn], Turn]) -> None:
        super().__init__(
            NO_WORLD, Task(id=name, split="proxy", goal=""), number=number, run_seed=home.seed, max_steps=_NEVER,
            max_calls=_NEVER, limits=LimitSettings(), record=record, lookup=lambda *_: None, throttles=home.throttles,
        )  # fmt: skip
        self.steps = 0

    def said(self, seen: str, completion: Completion) -> None:
        """Write down the one call since the last turn."""
        action = completion.text
        if completion.tool_calls:
            calls = [{"name": call.name, "arguments": call.arguments} for call in completion.tool_calls]
            action = json.dumps(calls, ensure_ascii=False)
        self._record(Turn(observation=seen, action=action, calls=tuple(self._calls)))
        self._calls.clear()
        self.steps += 1

    def go_on(self, turns: list[Turn]) -> None:
        """Count on after `turns` of an earlier life: the same chance, and the same names for equal requests."""
        self.steps = len(turns)
        for call in (call for turn in turns for call in turn.calls):
            self._asked += 1
            digest, _, number = call.digest.rpartition("#")
            if digest and number.isdecimal():
                self._equal[digest] = max(self._equal.get(digest, 0), int(number))


def name_of(key: str) -> str:
    """The episode's name for a key: what the user chose after `sk-instar-`, or a hash of what may be a secret."""
    own = key.removeprefix(OURS)
    if own == key:
        return f"key-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not own:
        raise Refusal(401, f"the key {OURS} has no name. Cure: one such as {OURS}task7", code="invalid_api_key")
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", own)[:64]
    return safe if safe == own else f"{safe}-{hashlib.sha256(own.encode()).hexdigest()[:8]}"


def new_to(messages: tuple[Message, ...]) -> str:
    """What the model had not been told when it last answered: all after its last message, without instructions."""
    last = max((place for place, said in enumerate(messages) if said.role == "assistant"), default=-1)
    return "\n\n".join(said.content for said in messages[last + 1 :] if said.role != "system")


def _nothing_asked() -> Refusal:
    return Refusal(404, "nothing was asked with this key since its last episode ended", code="no_episode")


def _no_world() -> Env:
    raise RuntimeError("a conversation has no world")


NO_WORLD = Benchmark(
    "proxy", _no_world, {}, description="Whatever foreign agents did through the proxy.", reward_range=(0.0, 1.0)
)
