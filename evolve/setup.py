"""What a run is made from, and the plan that says so: everything that shapes the result, none of it secret.

Two calls with equal plans are the same run. So the plan holds not only names but what stands behind them: the hash of
the file that defines the world, of every task that is played, of a model file, of the memory that is recalled from.
"""

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import harness as _harness
from envs import Benchmark, Task
from envs.registry import load
from evolve.lab import fingerprint
from harness.agent import Agent
from harness.folder import Harness
from harness.model import Model
from harness.models.connect import connect
from harness.recall import recall_from

if TYPE_CHECKING:
    from harness.cluster import RayStage
    from memory import Store


@dataclass(frozen=True)
class Setup:
    """What a run is made from. `model` and `options` override its `[model]`; `memory` is a run folder or a file.

    `isolate`: worlds live in worker processes, and must answer within so many seconds (True: 60).
    """

    harness: Harness
    env: str | Benchmark
    model: str | Model | None = None
    options: Mapping[str, Any] | None = None
    seed: int = 0
    concurrency: int = 2
    memory: str | None = None
    isolate: bool | float = False

    def benchmark(self) -> Benchmark:
        """The benchmark that `env` is or names."""
        made = self.env if isinstance(self.env, Benchmark) else load(self.env)
        if not self.isolate:
            return made
        from envs.worker import isolated

        seconds = 60.0 if self.isolate is True else float(self.isolate)
        return isolated(made, self.env if isinstance(self.env, str) else None, seconds=seconds)

    def connect(self) -> Model:
        """The model that answers for the agents; raises ModelRefused when it cannot."""
        return connect(self._spec, self._options) if isinstance(self._spec, str) else self._spec

    @property
    def owns_model(self) -> bool:
        """Whether the model is ours to close."""
        return isinstance(self._spec, str)

    @property
    def _spec(self) -> str | Model:
        return self.model or self.harness.settings.model.name

    @property
    def _given(self) -> dict[str, Any]:
        """Backend options as they were given."""
        options: dict[str, Any] = dict(self.harness.settings.model.options) if self.model is None else {}
        return options | dict(self.options or {})

    @property
    def _options(self) -> dict[str, Any]:
        """Backend options; a local model gets one instance for each episode that may run at once, up to the cores."""
        options = self._given
        if self._spec == "embedded" or str(self._spec).startswith("gguf:"):
            options.setdefault("instances", max(1, min(self.concurrency, os.cpu_count() or 1)))
        return options

    def check_price(self, limit: float | None) -> None:
        """Raise ValueError when money is limited and the model's price is certainly unknown."""
        priced = {"price_in", "price_out"} <= self._options.keys()
        if limit is not None and isinstance(self._spec, str) and self._spec.startswith("openai/") and not priced:
            raise ValueError(
                f"the budget limits money, but the price of {self._spec} is unknown. Cure: give price_in and price_out "
                "(dollars per million tokens) in [model.options] of harness.toml, or limit calls or tokens instead"
            )

    def store(self) -> "Store":
        """The memory to recall from, for reading. Raises MemoryFault."""
        from memory import Store

        path = Path(self.memory or "")
        return Store.open(path / "memory.db" if path.is_dir() else path, readonly=True)

    def agent(self, benchmark: Benchmark, model: Model, say: Callable[[str], None]) -> tuple[Agent, "Store | None"]:
        """The agent, and the open store it recalls from; the caller closes it."""
        if self.memory is None:
            return Agent.equip(self.harness, model), None
        store = self.store()
        recall = recall_from(store, self.harness.settings.memory, benchmark.name)
        if recall is None:
            say('the memory is not used: the harness says [memory] policy = "none"')
        elif benchmark.name not in store.scopes():
            say(f"the memory holds nothing for {benchmark.name}, only for: {', '.join(store.scopes()) or 'nothing'}")
        return Agent.equip(self.harness, model, recall), store

    def stage(
        self, on: str, workers: int | None, benchmark: Benchmark, model: Model, *, calls: int | None,
        worlds: int | None, say: Callable[[str], None],
    ) -> "RayStage":  # fmt: skip
        """Workers on Ray that play as we would. Raises ClusterError, ValueError, or what a worker cannot begin with."""
        from harness.cluster import packed, stage_for
        from harness.outpost import Facts, Orders

        if not isinstance(self._spec, str):
            raise ValueError(
                f"{self._spec.name} is a model of this process, and workers make their own. Cure: name it, such as "
                "openai/NAME or scripted:FILE.py:ATTR"
            )
        env = self.env if isinstance(self.env, str) else packed(self.env)
        orders = Orders(env, self._spec, self._given, self.memory, calls, worlds, proof=standing, isolate=self.isolate)
        store = self.store() if self.memory is not None else None
        try:
            here = Facts.of(benchmark, model, store, standing)
        finally:
            if store is not None:
                store.close()
        return stage_for(on, orders, benchmark, here, workers=workers, say=say)

    def plan(self, command: str, benchmark: Benchmark, played: Sequence[Task], **rest: Any) -> dict[str, Any]:
        """The plan as plain data. `played` are the tasks that are scored; `rest` is what else shapes the result."""
        named = self._spec if isinstance(self._spec, str) else self._spec.name
        return {
            "command": command, "harness": self.harness.version, "name": self.harness.settings.name,
            "env": self.env if isinstance(self.env, str) else self.env.name, "world": world_digest(benchmark),
            "benchmark": facts(benchmark), "tasks": {task.id: fingerprint(task) for task in played},
            "model": named, "weights": _file_digest(named),
            "options": {key: _public(value) for key, value in self._options.items() if key != "instances"},
            "address": self._address(),
            "memory": self.memory, "memory_digest": self._memory_digest(), "seed": self.seed,
            "instar": _harness.__version__, **rest,
        }  # fmt: skip

    def _address(self) -> str | None:
        """Where an OpenAI-compatible server is, however it was told: another server is another run."""
        if not isinstance(self._spec, str) or not self._spec.startswith("openai/"):
            return None
        address: str | None = _public(self._options.get("api_base") or os.environ.get("OPENAI_BASE_URL"))
        return address

    def _memory_digest(self) -> str | None:
        if self.memory is None:
            return None
        with self.store() as store:
            return memory_digest(store)


def facts(benchmark: Benchmark) -> dict[str, Any]:
    """What a reader of the journal must know of the benchmark: its code may be gone, or not to be trusted."""
    return {
        "name": benchmark.name,
        "description": benchmark.description,
        "evaluator": benchmark.evaluator.name,
        "licence": benchmark.licence,
        "reward_range": list(benchmark.reward_range),
        "success_at": benchmark.success_at,
        "max_steps": benchmark.max_steps,
    }


def world_digest(benchmark: Benchmark) -> str:
    """Hash of the files that define the world and its metric, as far as Python can find them."""
    found = set()
    for thing in (benchmark.make_env, benchmark.metric):
        try:
            found.add(inspect.getsourcefile(inspect.unwrap(getattr(thing, "func", thing))))  # a partial has a func
        except TypeError:  # a callable object of no file of its own: its class has one
            found.add(inspect.getsourcefile(type(thing)))
    return digest(sorted(hashlib.sha256(Path(f).read_bytes()).hexdigest() for f in found if f and Path(f).is_file()))


def standing(benchmark: Benchmark, store: "Store | None") -> str:
    """Hash of what the world and the memory are, which must be the same wherever a run is played."""
    return digest([world_digest(benchmark), None if store is None else memory_digest(store)])


def memory_digest(store: "Store") -> str:
    """Hash of what there is to recall."""
    items = [(i.id, i.version, i.stats.utility) for scope in store.scopes() for i in store.items(scope)]
    return digest(sorted(items))


def digest(plain: Any) -> str:
    """A short hash of plain data."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _file_digest(spec: str) -> str | None:
    """What stands behind a model that is a file: content of a script; size and time of weights, which are large."""
    kind, _, rest = spec.partition(":")
    path = Path(rest if kind == "gguf" else rest.rpartition(":")[0])
    if kind not in ("gguf", "scripted") or not path.is_file():
        return None
    if kind == "scripted":
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    found = path.stat()
    return digest([found.st_size, found.st_mtime_ns])


def _public(value: Any) -> Any:
    """An option without the password or key that a URL may carry."""
    if isinstance(value, str) and "://" in value:
        parts = urlsplit(value)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
    return value
