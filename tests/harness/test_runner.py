"""The runner plays each episode once, counts it once, and tells missing data from failure."""

import asyncio
import math
import random
import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from worlds import agent, corridor, no_trouble, outcome

from envs import Benchmark, Observation, Step
from envs.env import EnvFault
from harness.agent import PolicyPlayer
from harness.journal import Journal, JournalError
from harness.model import Completion, ContextOverflow, Message, Model, ModelFault, ModelRefused, Request, Usage
from harness.models.scripted import ScriptedModel
from harness.runner import Job, Progress, Runner, RunStopped
from harness.trajectory import Trajectory


class Counted(ScriptedModel):
    """Goes right, and counts how often it was really asked."""

    def __init__(self, fn: Any = lambda request: "right") -> None:
        super().__init__(fn)
        self.asked = 0

    async def complete(self, request: Request) -> Completion:
        self.asked += 1
        return await super().complete(request)


class Free:
    """A model that is held to no choices."""

    name = "free"

    def __init__(self, answer: Completion | Exception) -> None:
        self.answer, self.asked = answer, 0

    async def complete(self, request: Request) -> Completion:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def close(self) -> None:
        """Nothing to free."""


def play(
    folder: Path, model: Model, benchmark: Benchmark | None = None, *, settle: bool = True, arm: str = "agent",
    phase: str = "run", toml: dict[str, str] | None = None, loop: str = "choice", numbers: int = 1, lost: bool = False,
    **rest: Any,
) -> list[Trajectory]:  # fmt: skip
    world = benchmark or corridor()
    player = agent(model, loop, toml=toml)
    jobs = [Job(player, task, n, arm, phase) for n in range(numbers) for task in world.tasks("valid")]
    with Journal(folder) as journal:
        runner = Runner(world, journal, **{"retries": 0, **rest})
        return outcome(runner, jobs) if lost else asyncio.run(runner.run(jobs, settle=settle))


def test_results_come_in_the_order_of_the_jobs_whichever_ends_first(tmp_path: Path) -> None:
    done = [asyncio.Event() for _ in range(5)]
    done[4].set()

    async def last_first(request: Request) -> str:
        number = int(request.prompt.split("end of ")[1][0])
        await done[number].wait()
        if "at 2" in request.prompt and number:
            done[number - 1].set()
        return "right"

    watched: list[int] = []
    world = corridor(tasks=5)
    player = agent(ScriptedModel(last_first), step="{goal}: {observation}")
    with Journal(tmp_path) as journal:
        runner = Runner(world, journal, concurrency=5, watch=lambda p: watched.append(p.done))
        found = asyncio.run(runner.run([Job(player, task) for task in world.tasks("valid")]))
        ended = [event.key for event in journal.events("episode")]
    assert [t.task for t in found] == ["c0", "c1", "c2", "c3", "c4"]
    assert ended == [f"run/agent/c{n}/0" for n in (4, 3, 2, 1, 0)]
    assert watched == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_as_many_episodes_play_at_once_as_were_asked_for(tmp_path: Path, concurrency: int) -> None:
    now, most = 0, 0

    async def slow(request: Request) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1
        return "right"

    play(tmp_path, ScriptedModel(slow), concurrency=concurrency, toml={"model": "temperature = 1.0"})
    assert most == concurrency


def test_a_finished_run_is_served_from_the_journal_without_a_call(tmp_path: Path) -> None:
    first, second = Counted(), Counted()
    found = play(tmp_path, first, concurrency=1)
    assert [t.score for t in found] == [1.0] * 8
    assert first.asked == 3  # at temperature 0 equal questions are asked once, all corridors look alike
    assert sum(t.calls for t in found) == 24
    assert sum(t.cached for t in found) == 21
    progress: list[Progress] = []
    assert play(tmp_path, second, watch=progress.append) == found
    assert second.asked == 0
    assert (progress[-1].done, progress[-1].total, progress[-1].scores) == (8, 8, 8.0)


@pytest.mark.parametrize("cut", [1, 2, 7, 13, 23])
def test_a_cancelled_run_goes_on_and_repeats_and_counts_nothing_twice(tmp_path: Path, cut: int) -> None:
    hot = {"model": "temperature = 1.0"}  # every request has its own seed, so no answer serves two episodes

    def answer(request: Request) -> str:
        return random.Random(request.seed).choice(["right", "right", "left"])

    whole = Counted(answer)
    expected = play(tmp_path / "whole", whole, toml=hot, concurrency=3)

    async def cancelled() -> None:
        task: asyncio.Task[Any]

        def pull(request: Request) -> str:
            if first.asked == cut:
                task.cancel()
            return answer(request)

        first = Counted(pull)
        player, world = agent(first, toml=hot), corridor()
        with Journal(tmp_path / "cut") as journal:
            runner = Runner(world, journal, retries=0, concurrency=3)
            task = asyncio.ensure_future(runner.run([Job(player, t) for t in world.tasks("valid")]))
            with pytest.raises(asyncio.CancelledError):
                await task
        asked.append(first.asked)

    asked: list[int] = []
    asyncio.run(cancelled())
    rest = Counted(answer)
    found = play(tmp_path / "cut", rest, toml=hot, concurrency=3)
    assert asked[0] < whole.asked
    assert asked[0] + rest.asked <= whole.asked + 3  # what was in flight, one for each worker, was not yet written down
    assert plain(found) == plain(expected)
    with Journal(tmp_path / "cut") as journal, Journal(tmp_path / "whole") as other:
        assert journal.digest() == other.digest()
        assert list(journal.trajectories()) == sorted(
            found, key=lambda t: [e.id for e in journal.trajectories()].index(t.id)
        )


def plain(found: list[Trajectory]) -> list[dict[str, Any]]:
    """Trajectories without times, and with what was paid and what was not."""
    return [
        {
            **t.model_dump(exclude={"started", "seconds", "turns"}),
            "turns": [(turn.action, turn.observation, turn.reward, [c.cached for c in turn.calls]) for turn in t.turns],
        }
        for t in found
    ]


def test_a_call_that_a_lost_try_paid_for_is_counted_once_as_paid(tmp_path: Path) -> None:
    falls = Counter[str]()

    def trouble(where: str, task: str) -> None:
        falls[where] += 1
        if where == "step" and falls["step"] == 3:
            raise EnvFault("the container died")

    model = Counted(lambda request: "left" if "at 0" in request.prompt else "right")
    (found,) = play(tmp_path, model, corridor(trouble, tasks=1), retries=1)
    assert model.asked == 2
    assert [[call.cached for call in turn.calls] for turn in found.turns] == [[False], [False], *[[True]] * 4]
    with Journal(tmp_path) as journal:
        assert journal.trajectory(found.id) == found
        assert sum(1 for _ in journal.events("start")) == 2


def test_the_journal_is_the_same_at_any_concurrency(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        return random.Random(request.seed).choice(["right", "left"])

    digests = set()
    for concurrency in (1, 3, 8):
        folder = tmp_path / str(concurrency)
        play(folder, ScriptedModel(answer), concurrency=concurrency, numbers=3, toml={"model": "temperature = 1.0"})
        with Journal(folder, readonly=True) as journal:
            digests.add(journal.digest())
    assert len(digests) == 1
    play(tmp_path / "other", ScriptedModel(answer), numbers=3, toml={"model": "temperature = 1.0"}, seed=1)
    with Journal(tmp_path / "other", readonly=True) as journal:
        assert journal.digest() not in digests


def test_episodes_leave_the_global_random_generator_alone(tmp_path: Path) -> None:
    random.seed(1)
    state = random.getstate()
    play(tmp_path, Counted(), toml={"model": "temperature = 1.0"})
    assert random.getstate() == state


def test_two_arms_share_the_luck_of_a_task_and_two_episodes_do_not(tmp_path: Path) -> None:
    (one,) = play(tmp_path, Counted(), corridor(tasks=1), arm="a")
    (two,) = play(tmp_path, Counted(), corridor(tasks=1), arm="b")
    first, second = play(tmp_path, Counted(), corridor(tasks=1), arm="c", numbers=2)
    assert one.seed == two.seed == first.seed != second.seed


def test_a_world_that_breaks_is_tried_again(tmp_path: Path) -> None:
    broken = Counter[str]()

    def trouble(where: str, task: str) -> None:
        broken[task] += where == "reset"
        if where == "reset" and broken[task] == 1:
            raise EnvFault("no container")

    found = play(tmp_path, Counted(), corridor(trouble, tasks=2), retries=1)
    assert [(t.score, t.status) for t in found] == [(1.0, "done")] * 2
    assert all(times == 2 for task, times in broken.items() if task)


def raising(where: str, error: Exception) -> Any:
    def trouble(place: str, task: str) -> None:
        if place == where:
            raise error

    return trouble


def answering(where: str, answer: object) -> Any:
    return lambda place, task: answer if place == where else None


async def forever(request: Request) -> str:
    await asyncio.Event().wait()
    return "right"


GAPS: dict[str, tuple[Model, Any, str]] = {
    "the service is down": (Free(ModelFault("503")), no_trouble, "model: 503"),
    "the world says so": (Counted(), raising("step", EnvFault("lost")), "environment: lost"),
    "reset raises anything": (Counted(), raising("reset", KeyError("k")), "environment: KeyError: 'k' ("),
    "step raises anything": (Counted(), raising("step", ZeroDivisionError("z")), "environment: ZeroDivisionError: z ("),
    "step times out": (Counted(), raising("step", TimeoutError("t")), "environment: TimeoutError: t ("),
    "the world cannot be made": (Counted(), raising("make", OSError("o")), "environment: OSError: o ("),
    "reset returns nothing": (
        Counted(),
        answering("reset", "hello"),
        "environment: reset returned a str, no Observation",
    ),
    "step returns nothing": (Counted(), answering("step", "hello"), "environment: step returned a str, no Step"),
    "the reward is no number": (Counted(), answering("step", Step(None, 1.0)), "environment: step returned a Step, no"),
    "time-out": (ScriptedModel(forever), no_trouble, "time-out: the model alone kept the episode waiting for half of"),
    "the info is no mapping": (
        Counted(),
        answering("step", Step(Observation("x"), info=["no"])),  # type: ignore[arg-type]
        "environment: step returned the info ['no'], which is no mapping",
    ),
}


@pytest.mark.parametrize("fault", GAPS)
def test_what_the_infrastructure_breaks_is_a_gap_with_its_reason(tmp_path: Path, fault: str) -> None:
    model, trouble, reason = GAPS[fault]
    toml = {"limits": "seconds = 0.05"} if fault == "time-out" else None
    for fault_ in (model.answer,) if isinstance(model, Free) else ():
        fault_.transient = False  # type: ignore[union-attr]
    (found,) = play(tmp_path, model, corridor(trouble, tasks=1), toml=toml, lost=True)
    assert (found.status, found.score) == ("gap", None)
    assert found.reason.startswith(reason)


@pytest.mark.parametrize("reward", [math.nan, math.inf, "1"])
def test_a_reward_that_is_no_finite_number_is_a_gap_and_never_a_score(tmp_path: Path, reward: Any) -> None:
    trouble = answering("step", Step(Observation("x"), reward, True))
    (found,) = play(tmp_path, Counted(), corridor(trouble, tasks=1), lost=True)
    assert (found.status, found.score) == ("gap", None)
    assert f"the reward {reward!r}" in found.reason


def test_a_world_that_does_not_close_keeps_its_score_and_is_told(tmp_path: Path) -> None:
    (found,) = play(tmp_path, Counted(), corridor(raising("close", OSError("stuck")), tasks=1))
    assert (found.status, found.score) == ("done", 1.0)
    assert "did not close: OSError: stuck" in found.reason


def test_a_models_faults_are_retried_and_the_call_is_counted_once(tmp_path: Path) -> None:
    tries = Counter[str]()

    def flaky(request: Request) -> str:
        tries[request.prompt] += 1
        if tries[request.prompt] < 3:
            raise ModelFault("429", retry_after=0.001)
        return "right"

    (found,) = play(tmp_path, ScriptedModel(flaky), corridor(tasks=1))
    assert (found.score, found.calls) == (1.0, 3)
    assert set(tries.values()) == {3}


def test_a_run_whose_first_episodes_are_all_lost_stops_and_says_why(tmp_path: Path) -> None:
    model = Free(ModelFault("no route to host"))
    model.answer.transient = False  # type: ignore[union-attr]
    with pytest.raises(RunStopped, match=r"the first 3 episodes were all lost: model: no route to host\. Cure: "):
        play(tmp_path, model, concurrency=1)
    assert model.asked == 3
    with Journal(tmp_path) as journal:
        assert journal.last("batch", "run/agent") is None
    assert [t.score for t in play(tmp_path, Counted())] == [1.0] * 8  # a stopped batch is not settled


def test_a_run_with_some_successes_goes_on_over_lost_episodes(tmp_path: Path) -> None:
    def trouble(where: str, task: str) -> None:
        if where == "reset" and task != "c0":
            raise EnvFault("lost")

    found = play(tmp_path, Counted(), corridor(trouble), concurrency=1)
    assert [t.status for t in found] == ["done"] + ["gap"] * 7


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_batch_that_lost_all_stops_the_run_however_small_and_is_not_settled(tmp_path: Path, tasks: int) -> None:
    world = corridor(raising("step", EnvFault("gone")), tasks=tasks)
    with pytest.raises(RunStopped, match=r"lost: environment: gone\. Cure: "):
        play(tmp_path, Counted(), world)
    with Journal(tmp_path) as journal:
        assert journal.last("batch", "run/agent") is None
    assert [t.score for t in play(tmp_path, Counted(), corridor(tasks=tasks))] == [1.0] * tasks


def test_losses_are_counted_over_the_batches_of_a_run(tmp_path: Path) -> None:
    falls = {"c1", "c2"}

    def trouble(where: str, task: str) -> None:
        if where == "reset" and task in falls:
            raise EnvFault("gone")

    world = corridor(trouble, tasks=5)
    player, tasks = agent(Counted()), world.tasks("valid")

    async def batches() -> None:
        await runner.run([Job(player, task) for task in tasks[:3]], settle=False)
        falls.update({"c3", "c4"})
        await runner.run([Job(player, task) for task in tasks[3:]], settle=False)

    with Journal(tmp_path) as journal:
        runner = Runner(world, journal, retries=0, concurrency=1)
        with pytest.raises(RunStopped, match="the last 3 episodes were all lost"):
            asyncio.run(batches())
        assert journal.trajectory("run/agent/c4/0") is None


def test_a_prompt_that_the_provider_always_refuses_does_not_hold_up_a_run_that_goes_well(tmp_path: Path) -> None:
    def filtered(request: Request) -> str:
        if "end of 3" in request.prompt:
            raise ModelFault("the provider refused this prompt", transient=False)
        return "right"

    world = corridor(tasks=4)
    player = agent(ScriptedModel(filtered), step="{goal}: {observation}")

    async def batches() -> list[str]:
        tasks = world.tasks("valid")
        first = await runner.run([Job(player, task) for task in tasks[:3]])
        last = await runner.run([Job(player, tasks[3], phase="more")])
        return [t.status for t in (*first, *last)]

    with Journal(tmp_path) as journal:
        runner = Runner(world, journal, retries=0)
        assert asyncio.run(batches()) == ["done"] * 3 + ["gap"]


def leaving(error: BaseException) -> Any:
    def trouble(where: str, task: str) -> None:
        if where == "step" and task == "c1":
            raise error

    return trouble


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), BaseException("odd")])
def test_an_environment_that_exits_or_cancels_loses_its_own_episode_only(tmp_path: Path, error: BaseException) -> None:
    found = play(tmp_path, Counted(), corridor(leaving(error), tasks=3), toml={"model": "temperature = 1.0"})
    assert [t.status for t in found] == ["done", "gap", "done"]
    assert found[1].reason.startswith(f"environment: {type(error).__name__}: ")


HUGE = 10**5000  # no text can hold it either
ODD_STEPS: dict[str, tuple[Any, str]] = {
    "a reward that no float holds": (Step(Observation("x"), HUGE), "the reward a int, which is no finite number"),
    "a text that is none": (Step(Observation(5)), "an Observation whose text is a int"),  # type: ignore[arg-type]
    "choices that are numbers": (Step(Observation("x", (1, 2))), "the choices (1, 2), which are no"),  # type: ignore[arg-type]
    "choices that are one text": (Step(Observation("x", "ab")), "the choices 'ab', which are no"),  # type: ignore[arg-type]
    "an end that is no truth": (Step(Observation("x"), 0.0, "no"), "done = 'no', which is neither"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("odd", ODD_STEPS)
def test_what_comes_over_the_border_is_checked(tmp_path: Path, odd: str) -> None:
    step, reason = ODD_STEPS[odd]

    def trouble(where: str, task: str) -> Any:
        return step if where == "step" and task == "c1" else None

    found = play(tmp_path, Counted(), corridor(trouble, tasks=3))
    assert [t.status for t in found] == ["done", "gap", "done"]
    assert f"step returned {reason}" in found[1].reason


def test_every_real_number_is_a_reward(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    for number, reward in enumerate((numpy.float32(0.5), numpy.int64(1), Fraction(1, 4), True)):
        world = corridor(answering("step", Step(Observation("x"), reward, numpy.bool_(True))), tasks=1)
        (found,) = play(tmp_path / str(number), Counted(), world)
        assert (type(found.score), found.score) == (float, float(reward))


def bad_metric(rewards: Any) -> float:
    raise KeyError("no such reward")


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        (bad_metric, "KeyError: 'no such reward'"), (lambda rewards: "1", "the metric gave a str"),
        (lambda rewards: 7.0, "the metric gave 7, which is outside of reward_range (0.0, 1.0)"),
    ],
)  # fmt: skip
def test_a_score_that_is_none_is_found_at_the_first_episode_and_not_after_all_were_paid(
    tmp_path: Path, metric: Any, reason: str
) -> None:
    model = Counted()
    with pytest.raises(RunStopped) as caught:
        play(tmp_path, model, replace(corridor(), metric=metric), concurrency=1, toml={"model": "temperature = 1.0"})
    assert reason in str(caught.value)
    assert model.asked == 9  # three episodes


def silent(choices: Any, *tasks: str) -> Any:
    def trouble(where: str, task: str) -> Any:
        return Observation("You see nothing.", choices) if where == "reset" and task in tasks else None

    return trouble


@pytest.mark.parametrize(("choices", "task"), [((), "c0"), ((), "c2"), (None, "c2")])
def test_a_task_without_choices_in_a_world_that_has_some_is_a_gap(tmp_path: Path, choices: Any, task: str) -> None:
    found = play(tmp_path, Counted(), corridor(silent(choices, task), tasks=3), concurrency=1)
    assert [t.status == "gap" for t in found] == [f"c{n}" == task for n in range(3)]
    assert f"task {task}: the environment offers no choices" in next(t.reason for t in found if t.status == "gap")


def test_a_policy_of_a_benchmark_that_breaks_is_the_environments_fault(tmp_path: Path) -> None:
    world = corridor(tasks=1)
    for number, policy in enumerate((lambda observation: 1 / 0, lambda observation: 5)):
        player = PolicyPlayer("expert", agent(Counted()).harness, lambda env, rng, policy=policy: policy)
        with Journal(tmp_path / str(number)) as journal:
            (found,) = outcome(Runner(world, journal, retries=0), [Job(player, world.tasks("valid")[0])])
        assert found.reason.startswith(("environment: ZeroDivisionError", "environment: the policy 'expert' chose 5"))


def test_a_refused_request_stops_the_run_at_once(tmp_path: Path) -> None:
    model = Free(ModelRefused("wrong key"))
    with pytest.raises(ModelRefused, match="wrong key"):
        play(tmp_path, model, concurrency=2)
    assert model.asked <= 2
    assert [t.score for t in play(tmp_path, Counted(), arm="again")] == [1.0] * 8


@pytest.mark.parametrize(("settle", "asks"), [(False, True), (True, False)])
def test_gaps_are_filled_by_the_next_call_unless_the_batch_was_built_upon(
    tmp_path: Path, settle: bool, asks: bool
) -> None:
    bad = {"c1", "c3"}

    def trouble(where: str, task: str) -> None:
        if where == "reset" and task in bad:
            raise EnvFault("lost")

    world = corridor(trouble)
    first = play(tmp_path, Counted(), world, settle=settle)
    assert [t.task for t in first if t.status == "gap"] == ["c1", "c3"]
    bad.clear()
    second = play(tmp_path, Counted(), world, settle=settle)
    assert [t.status for t in second].count("gap") == (0 if asks else 2)
    assert [t for t in second if t.task not in ("c1", "c3")] == [t for t in first if t.task not in ("c1", "c3")]
    assert sum(e.task is not None for e in world.make_env.made) == (10 if asks else 8)  # type: ignore[attr-defined]


def test_another_arm_of_a_settled_phase_is_not_settled_by_it(tmp_path: Path) -> None:
    bad = {"c1"}

    def trouble(where: str, task: str) -> None:
        if where == "reset" and task in bad:
            raise EnvFault("lost")

    play(tmp_path, Counted(), corridor(trouble), arm="a", phase="round-0")
    with Journal(
        tmp_path
    ) as journal:  # killed while the second arm played: its gap is in the journal, its batch is not
        world = corridor(trouble)
        job = Job(agent(Counted()), world.tasks("valid")[1], 0, "b", "round-0")
        outcome(Runner(world, journal, retries=0), [job], settle=False)
    bad.clear()
    found = play(tmp_path, Counted(), corridor(trouble), arm="b", phase="round-0")
    assert [t.status for t in found] == ["done"] * 8


def test_a_model_that_talks_nonsense_ends_its_episode_with_a_score_and_no_gap(tmp_path: Path) -> None:
    model = Free(Completion(text="I am a teapot", usage=Usage(dollars=0.0)))
    (found,) = play(tmp_path, model, corridor(tasks=1, max_steps=50), toml={"limits": "invalid = 4"})
    assert (found.status, found.score, len(found.turns)) == ("truncated", 0.0, 4)
    assert "no usable action 4 times in a row" in found.reason
    assert all(turn.invalid for turn in found.turns)


def test_steps_that_do_not_suffice_end_the_episode_with_a_score(tmp_path: Path) -> None:
    (found,) = play(tmp_path, Counted(lambda request: "left"), corridor(tasks=1))
    assert (found.status, found.score, found.reason) == ("truncated", 0.0, "6 steps were not enough")
    (found,) = play(tmp_path, Counted(), corridor(tasks=1), arm="b", toml={"limits": "steps = 2"})
    assert (found.status, found.score, found.calls) == ("truncated", 0.0, 2)


def test_a_prompt_that_does_not_fit_is_the_harnesss_own_failure(tmp_path: Path) -> None:
    (found,) = play(tmp_path, Free(ContextOverflow("9 of 8 tokens")), corridor(tasks=1))
    assert (found.status, found.score) == ("truncated", 0.0)
    assert "did not fit" in found.reason


def test_a_token_limit_ends_the_episode_with_a_score(tmp_path: Path) -> None:
    answer = Completion(text="right", usage=Usage(prompt_tokens=9, output_tokens=1, dollars=0.0))
    (found,) = play(tmp_path, Free(answer), corridor(tasks=1), toml={"limits": "tokens = 15"})
    assert (found.status, found.score, found.tokens) == ("truncated", 0.0, 20)
    assert found.reason == "the episode used its 15 tokens"


def test_calls_after_the_last_action_are_written_down_and_counted(tmp_path: Path) -> None:
    asked = 0

    def then_fail(request: Request) -> Completion:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise ModelFault("gone", retry_after=0.0001)
        return Completion(text="", tool_calls=({"id": "1", "name": "read_skill", "arguments": "{}"},))

    model = ScriptedModel(then_fail)
    player = agent(model, "tools", **{"skills/a/SKILL.md": "---\nname: a\ndescription: d\n---\nx"})
    world = corridor(tasks=1)
    with Journal(tmp_path) as journal:
        (found,) = outcome(Runner(world, journal), [Job(player, world.tasks("valid")[0])])
        assert (found.status, len(found.turns), found.calls) == ("gap", 0, 1)
        assert journal.trajectory(found.id) == found


def test_an_episode_that_another_harness_played_is_refused(tmp_path: Path) -> None:
    play(tmp_path, Counted())
    with pytest.raises(JournalError, match=r"run/agent/c0/0 was played by harness \w+ with scripted, not by \w+"):
        play(tmp_path, Counted(), toml={"limits": "steps = 3"})
    with pytest.raises(JournalError, match=r"not by .* with free"):
        play(tmp_path, Free(Completion(text="right")))


def test_two_jobs_with_one_name_are_an_error(tmp_path: Path) -> None:
    world = corridor()
    job = Job(agent(Counted()), world.tasks("valid")[0])
    with Journal(tmp_path) as journal, pytest.raises(ValueError, match="two jobs have the same key: run/agent/c0/0"):
        asyncio.run(Runner(world, journal).run([job, job]))


def test_a_batch_of_nothing_is_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        assert asyncio.run(Runner(corridor(), journal).run([])) == []
        assert list(journal.events()) == []


def test_a_wanderer_asks_no_model_and_words_what_it_does(tmp_path: Path) -> None:
    world = corridor(tasks=3, max_steps=30)
    player = PolicyPlayer("wander", agent(Counted()).harness)
    with Journal(tmp_path) as journal:
        found = asyncio.run(Runner(world, journal).run([Job(player, t) for t in world.tasks("valid")]))
    assert [t.calls for t in found] == [0, 0, 0]
    assert {turn.move for t in found for turn in t.turns} == {"left", "right"}
    assert found[0].turns[0].situation == "Goal: reach the end of 0\nNow: You are at 0."
    assert len({tuple(turn.action for turn in t.turns) for t in found}) > 1  # each task has luck of its own


def test_an_episodes_time_is_its_own(tmp_path: Path) -> None:
    before = time.time()
    (found,) = play(tmp_path, Counted(), corridor(tasks=1))
    assert before <= found.started <= time.time()
    assert 0 <= found.seconds < 5


def test_only_hot_requests_get_a_seed_and_each_its_own(tmp_path: Path) -> None:
    seeds: list[int | None] = []

    def note(request: Request) -> str:
        seeds.append(request.seed)
        return "right"

    play(tmp_path, ScriptedModel(note), corridor(tasks=2), arm="cold")
    assert set(seeds) == {None}
    seeds.clear()
    play(tmp_path, ScriptedModel(note), corridor(tasks=2), arm="hot", toml={"model": "temperature = 0.5"})
    assert len(set(seeds)) == 6
    assert None not in seeds


def test_the_chat_form_sends_the_system_prompt_filled_in(tmp_path: Path) -> None:
    sent: list[tuple[Message, ...]] = []

    def note(request: Request) -> str:
        sent.append(request.messages)
        return "right"

    play(tmp_path, ScriptedModel(note), corridor(tasks=1), toml={"control": 'loop = "choice"\nform = "chat"'})
    assert [message.content for message in sent[0]] == ["Task: reach the end of 0", "You are at 0."]
