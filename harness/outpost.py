"""An outpost plays episodes far from the journal: it writes nothing, and what happens there is told as it happens.

All that goes to it is plain data, and nothing of it is secret: a harness as its files, a world and a model by name, a
key by the name of a variable that is read there. So an outpost may be any process on any machine that has the same
instar; that it is the same is not believed but compared (`Facts`). It knows nothing of what carries it (`cluster`).
"""

import asyncio
import hashlib
import os
import pickle
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import harness as _harness
from envs import Benchmark, Task
from envs.registry import load
from envs.source import EnvError
from envs.worker import isolated
from harness.agent import Agent, Player, PolicyPlayer
from harness.folder import Harness
from harness.journal import JournalError, serves_all
from harness.known import Known, answered
from harness.model import Completion, Model, ModelRefused
from harness.models.connect import connect
from harness.recall import recall_from
from harness.rollout import Ended, Job, rollout
from harness.settings import HarnessError
from harness.throttle import Throttles
from harness.trajectory import Turn
from memory.fault import MemoryFault

if TYPE_CHECKING:
    from memory import Store

SHARED = 20_000  # answers of a deterministic model that are kept to be given again
#: What ends a whole run, wherever it is raised.
STOPS = (ModelRefused, HarnessError, JournalError, MemoryFault, EnvError)
#: Tells a world and a memory from others that have the same name.
Proof = Callable[[Benchmark, "Store | None"], str]


@dataclass(frozen=True)
class Orders:
    """What an outpost is made from. `env` is a name, or a pickled Benchmark; `memory`, where to recall from.

    `calls` and `worlds` are this outpost's share. `home` is the folder in which relative paths are meant, `modules` the
    folders in which modules are found that nobody installed.
    """

    env: str | bytes
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    memory: str | None = None
    calls: int | None = None
    worlds: int | None = None
    home: str = field(default_factory=os.getcwd)
    modules: tuple[str, ...] = field(default_factory=lambda: own_modules())
    proof: Proof | None = None
    isolate: bool | float = False  # worlds in processes of their own; seconds of a step (True: 60)


@dataclass(frozen=True)
class Facts:
    """What must be equal here and there, besides the `host` that says so."""

    host: str
    instar: str
    model: str
    address: str
    benchmark: str
    proof: str

    @classmethod
    def of(cls, benchmark: Benchmark, model: Model, store: "Store | None", proof: Proof | None) -> "Facts":
        """The facts of this process."""
        seen = proof(benchmark, store) if proof is not None else ""
        parts = urlsplit(str(getattr(model, "address", None) or ""))
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()  # as it may be shown
        return cls(socket.gethostname(), instar(), model.name, address, benchmark.name, seen)


@dataclass(frozen=True)
class Part:
    """A player as data: a harness, or a policy on it, and whether it `remembers`."""

    files: tuple[tuple[str, str], ...]
    where: str
    skills: str = ""
    policy: str | None = None
    makes: bool = False  # the benchmark has the policy; else it wanders
    remembers: bool = False

    @classmethod
    def of(cls, player: Player, benchmark: Benchmark, *, memory: bool) -> "Part":
        """Raises HarnessError for a player that cannot be sent anywhere."""
        if not isinstance(player, Agent | PolicyPlayer):
            raise HarnessError(
                f"a {type(player).__name__} plays only here: agents and policies of the benchmark travel"
            )
        files, where = tuple(player.harness.files.items()), player.harness.where
        remembers = player.recall is not None
        if remembers and not memory:
            raise HarnessError(
                f"{where}: this agent recalls from a memory that grows while it plays, and workers elsewhere cannot "
                "follow it. Cure: leave out --on, or let it recall from a finished run (instar run --memory RUN)"
            )
        if isinstance(player, Agent):
            return cls(files, where, player.skills, remembers=remembers)
        if player.make is not None and benchmark.policies.get(player.name) is not player.make:
            raise HarnessError(f"the policy {player.name} plays only here: policies of the benchmark travel by name")
        return cls(files, where, policy=player.name, makes=player.make is not None, remembers=remembers)


@dataclass(frozen=True)
class Errand:
    """One episode to play, without its player; `known` is what need not be asked."""

    task: Task
    number: int
    arm: str
    phase: str
    seed: int
    known: Known = field(default_factory=Known)
    choosy: bool = False


#: What an outpost says of an errand: turns and what is waited for; at last how it ended, or what stops the run.
Word = Turn | str | Ended | Exception


class Outpost:
    """Plays errands, many at once. `ready` comes first; `close` is the end."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._throttles = Throttles(orders.calls)
        self._worlds = asyncio.Semaphore(orders.worlds) if orders.worlds else None
        self._answers: dict[str, Completion] = {}
        self._players: dict[Part, Player] = {}
        self._playing: set[asyncio.Task[Ended]] = set()
        self._store: Store | None = None

    async def ready(self) -> Facts | Exception:
        """Find all that playing needs; what keeps it from that is returned, to be raised where the run is."""
        orders, strange = self._orders, ""
        sys.path += [folder for folder in orders.modules if folder not in sys.path]
        try:
            try:
                os.chdir(orders.home)
            except OSError:  # only relative paths need it
                strange = f"; it has no folder {orders.home}, where the run was started"
            self.benchmark = load(orders.env) if isinstance(orders.env, str) else _unpacked(orders.env)
            if orders.isolate:
                spec = orders.env if isinstance(orders.env, str) else None
                seconds = 60.0 if orders.isolate is True else float(orders.isolate)
                self.benchmark = isolated(self.benchmark, spec, seconds=seconds)
            self.model = connect(orders.model, orders.options)
            self._store = _opened(orders.memory) if orders.memory is not None else None
            return Facts.of(self.benchmark, self.model, self._store, orders.proof)
        except STOPS as error:
            return type(error)(f"{error} (said on {socket.gethostname()}{strange})")

    async def play(self, part: Part, errand: Errand) -> AsyncIterator[Word]:
        """Play `errand`, and say what happens as it happens."""
        said: asyncio.Queue[Word | None] = asyncio.Queue()
        playing = asyncio.ensure_future(self._play(part, errand, said.put_nowait))
        playing.add_done_callback(lambda _: said.put_nowait(None))
        self._playing.add(playing)
        try:
            while (word := await said.get()) is not None:
                yield word
            try:
                yield playing.result()
            except STOPS as error:
                yield error.with_traceback(None)
        finally:  # also when nobody listens any more
            self._playing.discard(playing)
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    async def close(self) -> None:
        """Stop what plays, with its worlds closed, and free the model and the memory."""
        for playing in (left := list(self._playing)):
            playing.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if hasattr(self, "model"):
            await self.model.close()
        if self._orders.isolate and hasattr(self, "benchmark"):
            self.benchmark.make_env.close()  # type: ignore[attr-defined]
        if self._store is not None:
            self._store.close()

    async def _play(self, part: Part, errand: Errand, say: Callable[[Word], None]) -> Ended:
        job = Job(self._player(part), errand.task, errand.number, errand.arm, errand.phase)

        def lookup(digest: str, turn: int, number: int) -> Completion | None:
            return errand.known.answer(digest, turn, number) or self._answers.get(digest)

        def record(turn: Turn) -> Turn:
            for call in turn.calls:
                if not call.cached and serves_all(call.digest) and len(self._answers) < SHARED:
                    self._answers.setdefault(call.digest, answered(call))
            say(turn)
            return turn

        ended = await rollout(
            self.benchmark, job, seed=errand.seed, record=record, lookup=lookup, tell=say, throttles=self._throttles,
            worlds=self._worlds, choosy=errand.choosy,
        )  # fmt: skip
        return replace(ended, trajectory=ended.trajectory.model_copy(update={"turns": ()}))  # these were said already

    def _player(self, part: Part) -> Player:
        """The player of `part`, made once."""
        if part not in self._players:
            harness = Harness.from_files(dict(part.files), part.where)
            recall = None
            if part.remembers and self._store is not None:
                recall = recall_from(self._store, harness.settings.memory, self.benchmark.name)
            if part.policy is None:
                self._players[part] = Agent(harness, self.model, recall, part.skills)
            else:
                make = self.benchmark.policies[part.policy] if part.makes else None
                self._players[part] = PolicyPlayer(part.policy, harness, make, recall)
        return self._players[part]


def instar() -> str:
    """The version of instar with the hash of the source that a rollout may run."""
    root = Path(_harness.__file__).parent.parent
    found = hashlib.sha256()
    for room in ("envs", "memory", "skills", "harness"):
        for path in sorted((root / room).rglob("*.py")):
            found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{_harness.__version__} ({found.hexdigest()[:12]})"


def own_modules() -> tuple[str, ...]:
    """The folders of `sys.path` that are neither Python's nor a package's: a user's own."""
    installed = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    found = dict.fromkeys(os.path.abspath(folder) for folder in sys.path if not folder.endswith(".zip"))
    return tuple(f for f in found if not any(os.path.realpath(f).startswith(prefix + os.sep) for prefix in installed))


def _unpacked(packed: bytes) -> Benchmark:
    try:
        found = pickle.loads(packed)
    except (ImportError, AttributeError) as error:
        raise EnvError(
            f"the environment cannot be made here: {error}. Cure: name it (a module, or a file), and have it on each "
            "machine"
        ) from error
    if not isinstance(found, Benchmark):
        raise EnvError(f"a {type(found).__name__} came instead of a Benchmark")
    return found


def _opened(memory: str) -> "Store":
    from memory import Store

    path = Path(memory)
    return Store.open(path / "memory.db" if path.is_dir() else path, readonly=True)
