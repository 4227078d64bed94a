"""What ends an episode: its calls, its time by whose fault, useless answers; and a world that does not close."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import Corridor, agent, corridor, harness, outcome

from envs import Benchmark, Observation, Step
from harness.agent import PolicyPlayer
from harness.journal import Journal
from harness.model import Completion, Model, ModelFault, Request, ToolCall
from harness.models.scripted import ScriptedModel
from harness.runner import Job, Runner
from harness.trajectory import Trajectory

ASKS_FOR_EVER = """
from harness.model import Request

async def control(agent, episode):
    n = 0
    while True:
        await episode.ask(agent.model, Request(prompt=f"{n}"))
        n += 1
"""


def play(folder: Path, model: Model, loop: str = "choice", world: Benchmark | None = None, **rest: Any) -> Trajectory:
    world = world or corridor(tasks=1)
    with Journal(folder) as journal:
        job = Job(agent(model, loop, **rest), world.tasks("valid")[0])
        (found,) = outcome(Runner(world, journal, retries=0), [job])
    return found


@pytest.mark.parametrize(("limits", "calls"), [("", 6), ("calls = 4", 4), ("calls = 9", 9), ("steps = 2", 2)])
def test_a_loop_of_ones_own_that_asks_without_end_comes_to_an_end_with_a_score(
    tmp_path: Path, limits: str, calls: int
) -> None:
    found = play(
        tmp_path, ScriptedModel(lambda request: "x"), "control", toml={"limits": limits},
        **{"control.py": ASKS_FOR_EVER},
    )  # fmt: skip
    assert (found.status, found.score, found.calls, found.turns) == ("truncated", 0.0, calls, ())
    assert found.reason == f"{calls} answers of the model were not enough"


def test_more_calls_than_steps_let_a_model_look_things_up_first(tmp_path: Path) -> None:
    skill = {"skills/a/SKILL.md": "---\nname: a\ndescription: d\n---\nGo right."}
    asked = 0

    def answer(request: Request) -> Completion:
        nonlocal asked
        asked += 1
        name, arguments = ("read_skill", '{"name": "a"}') if asked % 3 else ("act", '{"action": "right"}')
        return Completion(text="", tool_calls=(ToolCall(id="1", name=name, arguments=arguments),))

    found = play(tmp_path, ScriptedModel(answer), "tools", toml={"limits": "calls = 9"}, **skill)
    assert (found.score, len(found.turns), found.calls) == (1.0, 3, 9)


def test_a_player_tells_the_most_calls_of_an_episode_so_that_a_budget_can_reserve_them() -> None:
    world = corridor(max_steps=6)
    model = ScriptedModel(lambda request: "right")
    made = {limits: agent(model, toml={"limits": limits}) for limits in ("", "calls = 20", "steps = 3", "steps = 99")}
    assert [player.calls(world) for player in made.values()] == [6, 20, 3, 6]
    assert [player.steps(world) for player in made.values()] == [6, 6, 3, 6]
    assert PolicyPlayer("wander", harness()).calls(world) == 0


def waiting(where: str, seconds: float) -> Any:
    """A corridor whose `reset` or `step` takes that long."""

    class Slow(Corridor):
        async def reset(self, task: Any, seed: int) -> Observation:
            await asyncio.sleep(seconds if where == "reset" else 0)
            return await super().reset(task, seed)

        async def step(self, action: str) -> Step:
            await asyncio.sleep(seconds if where == "step" else 0)
            return await super().step(action)

    world = corridor(tasks=1, max_steps=1000, length=1000)
    return replace(world, make_env=lambda: Slow(lambda where, task: None))


def thinking(seconds: float) -> ScriptedModel:
    async def answer(request: Request) -> str:
        await asyncio.sleep(seconds)
        return "right"

    return ScriptedModel(answer)


@pytest.mark.parametrize(
    ("model", "world", "whom"),
    [
        (thinking(9), waiting("", 0), "the model"),
        (thinking(0.12), waiting("", 0), "the model"),
        (thinking(0), waiting("reset", 9), "the world"),
        (thinking(0), waiting("step", 9), "the world"),
    ],
)
def test_a_single_wait_of_half_the_time_is_a_gap_that_names_who_was_waited_for(
    tmp_path: Path, model: Model, world: Benchmark, whom: str
) -> None:
    toml = {"limits": "seconds = 0.2", "model": "temperature = 1.0"}
    found = play(tmp_path, model, world=world, toml=toml)
    assert (found.status, found.score) == ("gap", None)
    assert found.reason == f"time-out: {whom} alone kept the episode waiting for half of its 0.2 s or more"


def test_many_short_waits_are_the_agents_own_slowness_and_are_scored(tmp_path: Path) -> None:
    toml = {"limits": "seconds = 1.5", "model": "temperature = 1.0"}
    found = play(tmp_path, thinking(0.1), world=waiting("step", 0.02), toml=toml)
    assert (found.status, found.score) == ("truncated", 0.0)
    assert found.reason == "the episode took more than its 1.5 s"
    assert len(found.turns) > 2


def test_rate_limits_before_every_call_cost_the_agent_nothing(tmp_path: Path) -> None:
    """Each pause is short beside the limit, their sum is longer than it: that is no slowness of the agent."""
    from openai_stub import Stub

    from harness.models.openai_api import OpenAIModel

    class Limited(list[str]):
        turn = 0

        def __bool__(self) -> bool:
            self.turn += 1
            return bool(self.turn % 2)

        def pop(self, index: Any = -1) -> str:
            return "429"

    with Stub(retry_after="1.5", reply=lambda body: "right") as stub:
        stub.faults = Limited()
        model = OpenAIModel("tiny", api_base=stub.url, api_key_env="NO_SUCH_VARIABLE")
        world = corridor(tasks=1)

        async def run() -> list[Trajectory]:
            job = Job(agent(model, toml={"limits": "seconds = 4.0"}), world.tasks("valid")[0])
            try:
                return await Runner(world, journal).run([job])
            finally:
                await model.close()

        with Journal(tmp_path) as journal:
            (found,) = asyncio.run(run())
    assert (found.status, found.score, found.calls) == ("done", 1.0, 3)
    assert found.seconds > 4


def test_calls_that_fail_are_not_counted_either(tmp_path: Path) -> None:
    tries = 0

    async def breaking(request: Request) -> str:
        nonlocal tries
        tries += 1
        if tries % 3:
            await asyncio.sleep(0.35)
            raise ModelFault("broken", retry_after=0.001)
        return "right"

    found = play(tmp_path, ScriptedModel(breaking), toml={"limits": "seconds = 1.0", "model": "temperature = 1.0"})
    assert (found.status, found.score, found.calls, tries) == ("done", 1.0, 3, 9)


def test_a_provider_that_only_ever_limits_is_given_up_and_the_episode_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(request: Request) -> str:
        raise ModelFault("too many", retry_after=0.1, kind="429")

    monkeypatch.setattr("harness.throttle.OUTAGE", 0.25)
    found = play(tmp_path, ScriptedModel(limited), toml={"limits": "seconds = 0.02"})
    assert (found.status, found.fault) == ("gap", "provider")
    assert found.reason.startswith("model: too many (nobody was answered for 0 s)")


def test_a_server_that_asks_for_more_than_ten_minutes_is_not_waited_for(tmp_path: Path) -> None:
    def limited(request: Request) -> str:
        raise ModelFault("429", retry_after=601)

    found = play(tmp_path, ScriptedModel(limited))
    assert found.reason == "model: 429 (asked to wait 601 s, and no more than 600 are waited)"


def test_a_long_pause_is_as_long_as_the_server_asked_and_is_told(tmp_path: Path) -> None:
    asked: list[float] = []

    def limited(request: Request) -> str:
        asked.append(time.monotonic())
        if len(asked) == 1:
            raise ModelFault("too many", retry_after=2.0, kind="429")
        return "right"

    told: list[str] = []
    world = corridor(tasks=1)
    with Journal(tmp_path) as journal:
        runner = Runner(world, journal, watch=lambda progress: told.append(progress.waiting))
        (found,) = asyncio.run(runner.run([Job(agent(ScriptedModel(limited)), world.tasks("valid")[0])]))
    assert found.score == 1.0
    assert asked[1] - asked[0] >= 2.0
    assert told[0] == "waiting 2 s for the model: too many"
    assert told[1:] == ["", ""]
    assert found.all_calls[0].faults == ("429",)


def test_a_tool_of_ones_own_that_never_returns_is_the_agents_slowness_and_the_run_still_ends(tmp_path: Path) -> None:
    source = "import threading\n\ndef sleep() -> str:\n    threading.Event().wait()\n    return ''\n"
    call = Completion(text="", tool_calls=(ToolCall(id="1", name="sleep", arguments="{}"),))
    began = time.monotonic()
    toml = {"limits": "seconds = 0.1"}
    found = play(tmp_path, ScriptedModel(lambda request: call), "tools", toml=toml, **{"tools/sleep.py": source})
    assert (found.status, found.score) == ("truncated", 0.0)
    assert found.reason == "the episode took more than its 0.1 s"
    assert time.monotonic() - began < 5


def test_a_world_that_never_closes_is_left_after_a_while_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(Corridor):
        async def close(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("harness.episode.CLOSING", 0.05)
    world = replace(corridor(tasks=1), make_env=lambda: Stuck(lambda where, task: None))
    found = play(tmp_path, ScriptedModel(lambda request: "right"), world=world)
    assert (found.status, found.score, found.reason) == ("done", 1.0, "the environment did not close within 0.05 s")


# what a rejected answer costs


@pytest.mark.parametrize("loop", ["choice", "react", "tools"])
def test_a_useless_answer_costs_a_step_and_reaches_no_world(tmp_path: Path, loop: str) -> None:
    class Free:
        name = "free"

        async def complete(self, request: Request) -> Completion:
            return Completion(text="I am a teapot")

        async def close(self) -> None:
            """Nothing to free."""

    world = corridor(tasks=1, max_steps=3)
    found = play(tmp_path, Free(), loop, world)
    made: list[Corridor] = world.make_env.made  # type: ignore[attr-defined]
    assert made[-1].seen == []
    assert (found.status, found.score, found.reason) == ("truncated", 0.0, "3 steps were not enough")
    assert [(turn.action, turn.invalid, turn.reward) for turn in found.turns] == [("", True, None)] * 3
    assert [len(turn.calls) for turn in found.turns] == [1, 1, 1]


def test_a_metric_sees_the_worlds_rewards_only_also_when_the_last_answer_was_rejected(tmp_path: Path) -> None:
    def last(rewards: Sequence[float | None]) -> float | None:
        return rewards[-1] if rewards else None

    answers = iter(["Action: right", "Hm.", "Action: right", "Hm."])
    world = replace(corridor(lambda where, task: Step(Observation("x"), 0.25) if where == "step" else None,
                             tasks=1, max_steps=4), metric=last)  # fmt: skip
    found = play(tmp_path, ScriptedModel(lambda request: next(answers)), "react", world)
    assert [turn.reward for turn in found.turns] == [0.25, None, 0.25, None]
    assert found.score == 0.25


def test_what_was_rejected_is_no_part_of_the_history(tmp_path: Path) -> None:
    source = """
async def control(agent, episode):
    await episode.reject()
    await episode.act("right")
    await episode.reject()
    values = agent.values(episode, agent.situation(episode), "")
    await episode.act(values["history"] + " | " + agent.situation(episode).text)
"""
    found = play(tmp_path, ScriptedModel(lambda request: "x"), "control", **{"control.py": source})
    assert (
        found.turns[-1].action == "> right\nYou are at 1. | Goal: reach the end of 0\nDone: right\nNow: You are at 1."
    )


# an evaluator's words


@pytest.mark.parametrize(
    ("info", "kept"),
    [({"feedback": "too far"}, "too far"), ({}, ""), ({"feedback": 3}, ""), ({"feedback": "x" * 9999}, "x" * 2000)],
)
def test_an_evaluators_words_are_kept_with_the_turn_and_not_shown_to_the_agent(
    tmp_path: Path, info: dict[str, Any], kept: str
) -> None:
    sent: list[str] = []

    def answer(request: Request) -> str:
        sent.append(request.messages[-1].content)
        return "Action: right"

    steps = iter([Step(Observation("on"), 0.0, False, info), Step(Observation("end"), 1.0, True)])
    world = corridor(lambda where, task: next(steps) if where == "step" else None, tasks=1)
    found = play(tmp_path, ScriptedModel(answer), "react", world)
    assert [turn.feedback for turn in found.turns] == [kept, ""]
    assert sent == ["You are at 0.", "on"]
    with Journal(tmp_path, readonly=True) as journal:
        assert journal.trajectory(found.id) == found
