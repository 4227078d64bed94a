"""Each conformance rule catches an environment that is broken in just its way, and lets healthy ones pass."""

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

from envs import Benchmark, Env, EnvFault, Observation, Step, Task, Tool, fixed
from envs.check import Report, check
from envs.registry import load


class Lift(Env):
    """Ride to a floor; the seed says where the lift starts. Healthy."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.goal = int(str(task.data["floor"]))
        self.floor = random.Random(seed).choice([0, 9])
        self.over = False
        return self.see("You are in a lift.")

    def see(self, news: str) -> Observation:
        return Observation(f"{news} Floor {self.floor}.", ("up", "down", "open"), {"floor": self.floor})

    async def step(self, action: str) -> Step:
        if self.over:
            return Step(self.see("It is over."), done=True)
        if action not in ("up", "down", "open"):
            return Step(self.see(f"There is no button {action[:20]!r}."))
        if action != "open":
            self.floor += 1 if action == "up" else -1
            return Step(self.see("It moves."), reward=0.0)
        self.over = True
        return Step(self.see("It opens."), reward=float(self.floor == self.goal), done=True, info={"floor": self.floor})


def expert(env: Env, rng: random.Random) -> Callable[[Observation], str]:
    def act(seen: Observation) -> str:
        assert isinstance(env, Lift)
        return "open" if env.floor == env.goal else "up" if env.floor < env.goal else "down"

    return act


def task(split: str, number: int, **data: Any) -> Task:
    return Task(id=f"{split}-{number}", split=split, goal=f"Get out at floor {number}.", data={"floor": number, **data})


TASKS = [task("train", 2), task("train", 3), task("train", 4), task("test", 5), task("test", 6)]
HEALTHY = Benchmark("lift", Lift, fixed(TASKS), max_steps=12, policies={"expert": expert})


def with_env(env: type[Any], **fields: Any) -> Benchmark:
    return replace(HEALTHY, make_env=env, **fields)


def with_tasks(*tasks: Task) -> Benchmark:
    return replace(HEALTHY, splits=fixed(tasks))


class Words(Env):
    """No choices, a tool, no expert, rewards only at the end: healthy in the other ways."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.left = 3
        return Observation("Say a word, or call the tool.")

    def tools(self) -> list[Tool]:
        number = {"type": "object", "properties": {"n": {"type": "integer"}, "how": {"enum": ["up"]}}}
        return [Tool("add", "Adds.", number)]

    async def step(self, action: str) -> Step:
        await asyncio.sleep(0)
        self.left = max(0, self.left - 1)
        return Step(Observation(f"{self.left} left."), done=not self.left)


def test_a_healthy_environment_passes_every_rule() -> None:
    report = check(HEALTHY)
    assert report.ok
    assert {result.name: result.status for result in report.results if result.status != "passed"} == {
        "another process": "skipped"
    }, str(report)
    assert len(report.results) == 24


def test_a_world_of_free_text_and_tools_is_healthy_and_its_missing_parts_are_skipped() -> None:
    report = check(replace(HEALTHY, make_env=Words, policies={}))
    assert report.ok, str(report)
    assert {result.name for result in report.of("skipped")} == {"another process", "choices", "expert policy"}
    assert {result.name for result in report.of("warned")} == {"rewards"}, "it never gives a reward"


# ---------------------------------------------------------------- one broken environment for each way to break a rule


class NoStep:
    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation("")


class SyncReset(Lift):
    def reset(self, task: Task, seed: int) -> Observation:  # type: ignore[override]
        return Observation("")


class TextReset(Lift):
    async def reset(self, task: Task, seed: int) -> Any:
        return "You are in a lift."


class TupleStep(Lift):
    async def step(self, action: str) -> Any:
        said = await super().step(action)
        return said.observation, said.reward, said.done


class NanReward(Lift):
    async def step(self, action: str) -> Step:
        return replace(await super().step(action), reward=float("nan"))


class NumberDone(Lift):
    async def step(self, action: str) -> Step:
        said = await super().step(action)
        return replace(said, done=1 if said.done else 0)  # type: ignore[arg-type]


class TwinTools(Lift):
    def tools(self) -> list[Tool]:
        return [Tool("press", ""), Tool("press", "")]


class SchemalessTool(Lift):
    def tools(self) -> list[Tool]:
        return [Tool("press", "", {"button": "string"})]


class SmallSeeds(Lift):
    async def reset(self, task: Task, seed: int) -> Observation:
        numpy.random.RandomState(seed)  # takes 32 bits
        return await super().reset(task, seed)


class Surrogate(Lift):
    def see(self, news: str) -> Observation:
        return Observation("\ud83d", super().see(news).choices)


class Long(Lift):
    def see(self, news: str) -> Observation:
        return Observation("x" * 30_000, super().see(news).choices)


class VeryLong(Lift):
    def see(self, news: str) -> Observation:
        return Observation("x" * 300_000, super().see(news).choices)


class LiveData(Lift):
    def see(self, news: str) -> Observation:
        return replace(super().see(news), data={"floors": {1, 2}})


class SetInfo(Lift):
    async def step(self, action: str) -> Step:
        return replace(await super().step(action), info={"seen": {1}})


class TwinChoices(Lift):
    def see(self, news: str) -> Observation:
        return replace(super().see(news), choices=("up", "down", "open", "up"))


class EmptyChoice(Lift):
    def see(self, news: str) -> Observation:
        return replace(super().see(news), choices=("up", "down", "open", " "))


class NoChoiceLeft(Lift):
    def see(self, news: str) -> Observation:
        return replace(super().see(news), choices=())


class ChoiceNotAccepted(Lift):
    def see(self, news: str) -> Observation:
        return replace(super().see(news), choices=("up", "down", "open", "Sing"))

    async def step(self, action: str) -> Step:
        known = action in ("up", "down", "open")
        return await super().step(action) if known else Step(self.see("What?"))


class OwnDice(Lift):
    async def reset(self, task: Task, seed: int) -> Observation:
        return await super().reset(task, random.Random().getrandbits(60))


class GlobalDice(Lift):
    async def reset(self, task: Task, seed: int) -> Observation:
        return await super().reset(task, random.getrandbits(60))


class Clock(Lift):
    def see(self, news: str) -> Observation:
        return Observation(f"{time.perf_counter_ns()}", super().see(news).choices)


class SharedState(Lift):
    where: dict[str, int] = {"floor": 0}  # noqa: RUF012 - the fault under test

    @property
    def floor(self) -> int:
        return self.where["floor"]

    @floor.setter
    def floor(self, value: int) -> None:
        self.where["floor"] = value


_ONE = Lift()


class DirtyTask(Lift):
    async def reset(self, task: Task, seed: int) -> Observation:
        seen = await super().reset(task, seed)
        visits = int(str(task.data.get("visits", 0)))
        task.data["visits"] = visits + 1
        return replace(seen, text=f"{seen.text} Visit {visits}.")


class Leftover(Lift):
    moved = 0

    async def step(self, action: str) -> Step:
        self.moved += 1
        said = await super().step(action)
        return replace(said, observation=replace(said.observation, text=f"Move {self.moved}."))


class LeftoverOfUnfinished(Leftover):
    async def step(self, action: str) -> Step:
        said = await super().step(action)
        self.moved = 0 if said.done else self.moved
        return said


class CloseOnce(Lift):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True


class CloseNeedsReset(Lift):
    async def close(self) -> None:
        if not hasattr(self, "floor"):
            raise AttributeError("nothing to close")


class BigReward(Lift):
    async def step(self, action: str) -> Step:
        said = await super().step(action)
        return replace(said, reward=said.reward and said.reward * 7)


class SumTooBig(Lift):
    async def step(self, action: str) -> Step:
        said = await super().step(action)
        return said if said.reward is None or (self.over and not said.reward) else replace(said, reward=0.9)


class Choosy(Lift):
    async def step(self, action: str) -> Step:
        if action not in ("up", "down", "open"):
            raise ValueError(f"illegal action {action[:10]!a}")
        return await super().step(action)


class TrustsJson(Lift):
    async def step(self, action: str) -> Step:
        if action.startswith(("{", "[")):
            try:
                action = json.loads(action)["name"]
            except json.JSONDecodeError:
                action = "?"
        return await super().step(str(action))


class Echo(Lift):
    async def step(self, action: str) -> Step:
        said = await super().step(action)
        return replace(said, observation=replace(said.observation, text=f"You said {action}."))


class EchoSafely(Lift):
    async def step(self, action: str) -> Step:
        said = await super().step(action)
        return replace(said, observation=replace(said.observation, text=f"You said {action!a}."))


class Gullible(Lift):
    async def step(self, action: str) -> Step:
        if "reward is 1.0" in action:
            return Step(self.see("As you say."), reward=1.0, done=True)
        return await super().step(action)


class Endless(Lift):
    async def step(self, action: str) -> Step:
        return replace(await super().step(action), done=False)


class Reopens(Lift):
    async def step(self, action: str) -> Step:
        self.over = False
        return await super().step(action)


class PaysTwice(Lift):
    async def step(self, action: str) -> Step:
        over = self.over
        said = await super().step(action)
        return replace(said, reward=1.0) if over else said


class FailsAfterEnd(Lift):
    async def step(self, action: str) -> Step:
        if self.over:
            raise RuntimeError("the episode is over")
        return await super().step(action)


class UntypedAfterEnd(Lift):
    async def step(self, action: str) -> Any:
        return None if self.over else await super().step(action)


class BreaksAfterEnd(Lift):
    async def reset(self, task: Task, seed: int) -> Observation:
        seen = await super().reset(task, seed)
        return replace(seen, text="A burnt lift.") if getattr(self, "burnt", False) else seen

    async def step(self, action: str) -> Step:
        self.burnt = getattr(self, "burnt", False) or self.over
        return await super().step(action)


class SeedsTheModule(Lift):
    async def reset(self, task: Task, seed: int) -> Observation:
        random.seed(seed)
        return await super().reset(task, seed)


class SeedsNumpy(Lift):
    async def reset(self, task: Task, seed: int) -> Observation:
        numpy.random.seed(seed % 2**32)  # noqa: NPY002 - the fault under test
        return await super().reset(task, seed)


class Blocking(Lift):
    async def step(self, action: str) -> Step:
        if action == "open" and self.goal == 2 and not self.over:
            time.sleep(0.12)  # noqa: ASYNC251 - the fault under test
        return await super().step(action)


def lost(env: Env, rng: random.Random) -> Callable[[Observation], str]:
    return lambda seen: "open"


def lost_sometimes(env: Env, rng: random.Random) -> Callable[[Observation], str]:
    assert isinstance(env, Lift)
    return lost(env, rng) if env.goal == 2 else expert(env, rng)


def broken_policy(env: Env, rng: random.Random) -> Callable[[Observation], str]:
    return lambda seen: seen.no_such_field  # type: ignore[attr-defined, no-any-return]


class Easy(Lift):
    async def step(self, action: str) -> Step:
        said = await super().step(action)
        return replace(said, reward=1.0) if said.done and said.reward is not None else said


class OneInThree(Lift):
    """Over at the first move, which one in three loses."""

    async def step(self, action: str) -> Step:
        self.over = self.over or action in ("up", "down", "open")
        return Step(self.see("It is over."), reward=float(action != "down") if self.over else None, done=self.over)


class Unpaid(Lift):
    async def step(self, action: str) -> Step:
        return replace(await super().step(action), reward=None)


def drifting(n: int | None) -> list[Task]:
    return [task("train", random.randrange(10**9))]


def size_dependent(n: int | None) -> list[Task]:
    return TASKS[:3] if n is None else TASKS[:3][::-1][:n]


def global_dice_tasks(n: int | None) -> list[Task]:
    random.random()
    return TASKS[:3]


TEST = fixed(TASKS)["test"]
TWIN = Task(id="train-1", split="test", goal="g", data={"floor": 2})

BROKEN: list[tuple[Benchmark, str, str, str]] = [
    (replace(HEALTHY, name="my lift"), "fields", "failed", "name"),
    (replace(HEALTHY, reward_range=(1.0, 0.0)), "fields", "failed", "reward_range"),
    (replace(HEALTHY, success_at=2.0), "fields", "failed", "success_at"),
    (replace(HEALTHY, max_steps=0), "fields", "failed", "max_steps"),
    (replace(HEALTHY, splits={}), "splits", "failed", "no split"),
    (replace(HEALTHY, splits={"train": lambda n: []}), "splits", "failed", "empty"),
    (replace(HEALTHY, splits={"train": lambda n: ["a"]}), "splits", "failed", "is a str"),  # type: ignore[list-item]
    (replace(HEALTHY, splits={"dev": TEST}), "splits", "failed", "split='test'"),
    (replace(HEALTHY, splits={"test": list(TEST(None))}), "splits", "failed", "not callable"),  # type: ignore[dict-item]
    (with_tasks(task("train", 1)), "splits", "warned", "only the split"),
    (with_tasks(task("train", 1), task("train", 1), TASKS[3]), "unique ids", "failed", "'train-1' twice"),
    (with_tasks(task("train", 1), task("test", 1)), "disjoint splits", "failed", "goal and data"),
    (with_tasks(task("train", 1), TWIN), "disjoint splits", "failed", "has the id"),
    (with_tasks(TASKS[0], task("test", 5, odds=float("nan"))), "task JSON", "failed", "changed"),
    (with_tasks(TASKS[0], task("test", 5, name="\ud800")), "task JSON", "failed", "test-5"),
    (replace(HEALTHY, splits={"train": drifting, "test": TEST}), "stable tasks", "failed", "asked again"),
    (replace(HEALTHY, splits={"train": size_dependent, "test": TEST}), "stable tasks", "failed", "first 1 tasks"),
    (with_env(NoStep), "types", "failed", "without step, tools, close"),
    (with_env(SyncReset), "types", "failed", "not an awaitable"),
    (with_env(TextReset), "types", "failed", "returned a str"),
    (with_env(TupleStep), "types", "failed", "returned a tuple"),
    (with_env(NanReward), "types", "failed", "reward is nan"),
    (with_env(NumberDone), "types", "failed", "done is"),
    (with_env(TwinTools), "types", "failed", "twice or empty"),
    (with_env(SchemalessTool), "types", "failed", "no JSON schema"),
    (with_env(SmallSeeds), "types", "failed", "raised ValueError"),
    (replace(HEALTHY, policies={"mine": broken_policy}), "types", "failed", "policy 'mine'"),
    (replace(HEALTHY, make_env=lambda: int("x")), "types", "failed", "make_env() raised ValueError"),  # type: ignore[arg-type, return-value]
    (with_env(Surrogate), "text", "failed", "surrogate"),
    (with_env(Long), "text", "warned", "30000 characters"),
    (with_env(VeryLong), "text", "failed", "300000 characters"),
    (with_env(LiveData), "plain data", "failed", "data cannot be written"),
    (with_env(SetInfo), "plain data", "failed", "info cannot be written"),
    (with_env(TwinChoices), "choices", "failed", "offered twice"),
    (with_env(EmptyChoice), "choices", "failed", "' ' is offered"),
    (with_env(NoChoiceLeft), "choices", "failed", "no choice is left"),
    (with_env(ChoiceNotAccepted), "choices", "warned", "'Sing'"),
    (with_env(OwnDice), "determinism", "failed", "and then"),
    (with_env(GlobalDice), "determinism", "failed", "and then"),
    (with_env(Clock), "determinism", "failed", "and then"),
    (with_env(DirtyTask), "determinism", "failed", "Visit"),
    (with_env(SharedState), "separate instances", "failed", "beside another episode"),
    (replace(HEALTHY, make_env=lambda: _ONE), "separate instances", "failed", "one object twice"),
    (with_env(Leftover), "fresh reset", "failed", "episode: "),
    (with_env(LeftoverOfUnfinished), "fresh reset", "failed", "an unfinished episode"),
    (with_env(CloseOnce), "types", "passed", ""),
    (with_env(CloseOnce), "close", "failed", "second close() before reset"),
    (with_env(CloseNeedsReset), "close", "failed", "close() before reset"),
    (with_env(BigReward), "rewards", "failed", "reward is 7"),
    (with_env(Unpaid), "rewards", "warned", "no episode gave"),
    (with_env(SumTooBig), "rewards", "passed", ""),
    (with_env(SumTooBig), "score", "failed", "the sum of its rewards"),
    (replace(HEALTHY, metric=lambda rewards: rewards[-1]), "score", "failed", "empty episode raised IndexError"),
    (with_env(Choosy), "illegal actions", "failed", "raised ValueError"),
    (with_env(TrustsJson), "illegal actions", "failed", "raised"),
    (with_env(Echo), "illegal actions", "warned", "100010 characters"),
    (with_env(EchoSafely), "illegal actions", "warned", "characters"),
    (with_env(Gullible), "illegal actions", "failed", "nonsense solved"),
    (with_env(Endless), "end of episode", "failed", "the expert's episode is not done"),
    (with_env(Endless, policies={}), "end of episode", "warned", "none of 4 episodes"),
    (with_env(Reopens), "after the end", "failed", "done is False"),
    (with_env(PaysTwice), "after the end", "failed", "reward 1.0"),
    (with_env(FailsAfterEnd), "after the end", "passed", ""),
    (with_env(UntypedAfterEnd), "after the end", "failed", "returned a NoneType"),
    (with_env(BreaksAfterEnd), "after the end", "failed", "burnt"),
    (with_env(SeedsTheModule), "global random state", "failed", "an episode changed"),
    (with_env(SeedsNumpy), "global random state", "failed", "numpy.random"),
    (
        replace(HEALTHY, splits={"train": global_dice_tasks, "test": TEST}),
        "global random state",
        "failed",
        "making tasks",
    ),
    (with_env(Blocking), "event loop", "warned", "stood still"),
    (replace(HEALTHY, policies={"expert": lost}), "expert policy", "failed", "solves 0 of 4"),
    (replace(HEALTHY, policies={"expert": lost_sometimes}), "expert policy", "warned", "solves 3 of 4"),
    (with_env(Easy), "random policy", "warned", "solved all 30 episodes"),
]


@pytest.mark.parametrize(
    ("benchmark", "rule", "status", "said"), BROKEN, ids=[f"{row[1]}-{number}" for number, row in enumerate(BROKEN)]
)
def test_a_broken_environment_is_caught_by_its_rule(benchmark: Benchmark, rule: str, status: str, said: str) -> None:
    result = check(benchmark)[rule]
    assert result.status == status, str(result)
    assert said in result.message
    assert bool(result.cure) == (status in ("failed", "warned")), "every finding has a cure"


def test_four_lucky_random_episodes_are_no_alarm() -> None:
    said = [check(with_env(OneInThree, policies={}), seed=seed)["random policy"] for seed in range(12)]
    assert {result.status for result in said} == {"passed"}
    assert any(not result.message.endswith("over 4 episodes") for result in said)  # in those, more had to be played


def test_every_rule_has_an_environment_that_breaks_it() -> None:
    caught = {rule for _, rule, status, _ in BROKEN if status != "passed"}
    assert {result.name for result in check(HEALTHY).results} == caught | {"another process"}, "which has its own tests"


SETS = """
from envs import Benchmark, Env, Observation, Step, Task, fixed

class Sets(Env):
    async def reset(self, task, seed):
        self.left = [f"a{n}" for n in range(20)]
        return Observation("Take one.", tuple(ORDER(self.left)))
    async def step(self, action):
        return Step(Observation("Taken."), float(action == "a7"), True)

names = list(ORDERED({f"b{n}" for n in range(20)}))
tasks = [Task(id=f"{s}-{i}", split=s, goal=f"{s} {n}") for s in ("train", "test") for i, n in enumerate(names)]
print("loaded")
benchmark = Benchmark("sets", Sets, fixed(tasks))
"""


@pytest.mark.parametrize(
    ("order", "ordered", "said"),
    [("set", "sorted", "choices"), ("sorted", "set", "another task number"), ("sorted", "sorted", "")],
)
def test_what_depends_on_the_order_of_a_set_is_caught_by_another_process(
    tmp_path: Path, order: str, ordered: str, said: str
) -> None:
    path = tmp_path / "sets.py"
    path.write_text(SETS.replace("ORDERED", ordered).replace("ORDER", order))
    result = check(load(str(path)), spec=str(path))["another process"]
    assert result.status == ("failed" if said else "passed"), str(result)
    assert said in result.message
    assert bool(result.cure) == bool(said)


def test_what_another_process_cannot_load_is_a_failure() -> None:
    result = check(HEALTHY, spec="no_such_module_here:benchmark")["another process"]
    assert result.status == "failed"
    assert "no_such_module_here" in result.message


def test_what_an_environment_raises_is_told_with_the_file_and_line_of_its_own_code() -> None:
    message = check(with_env(Choosy))["illegal actions"].message
    assert f"{__file__}:" in message
    assert "step('')" in message


def test_a_broken_world_is_undecided_and_neither_passed_nor_failed() -> None:
    class Down(Lift):
        async def reset(self, task: Task, seed: int) -> Observation:
            raise EnvFault("the server is gone")

    report = check(with_env(Down))
    assert report["types"].status == "undecided"
    assert "the server is gone" in report["types"].message
    assert report["determinism"].status == "skipped"
    assert not report.ok
    assert not report.of("failed")


def test_an_environment_that_never_answers_is_undecided_when_the_time_is_over() -> None:
    class Sleeper(Lift):
        async def step(self, action: str) -> Step:
            await asyncio.sleep(3600)
            return await super().step(action)

    start = time.monotonic()
    report = check(with_env(Sleeper), seconds=0.2)
    assert time.monotonic() - start < 5
    assert report["types"].status == "undecided"
    assert report["fields"].status == "passed"
    assert not report.ok


def test_an_environment_that_blocks_for_ever_is_reported_with_the_line_on_which_it_stands() -> None:
    release = threading.Event()

    class Stuck(Lift):
        async def step(self, action: str) -> Step:
            release.wait()
            return await super().step(action)

    report = check(with_env(Stuck), seconds=0.2)
    release.set()
    assert report["types"].status == "undecided"
    assert "it stands at" in report["types"].message
    assert report.results[-1].status == "undecided"
    assert len(report.results) == 24


def test_check_runs_inside_a_running_loop() -> None:
    async def inside() -> Report:
        return check(HEALTHY, episodes=1)

    assert asyncio.run(inside()).ok


def test_check_leaves_the_global_random_state_alone() -> None:
    before = random.getstate()
    check(HEALTHY, episodes=1)
    assert random.getstate() == before


def test_the_same_seed_gives_the_same_report() -> None:
    first, second = (check(HEALTHY, seed=3) for _ in range(2))
    assert [(r.name, r.status) for r in first.results] == [(r.name, r.status) for r in second.results]
    assert first["types"].message == second["types"].message


def test_a_report_prints_what_was_seen_and_the_cure_and_survives_json() -> None:
    report = check(with_env(BigReward))
    text = str(report)
    assert "failed    rewards" in text
    assert "cure: Correct the reward" in text
    assert "not good: " in text.splitlines()[-1]
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_nonsense_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="episodes=0"):
        check(HEALTHY, episodes=0)
