"""A world in a worker plays as it does at home, and whatever it does to its process, ours goes on."""

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from owners import ROOT, eventually, leases, owner, reapers, running

from envs import Benchmark, Env, EnvFault, Observation, Task, process, worker
from envs.check import check
from envs.registry import load
from envs.source import EnvError
from envs.worker import ProcessEnv, Workers, isolated

WILD = str(Path(__file__).parent / "wild_worlds.py")
DOORS = str(ROOT / "examples" / "my_env.py")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INSTAR_STATE", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def opened() -> Iterator[list[Benchmark]]:
    """Isolated benchmarks whose workers end with the test."""
    made: list[Benchmark] = []
    yield made
    for benchmark in made:
        pool(benchmark).close()


@pytest.fixture
def wild(opened: list[Benchmark]) -> Benchmark:
    opened.append(isolated(load(WILD), WILD, seconds=60))
    return opened[-1]


@pytest.fixture
def hasty(opened: list[Benchmark]) -> Benchmark:
    """Worlds that have half a second to answer."""
    opened.append(isolated(load(WILD), WILD, seconds=0.5))
    return opened[-1]


def pool(benchmark: Benchmark) -> Workers:
    made = benchmark.make_env
    assert isinstance(made, Workers)
    return made


@asynccontextmanager
async def playing(benchmark: Benchmark, number: int = 0) -> AsyncIterator[ProcessEnv]:
    env = pool(benchmark)()
    try:
        await env.reset(benchmark.tasks("train")[number], 7)
        yield env
    finally:
        await env.close()


async def pid_of(env: Env) -> int:
    data = (await env.step("say pid")).observation.data
    assert data is not None
    return int(data["pid"])


async def happens(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition()` holds, and let the loop go on."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for happens outside of the loop
            await asyncio.sleep(0.01)


def gone(pid: int) -> bool:
    return process.started(pid) is None


async def transcript(benchmark: Benchmark, episodes: int) -> list[Any]:
    """Episodes of random moves, whole."""
    told: list[Any] = []
    for number, task in enumerate(benchmark.tasks("train", episodes)):
        rng, env = random.Random(number), benchmark.make_env()
        seen = await env.reset(task, number)
        told.append((seen, list(env.tools())))
        for _ in range(benchmark.max_steps):
            step = await env.step(rng.choice(seen.choices or ("look",)))
            seen = step.observation
            told.append((step, list(env.tools())))
            if step.done:
                break
        await env.close()
    return told


@pytest.mark.parametrize(("spec", "given"), [("household:level=3", True), ("household", False), (DOORS, True)])
async def test_the_same_seed_gives_the_same_transcript_as_without_workers(
    spec: str, given: bool, opened: list[Benchmark]
) -> None:
    opened.append(isolated(load(spec), spec if given else None))
    assert await transcript(opened[0], 8) == await transcript(load(spec), 8)


@pytest.mark.parametrize("spec", [pytest.param("household:level=2", marks=pytest.mark.slow), DOORS])
def test_an_isolated_benchmark_keeps_every_rule_of_the_contract(spec: str, opened: list[Benchmark]) -> None:
    opened.append(isolated(load(spec), spec))
    report = check(opened[0], episodes=2, spec=spec, seconds=200)
    # A RuntimeError after the end is as good as an answer, but comes as any fault does: the world broke.
    bad = {result.name for result in report.results if result.status != "passed"}
    assert bad <= {"after the end"}, str(report)


async def test_an_endless_loop_is_stopped_at_its_deadline_and_the_next_episode_runs(hasty: Benchmark) -> None:
    async with playing(hasty) as env:
        spinning = await pid_of(env)
        with pytest.raises(EnvFault, match=r"did not answer step within 0.5 s \(it stood at .*wild_worlds.py:\d+\)"):
            await env.step("spin")
        assert gone(spinning)
        with pytest.raises(EnvFault, match="before reset"):
            await env.step("say hello")
    async with playing(hasty, 1) as env:
        assert (await env.step("say hello")).observation.text == "hello"


async def test_the_loop_stays_free_while_a_world_computes(hasty: Benchmark) -> None:
    async with playing(hasty) as one, playing(hasty, 1) as two:
        spinning = asyncio.ensure_future(one.step("spin"))
        for number in range(20):
            assert (await two.step(f"say {number}")).observation.text == str(number)
        assert not spinning.done()
        with pytest.raises(EnvFault, match="did not answer"):
            await spinning


async def test_a_reset_without_end_and_a_world_that_waits_for_ever_are_stopped_too(hasty: Benchmark) -> None:
    env = hasty.make_env()
    with pytest.raises(EnvFault, match="did not answer reset"):
        await env.reset(Task(id="x", split="train", goal="", data={"spin": True}), 0)
    await env.close()
    async with playing(hasty) as env:
        with pytest.raises(EnvFault, match="did not answer step"):
            await env.step("hang")


async def test_a_cancelled_step_kills_its_worker_and_no_other(wild: Benchmark) -> None:
    async with playing(wild) as one, playing(wild, 1) as two:
        spinning, other = await pid_of(one), await pid_of(two)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await one.step("spin")
        await happens(lambda: gone(spinning), "the worker is dead")
        assert await pid_of(two) == other


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("segfault", r"SIGSEGV \(it stood at .*ctypes.*:\d+\) at step\. It wrote last: before the fault$"),
        ("exit 3", r"ended itself with status 3 at step\. It wrote last: a last word"),
        ("abort", "was killed by SIGABRT"),
        ("shut", "closed its line to us and was stopped"),
        ("kill", r"was killed by SIGKILL \(most often: no memory was left\)"),
    ],
)
async def test_a_worker_that_dies_says_how(wild: Benchmark, action: str, said: str) -> None:
    async with playing(wild) as env:
        with pytest.raises(EnvFault, match=said):
            await env.step(action)
    async with playing(wild) as env:
        assert (await env.step("say on")).observation.text == "on"


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("fail of its own", r"^ValueError: of its own \(.*wild_worlds\.py:\d+\)$"),
        ("fault the server is down", "^the server is down$"),
        ("leave now", "^SystemExit: now"),
        ("cancel", "^CancelledError"),
        ("returns dict", "step returned a dict, no Step"),
        ("returns number", "text is a int"),
        ("returns reward", "reward that is a str"),
        ("returns done", "done that is a str"),
        ("returns choices", "choices that are a str"),
        ("returns object", "JSON cannot hold it.*Cure"),
        ("returns large", "70 MiB"),
    ],
)
async def test_what_a_world_raises_or_wrongly_returns_is_a_fault_and_its_worker_is_not_used_again(
    wild: Benchmark, action: str, said: str
) -> None:
    async with playing(wild) as env:
        before = await pid_of(env)
        with pytest.raises(EnvFault, match=said):
            await env.step(action)
        assert await pid_of(env) == before  # as at home, the world is still there
    async with playing(wild) as env:
        assert await pid_of(env) != before


async def test_numbers_and_texts_that_are_odd_come_as_they_are(wild: Benchmark) -> None:
    async with playing(wild) as env:
        assert str((await env.step("returns nan")).reward) == "nan"
        assert (await env.step("returns half")).observation.text == "\ud83d"
        step = await env.step("say \x00 \udfff é")
        assert (step.observation.text, step.reward, step.done) == ("\x00 \udfff é", 0.5, False)
        assert step.info == {"feedback": "fine"}


@pytest.mark.parametrize(
    "text", ["\x00\x00\x00\x02{]", "\xff\xff\xff\xff", "\x00\x00\x00\x02[]", '\x00\x00\x00\x08{"ok":1}']
)
async def test_nonsense_on_the_line_is_a_fault(wild: Benchmark, text: str) -> None:
    async with playing(wild) as env:
        scribbling = await pid_of(env)
        with pytest.raises(EnvFault, match="nonsense"):
            await env.step(f"scribble {text}")
        assert gone(scribbling)
    async with playing(wild) as env:
        assert (await env.step("say on")).observation.text == "on"


async def test_a_world_that_floods_its_output_costs_no_memory_and_is_answered(wild: Benchmark) -> None:
    async with playing(wild) as env:
        assert (await env.step("flood 8")).observation.text == "wrote it all"
        held = env._worker
        assert held is not None
        assert 0 < len(held._tail) <= 16384


async def test_a_world_that_allocates_without_end_meets_its_limit(opened: list[Benchmark]) -> None:
    opened.append(isolated(load(WILD), WILD, memory=600 * 2**20))
    async with playing(opened[0]) as env:
        with pytest.raises(EnvFault, match="MemoryError"):
            await env.step("allocate")


async def test_who_stops_waiting_while_a_worker_starts_leaves_none(wild: Benchmark, state: Path) -> None:
    for seconds in (0.0, 0.01, 0.1):
        env = wild.make_env()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await env.reset(wild.tasks("train")[0], 0)
        await env.close()
    await happens(lambda: not leases(state), "all leases are given back")
    assert pool(wild)._claimed == 0
    assert pool(wild)._all == set()


async def test_a_large_action_passes_and_one_that_is_too_large_is_a_fault(wild: Benchmark) -> None:
    async with playing(wild) as env:
        text = "x" * 10**7
        assert (await env.step(f"say {text}")).observation.text == text
        with pytest.raises(EnvFault, match="cannot be sent"):
            await env.step("x" * 70 * 2**20)
        assert (await env.step("say on")).observation.text == "on"


async def test_workers_are_used_again_by_later_episodes_and_loops(wild: Benchmark) -> None:
    async def one() -> int:
        async with playing(wild) as env:
            return await pid_of(env)

    pids = {await one(), await one()}
    pids |= {await asyncio.to_thread(lambda: asyncio.run(one())) for _ in range(2)}
    assert len(pids) == 1


async def test_an_idle_worker_that_was_killed_is_replaced(wild: Benchmark) -> None:
    async with playing(wild) as env:
        killed = await pid_of(env)
    os.kill(killed, 9)
    await happens(lambda: gone(killed), "it is dead")
    async with playing(wild) as env:
        killed = await pid_of(env)
    os.kill(killed, 9)
    await happens(lambda: gone(killed), "it is dead")
    pool(wild).close()


async def test_a_worker_is_replaced_after_many_episodes_and_when_it_has_grown(
    wild: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one(action: str) -> int:
        async with playing(wild) as env:
            await env.step(action)
            return await pid_of(env)

    monkeypatch.setattr(worker, "GROWTH", 2**26)
    first = await one("say")
    assert await one(f"keep {2**28}") == first
    second = await one("say")
    assert second != first
    assert gone(first)
    monkeypatch.setattr(worker, "EPISODES", 2)
    assert await one("say") == second
    assert await one("say") != second


async def test_no_more_workers_than_asked_for_and_each_world_has_its_turn(opened: list[Benchmark]) -> None:
    opened.append(isolated(load(WILD), WILD, workers=2))

    async def one(number: int) -> int:
        async with playing(opened[0], number % 4) as env:
            if number == 3:
                with pytest.raises(EnvFault, match="status 1"):
                    await env.step("exit 1")
                return 0
            return await pid_of(env)

    pids = await asyncio.gather(*map(one, range(9)))
    assert len({*pids} - {0}) <= 3  # two, and one in place of the one that ended
    assert 0 in pids


async def test_who_gives_up_waiting_for_a_worker_does_not_keep_the_others_from_it(opened: list[Benchmark]) -> None:
    opened.append(isolated(load(WILD), WILD, workers=1))
    task = opened[0].tasks("train")[0]
    async with playing(opened[0]):
        impatient, patient = opened[0].make_env(), opened[0].make_env()
        waits = asyncio.ensure_future(patient.reset(task, 0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await impatient.reset(task, 0)
        gives_up = asyncio.ensure_future(impatient.reset(task, 0))
        await asyncio.sleep(0)
        gives_up.cancel()
    assert (await waits).text == "ready"
    await patient.close()
    with pytest.raises(asyncio.CancelledError):
        await gives_up


async def test_who_is_cancelled_just_as_a_worker_comes_free_leaves_it_to_the_next(opened: list[Benchmark]) -> None:
    opened.append(isolated(load(WILD), WILD, workers=1))
    task = opened[0].tasks("train")[0]
    holder, first, second = (opened[0].make_env() for _ in range(3))
    await holder.reset(task, 0)
    unlucky = asyncio.ensure_future(first.reset(task, 0))
    waits = asyncio.ensure_future(second.reset(task, 0))
    await happens(lambda: len(pool(opened[0])._waiting) == 2, "both wait")
    await holder.close()
    unlucky.cancel()
    assert (await asyncio.wait_for(waits, 60)).text == "ready"
    assert unlucky.cancelled()
    await second.close()


@pytest.mark.slow
async def test_sixty_four_worlds_at_once(wild: Benchmark) -> None:
    together = asyncio.Barrier(64)

    async def one(number: int) -> int:
        async with playing(wild, number % 4) as env:
            await together.wait()
            assert (await env.step(f"say {number}")).observation.text == str(number)
            return await pid_of(env)

    pids = await asyncio.gather(*map(one, range(64)))
    assert len(set(pids)) == 64
    assert len([pid for pid in pids if not gone(pid)]) == worker.WARM
    pool(wild).close()
    assert all(map(gone, pids))


async def test_a_worker_sees_no_secret_has_its_own_folder_and_session(
    opened: list[Benchmark], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_API_KEY", "precious")
    monkeypatch.setenv("PYTHON_TOKEN", "precious")
    monkeypatch.setenv("XDG_PLACE", "https://me:precious@host")
    monkeypatch.setenv("GAME_DATA", "here")
    monkeypatch.chdir(tmp_path)
    opened.append(isolated(load(WILD), WILD, pass_env=("GAME_DATA", "NO_SUCH")))
    async with playing(opened[0]) as env:
        seen = json.loads((await env.step("environ")).observation.text)
        file, here, session, typed = json.loads((await env.step("places")).observation.text)
    assert "precious" not in json.dumps(seen)
    assert (seen["PATH"], seen["GAME_DATA"]) == (os.environ["PATH"], "here")
    assert seen["INSTAR_LEASE"]
    assert file.startswith(seen["TMPDIR"])
    assert "instar-" in seen["TMPDIR"]
    assert (here, typed) == (str(tmp_path), "")
    assert session != os.getsid(0)
    assert os.path.exists(file)  # noqa: ASYNC240
    pool(opened[0]).close()
    assert not os.path.exists(os.path.dirname(seen["TMPDIR"]))  # noqa: ASYNC240


async def test_what_a_world_started_ends_with_its_worker(wild: Benchmark) -> None:
    async with playing(wild) as env:
        child = int((await env.step("daemon")).observation.text)
        assert not gone(child)
    pool(wild).close()
    assert gone(child)


async def test_a_pool_that_is_closed_in_the_middle_ends_the_episode_and_can_go_on(wild: Benchmark, state: Path) -> None:
    env = wild.make_env()
    await env.reset(wild.tasks("train")[0], 0)
    waiting = asyncio.ensure_future(env.step("hang"))
    await asyncio.sleep(0.05)
    pool(wild).close()
    with pytest.raises(EnvFault):
        await waiting
    await env.close()
    assert leases(state) == []
    async with playing(wild) as env:
        assert (await env.step("say on")).observation.text == "on"


async def test_a_benchmark_that_is_forgotten_takes_its_workers_along(state: Path) -> None:
    benchmark = isolated(load(WILD), WILD)
    async with playing(benchmark) as env:
        pid = await pid_of(env)
    del benchmark, env
    gc.collect()
    assert gone(pid)
    assert leases(state) == []


PLAY = f"""
import asyncio, random
from envs.registry import load
from envs.worker import isolated
benchmark = isolated(load({WILD!r}), {WILD!r})
async def play(action, *more):
    env = benchmark.make_env()
    await env.reset(benchmark.tasks("train")[0], 0)
    for each in more:
        print((await env.step(each)).observation.text, flush=True)
    ready()
    await env.step(action)
"""


def test_a_killed_parent_leaves_no_worker_even_one_that_computes(tmp_path: Path) -> None:
    with owner(tmp_path, PLAY + "asyncio.run(play('spin', 'daemon'))") as killed:
        assert len(leases(tmp_path)) == 2
        killed.kill()
        killed.wait()
        eventually(lambda: not reapers(tmp_path), "the reaper ends")
    assert leases(tmp_path) == []
    assert not [pid for pid in running("worker_main") if str(tmp_path) in Path(f"/proc/{pid}/environ").read_text()]


def test_at_the_end_of_python_workers_end_without_a_word(tmp_path: Path) -> None:
    code = "def ready(): pass\n" + PLAY + "try: asyncio.run(play('say', 'say'))\nfinally: print('end')"
    words = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "end"
    assert done.stderr == ""
    assert leases(tmp_path) == []


async def test_a_forked_child_that_ends_leaves_the_workers_of_its_parent(wild: Benchmark) -> None:
    async with playing(wild) as env:
        before = await pid_of(env)
    if (child := os.fork()) == 0:
        pool(wild)._finalizer()
        os._exit(0)
    os.waitpid(child, 0)  # noqa: ASYNC222
    async with playing(wild) as env:
        assert await pid_of(env) == before


async def test_a_snapshot_is_kept_where_the_world_is(wild: Benchmark) -> None:
    async with playing(wild) as env:
        early = await env.snapshot()
        await env.step("say more")
        assert "say more" not in str((await env.restore(early) or Observation("")).text)


async def test_tools_are_those_of_the_last_answer(wild: Benchmark) -> None:
    async with playing(wild) as env:
        assert list(env.tools()) == []
        await env.step("say tool")
        assert [(tool.name, tool.description) for tool in env.tools()] == [("count", "after 3")]
        await env.step("say other")
        assert env.tools()[0].description == "after 4"
        with pytest.raises(EnvFault, match="ValueError: at tools"):
            await env.step("fail at tools")
        await env.step("say")
        with pytest.raises(EnvFault, match="no tools today"):
            env.tools()


async def test_policies_play_in_the_worker_with_the_luck_they_are_given(opened: list[Benchmark]) -> None:
    opened.append(isolated(load("household:level=4"), "household:level=4"))
    opened.append(isolated(load(WILD), WILD, seconds=0.5))
    household, wild = opened
    env = household.make_env()
    for task in household.tasks("train", 3):
        seen = await env.reset(task, 0)
        policy = household.policies["expert"](env, random.Random(0))
        done = False
        while not done:
            step = await env.step(policy(seen))
            seen, done = step.observation, step.done
        assert step.reward == 1.0
    await env.close()
    async with playing(wild) as mine:
        policy = wild.policies["thoughtless"](mine, random.Random(3))
        seen = Observation("go", tuple("abcdefgh"))
        luck = random.Random(3)
        assert [policy(seen) for _ in range(20)] == [luck.choice(seen.choices or ()) for _ in range(20)]
        with pytest.raises(EnvFault, match="'int' object is not callable"):
            wild.policies["odd"](mine, luck)(seen)
        with pytest.raises(EnvFault, match="choose"):
            policy(Observation("spin"))
        with pytest.raises(EnvFault, match="before reset"):
            policy(seen)


async def test_a_world_that_no_other_process_can_make_is_a_clear_error(opened: list[Benchmark]) -> None:
    class Local(Env):
        pass

    tasks = load(WILD).splits
    for benchmark in (Benchmark("local", Local, tasks), Benchmark("lambda", lambda: Local(), tasks), load(WILD)):
        with pytest.raises(EnvError, match="Cure: give its spec"):
            isolated(benchmark)
    with pytest.raises(EnvError, match="plain values"):
        isolated(load(WILD), WILD, options={"x": object()})
    with pytest.raises(EnvError, match="1 or more"):
        isolated(load(WILD), WILD, workers=0)


@pytest.mark.parametrize(
    ("spec", "said"), [(DOORS, "means benchmark 'doors', not 'wild'"), ("no_such.py", "no file no_such.py")]
)
async def test_a_spec_that_gives_another_benchmark_or_none_is_a_fault_that_says_so(
    spec: str, said: str, opened: list[Benchmark], state: Path
) -> None:
    opened.append(isolated(load(WILD), spec))
    env = opened[0].make_env()
    with pytest.raises(EnvFault, match=said):
        await env.reset(opened[0].tasks("train")[0], 0)
    await env.close()
    assert leases(state) == []


async def test_options_make_the_world_in_the_worker_too(opened: list[Benchmark]) -> None:
    opened.append(isolated(load("household", level=2), "household", options={"level": 2}))
    assert await transcript(opened[0], 2) == await transcript(load("household:level=2"), 2)


async def test_without_a_spec_only_policies_that_can_be_imported_play(opened: list[Benchmark]) -> None:
    household = load("household")
    policies = {**household.policies, "mine": lambda env, rng: lambda seen: "look"}
    opened.append(isolated(Benchmark("mine", household.make_env, household.splits, policies=policies)))
    env = opened[0].make_env()
    seen = await env.reset(opened[0].tasks("train", 1)[0], 0)
    assert opened[0].policies["expert"](env, random.Random(0))(seen)
    with pytest.raises(EnvError, match="cannot import policy 'mine'"):
        opened[0].policies["mine"](env, random.Random(0))
    with pytest.raises(TypeError, match="only its own worlds"):
        opened[0].policies["expert"](household.make_env(), random.Random(0))
    await env.close()
