"""Rollouts in Ray's workers: the same journal and the same result, also when workers die; and no Ray left behind."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray_world import FILE, asked, benchmark, player
from worlds import corridor

from envs import Benchmark
from harness import engine
from harness.agent import Agent, Player, PolicyPlayer
from harness.cluster import RayStage, packed, stage_for
from harness.engine import ClusterError
from harness.journal import Journal
from harness.model import ModelRefused
from harness.models.connect import connect
from harness.outpost import Facts, Orders
from harness.record import Tape
from harness.runner import Job, Runner, RunStopped
from harness.settings import HarnessError
from harness.trajectory import Trajectory

pytest.importorskip("ray", reason="needs the ray extra (make test-ray)")
pytestmark = pytest.mark.slow

SCRIPTED, PRICED = f"scripted:{FILE}:scripted", f"scripted:{FILE}:priced"


@pytest.fixture(scope="module")
def ray_here() -> Iterator[Any]:
    """One Ray for many tests; stages join it and leave it running."""
    before = signal.getsignal(signal.SIGTERM), os.getcwd()
    assert engine.join(engine.LOCAL, 4, lambda text: None)
    assert (signal.getsignal(signal.SIGTERM), os.getcwd()) == before
    import ray

    yield ray
    ray.shutdown()


@asynccontextmanager
async def staged(model: str, world: Benchmark = benchmark, **rest: Any) -> AsyncIterator[RayStage]:
    """A stage of two workers on the Ray of these tests."""
    live = connect(model)
    orders = Orders(rest.pop("env", FILE), model, rest.pop("options", {}), **rest.pop("orders", {}))
    stage = stage_for(
        "ray", orders, world, rest.pop("here", Facts.of(world, live, None, None)), **{"workers": 2, **rest}
    )
    try:
        yield stage
    finally:
        await stage.close()
        await live.close()


def jobs(who: Player, numbers: int = 1, world: Benchmark = benchmark) -> list[Job]:
    return [Job(who, task, number) for number in range(numbers) for task in world.tasks("valid")]


def agent(log: Path, model: str = PRICED, **rest: Any) -> Agent:
    return Agent.equip(player(log, **rest), connect(model))


async def elsewhere(folder: Path, model: str, todo: Sequence[Job], **rest: Any) -> tuple[list[Trajectory], str]:
    """What became of `todo` on two workers, and the journal's digest."""
    async with staged(model) as stage:
        with Journal(folder) as journal:
            found = await Runner(benchmark, journal, elsewhere=stage, **{"concurrency": 12, **rest}).run(todo)
            return found, journal.digest()


async def at_home(folder: Path, todo: Sequence[Job], **rest: Any) -> tuple[list[Trajectory], str]:
    with Journal(folder) as journal:
        found = await Runner(benchmark, journal, **{"concurrency": 12, **rest}).run(todo)
        return found, journal.digest()


def timeless(found: Sequence[Trajectory]) -> list[Any]:
    """All of it but times, and which answers were given twice."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in ("seconds", "started", "cached")}
        return [strip(v) for v in value] if isinstance(value, list) else value

    return [strip(t.model_dump(mode="json")) for t in found]


@pytest.mark.parametrize(("model", "toml"), [(SCRIPTED, "temperature = 0.0"), (PRICED, "temperature = 1.0")])
async def test_workers_give_the_same_journal_and_the_same_result(
    ray_here: Any, tmp_path: Path, model: str, toml: str
) -> None:
    who = agent(tmp_path / "log", model, toml=toml)
    here, digest = await at_home(tmp_path / "here", jobs(who, 2))
    there, same = await elsewhere(tmp_path / "there", model, jobs(who, 2))
    assert timeless(there) == timeless(here)
    assert same == digest
    assert 0 < sum(t.score or 0 for t in here) < len(here)  # so that equal is not trivial
    assert len({pid for pid, _ in asked(tmp_path / "log")}) == 3  # two workers and ourselves


async def test_policies_play_in_workers_as_here(ray_here: Any, tmp_path: Path) -> None:
    home = player(tmp_path / "log")
    for who in (PolicyPlayer("random", home), PolicyPlayer("expert", home, benchmark.policies["expert"])):
        here, digest = await at_home(tmp_path / f"here-{who.name}", jobs(who))
        there, same = await elsewhere(tmp_path / f"there-{who.name}", SCRIPTED, jobs(who))
        assert (timeless(there), same) == (timeless(here), digest)


async def test_a_run_goes_on_elsewhere_and_back_and_asks_nothing_twice(ray_here: Any, tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    whole, digest = await at_home(tmp_path / "whole", jobs(agent(log, wait=0.02)))
    before = len(asked(log))
    todo = jobs(agent(log, wait=0.02))
    await _cut(folder, todo, after=9)
    async with staged(PRICED) as stage:
        await _cut(folder, todo, after=25, stage=stage)
    found, same = await at_home(folder, todo)
    assert timeless(found) == timeless(whole)
    assert same == digest
    assert sum(t.calls for t in found) == before
    again = Counter(what for _, what in asked(log)[before:]) - Counter(what for _, what in asked(log)[:before])
    assert again.total() <= 2 * 12  # of each episode, what was on its way when it was cut off


async def until(condition: Callable[[], object]) -> None:
    """Wait for what other processes do."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def _pids(log: Path, before: int) -> set[int]:
    """The processes that made calls since there were `before` of them."""
    return {pid for pid, _ in asked(log)[before:]}


async def _cut(folder: Path, todo: Sequence[Job], *, after: int, stage: RayStage | None = None) -> None:
    """Play until the journal has `after` steps, then stop as Ctrl-C does."""
    with Journal(folder) as journal:
        task = asyncio.ensure_future(Runner(benchmark, journal, concurrency=12, elsewhere=stage).run(todo))
        await until(lambda: task.done() or sum(1 for _ in journal.events("step")) >= after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_worker_that_is_killed_loses_nothing(ray_here: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    whole, digest = await at_home(tmp_path / "here", jobs(agent(log, wait=0.03)))
    before = len(asked(log))
    async with staged(PRICED) as stage:
        with Journal(tmp_path / "there") as journal:
            runner = Runner(benchmark, journal, concurrency=12, elsewhere=stage)
            playing = asyncio.ensure_future(runner.run(jobs(agent(log, wait=0.03))))
            await until(lambda: sum(1 for _ in journal.events("step")) >= 20 and len(_pids(log, before)) == 2)
            os.kill(min(_pids(log, before)), signal.SIGKILL)
            found = await playing
            assert journal.digest() == digest
            lost = {event.key for event in journal.events("lost")}
            begun = Counter(event.key for event in journal.events("start"))
    assert timeless(found) == timeless(whole)
    assert 0 < len(lost) <= 6
    assert begun == Counter({t.id: 2 if t.id in lost else 1 for t in found})  # the others never noticed
    assert [t.dollars for t in found] == [t.dollars for t in whole]  # what was paid before is part of the result, once
    again = Counter(what for _, what in asked(log)[before:]) - Counter(what for _, what in asked(log)[:before])
    assert again.total() <= 2 * len(lost)  # of each lost episode, what was on its way


async def test_a_run_whose_workers_all_die_goes_on_with_new_ones(ray_here: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    whole, digest = await at_home(tmp_path / "here", jobs(agent(log, wait=0.03)))
    before = len(asked(log))
    async with staged(PRICED) as stage:
        with Journal(tmp_path / "there") as journal:
            playing = asyncio.ensure_future(
                Runner(benchmark, journal, concurrency=12, elsewhere=stage).run(jobs(agent(log, wait=0.03)))
            )
            await until(lambda: len(_pids(log, before)) == 2)
            for pid in _pids(log, before):
                os.kill(pid, signal.SIGKILL)
            found = await playing
            assert journal.digest() == digest
            assert {event.body["fault"] for event in journal.events("lost")} == {"sandbox"}
    assert timeless(found) == timeless(whole)


async def test_workers_killed_again_and_again_also_while_they_start_lose_nothing(ray_here: Any, tmp_path: Path) -> None:
    log, rng = tmp_path / "log", random.Random(5)
    whole, digest = await at_home(tmp_path / "here", jobs(agent(log, wait=0.05), 4))
    before, kills = len(asked(log)), 0
    async with staged(PRICED) as stage:
        with Journal(tmp_path / "there") as journal:
            runner = Runner(benchmark, journal, concurrency=12, elsewhere=stage, retries=20)
            playing = asyncio.ensure_future(runner.run(jobs(agent(log, wait=0.05), 4)))
            while kills < 6 and not playing.done():
                await asyncio.sleep(rng.uniform(0.1, 0.8))  # a moment like any other
                workers = [pid for pid, title in _alive(_descendants(os.getpid())) if title.startswith("ray::Outpost")]
                if workers:
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    kills += 1
            found = await playing
            assert journal.digest() == digest
            tries = sum(1 for _ in journal.events("lost"))
    assert kills >= 3
    assert timeless(found) == timeless(whole)
    assert [t.dollars for t in found] == [t.dollars for t in whole]
    assert len(asked(log)) - before <= before + 2 * tries  # of a lost try, only what was on its way


async def test_an_episode_that_kills_each_worker_is_a_gap_and_stops_nobody(ray_here: Any, tmp_path: Path) -> None:
    fatal = f"scripted:{FILE}:fatal"
    async with staged(fatal) as stage:
        with Journal(tmp_path / "run") as journal:
            runner = Runner(benchmark, journal, concurrency=2, elsewhere=stage, retries=4)
            found = await runner.run(jobs(agent(tmp_path / "log", fatal))[:6], settle=False)
    assert [t.status for t in found] == ["done", "done", "done", "gap", "done", "done"]
    assert found[3].fault == "sandbox"
    assert "Ray worker" in found[3].reason


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("refusing", ModelRefused, "no such model"),
        ("broken", HarnessError, "of no use"),
        ("gone", RunStopped, "nobody"),
    ],
)
async def test_what_stops_a_run_stops_it_from_there_too(
    ray_here: Any, tmp_path: Path, name: str, error: type[Exception], says: str
) -> None:
    model = f"scripted:{FILE}:{name}"
    with pytest.raises(error, match=says) as caught:
        await elsewhere(tmp_path, model, jobs(agent(tmp_path / "log", model)))
    assert type(caught.value) is error
    if isinstance(caught.value, ModelRefused):
        assert caught.value.status == 404


async def test_a_fault_of_the_model_is_the_same_gap_there(ray_here: Any, tmp_path: Path) -> None:
    model = f"scripted:{FILE}:filtered"
    with Journal(tmp_path) as journal:
        async with staged(model) as stage:
            with pytest.raises(RunStopped):
                await Runner(benchmark, journal, elsewhere=stage).run(jobs(agent(tmp_path / "log", model))[:2])
        found = list(journal.trajectories())
    assert {(t.status, t.fault, t.reason) for t in found} == {("gap", "provider", "model: filtered")}


async def test_a_replay_is_answered_from_its_tape_in_workers(ray_here: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    whole, _ = await at_home(tmp_path / "here", jobs(agent(log)))
    tapes = {t.id: t for t in whole}
    before = len(asked(log))
    found, _ = await elsewhere(tmp_path / "there", PRICED, jobs(agent(log)), tape=lambda key: Tape(tapes[key]))
    assert len(asked(log)) == before
    assert all(call.cached for t in found for call in t.all_calls)
    forced, _ = await elsewhere(
        tmp_path / "forced", PRICED, jobs(agent(tmp_path / "new")), tape=lambda key: Tape(tapes[key], 2)
    )
    assert [[turn.action for turn in t.turns[:2]] for t in forced] == [[x.action for x in t.turns[:2]] for t in whole]
    assert all(call.digest.endswith("#taped") for t in forced for turn in t.turns[:2] for call in turn.calls)


async def test_a_benchmark_that_has_no_name_travels_as_it_is(ray_here: Any, tmp_path: Path) -> None:
    world = corridor(tasks=3)
    async with staged(SCRIPTED, world, env=packed(world)) as stage:
        with Journal(tmp_path / "run") as journal:
            runner = Runner(world, journal, elsewhere=stage)
            found = await runner.run(jobs(agent(tmp_path / "log", SCRIPTED), world=world))
    assert all(t.status != "gap" and t.score is not None for t in found)


async def test_workers_that_differ_from_here_are_refused(ray_here: Any) -> None:
    facts = Facts.of(benchmark, connect(SCRIPTED), None, None)
    with pytest.raises(ClusterError, match=r"has another instar: .* Cure: the same version of instar on each machine"):
        async with staged(SCRIPTED, here=replace(facts, instar="other")):
            pass
    async with staged(SCRIPTED) as stage:
        for name in ("model", "address", "benchmark", "proof"):
            with pytest.raises(ClusterError, match=f"has another {name}: other, and here it is .* Cure: "):
                stage._checked(replace(facts, **{name: "other"}))


async def test_what_no_worker_can_begin_with_is_told_before_anything_is_played(ray_here: Any) -> None:
    facts = Facts.of(benchmark, connect(SCRIPTED), None, None)
    with pytest.raises(ModelRefused, match=r"cannot be loaded: .* \(said on "):
        stage_for("ray", Orders(FILE, f"scripted:{FILE}:nothing"), benchmark, facts, workers=1)


async def test_too_many_workers_are_told_with_what_there_is(ray_here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cluster.START", 3.0)
    with pytest.raises(ClusterError, match=r"not all of 9 Ray workers had started .* has 4"):
        async with staged(SCRIPTED, workers=9):
            pass


async def test_a_limit_is_divided_among_workers(ray_here: Any, tmp_path: Path) -> None:
    async with staged(SCRIPTED, orders={"calls": 5, "worlds": 2}) as stage:
        assert [(place.orders.calls, place.orders.worlds) for place in stage._places] == [(3, 1), (2, 1)]
        with Journal(tmp_path / "run") as journal:
            found = await Runner(benchmark, journal, elsewhere=stage).run(jobs(agent(tmp_path / "log", SCRIPTED)))
    assert all(t.status != "gap" for t in found)
    with pytest.raises(ValueError, match="--calls 1 cannot be divided among 2 workers"):
        async with staged(SCRIPTED, orders={"calls": 1}):
            pass


DRIVER = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_ray import *

async def main(folder):
    who = agent(folder / "log", PRICED, wait=0.05)
    async with staged(PRICED) as stage:
        with Journal(folder / "run") as journal:
            await Runner(benchmark, journal, concurrency=12, elsewhere=stage).run(jobs(who, 4))
            print(journal.digest())

asyncio.run(main(Path({folder!r})))
"""


def _driver(folder: Path) -> "subprocess.Popen[str]":
    """A process of its own that starts Ray, plays, and prints the digest."""
    code = DRIVER.format(here=str(Path(__file__).parent), folder=str(folder))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _descendants(pid: int) -> set[int]:
    found = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, found.splitlines())}
    below, above = {pid}, set[int]()
    while below != above:
        above = set(below)
        below |= {child for child, parent in parents.items() if parent in below}
    return below - {pid}


def _alive(pids: set[int]) -> list[tuple[int, str]]:
    """Those of `pids` that still run (what waits to be buried does not), with their titles."""
    found = subprocess.run(["ps", "-eo", "pid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    lines = (line.split(maxsplit=2) for line in found.splitlines())
    return [(int(pid), title) for pid, stat, title in lines if int(pid) in pids and not stat.startswith("Z")]


def _wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen within a minute"
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_driver_that_is_stopped_leaves_no_ray_and_its_run_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    with _driver(tmp_path) as driver:
        _wait(lambda: len(asked(tmp_path / "log")) > 30)
        rays = _descendants(driver.pid)
        assert {pid for pid, _ in asked(tmp_path / "log")} < rays
        driver.send_signal(how)
        _, said = driver.communicate(timeout=60)
    # Two of Ray's own agents, which do nothing any more, look only once a minute whether they are still needed.
    _wait(lambda: [title for _, title in _alive(rays) if how is signal.SIGINT or "Agent" not in title] == [])
    if how is signal.SIGINT:
        assert said.strip().endswith("KeyboardInterrupt"), said
    found, digest = asyncio.run(at_home(tmp_path / "run", jobs(agent(tmp_path / "log", PRICED, wait=0.05), 4)))
    whole, same = asyncio.run(at_home(tmp_path / "whole", jobs(agent(tmp_path / "log", PRICED, wait=0.05), 4)))
    assert digest == same
    assert len(found) == len(whole) == 48
