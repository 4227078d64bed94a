"""The loops: what the model is shown, what of its answer is done, and what it is told when nothing can be done."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worlds import Corridor, agent, corridor, outcome

from envs import Benchmark, Step
from harness.journal import Journal
from harness.loops.react import find_action
from harness.model import Completion, ModelRefused, Request, ToolCall
from harness.models.scripted import ScriptedModel
from harness.runner import Job, Runner, RunStopped
from harness.settings import HarnessError
from harness.trajectory import Trajectory

Answer = str | Completion


class Script(ScriptedModel):
    """Gives `answers` in turn, the last one for ever, and keeps the requests."""

    def __init__(self, *answers: Answer | Callable[[Request], Answer]) -> None:
        self.requests: list[Request] = []

        def next_one(request: Request) -> Answer:
            self.requests.append(request)
            answer = answers[min(len(self.requests), len(answers)) - 1]
            return answer(request) if callable(answer) else answer

        super().__init__(next_one)


def calls(*made: tuple[str, Any], text: str = "") -> Completion:
    """Tool calls; a str stands for raw arguments."""
    return Completion(
        text=text,
        tool_calls=tuple(
            ToolCall(id=str(n), name=name, arguments=given if isinstance(given, str) else json.dumps(given))
            for n, (name, given) in enumerate(made)
        ),
    )


def play(folder: Path, model: Script, loop: str, world: Benchmark | None = None, **files: Any) -> Trajectory:
    world = world or corridor(tasks=1)
    with Journal(folder) as journal:
        job = Job(agent(model, loop, **files), world.tasks("valid")[0])
        (found,) = outcome(Runner(world, journal, retries=0), [job])
    return found


def did(world: Benchmark) -> list[str]:
    """What really reached the world."""
    made: list[Corridor] = world.make_env.made  # type: ignore[attr-defined]
    return made[-1].seen


def shown(request: Request) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in request.messages]


# choice


def test_choice_offers_the_worlds_choices_and_does_the_chosen_one(tmp_path: Path) -> None:
    model = Script("right")
    found = play(tmp_path, model, "choice", step="{goal} {history}|{choices}")
    assert (found.score, [turn.action for turn in found.turns]) == (1.0, ["right"] * 3)
    assert {request.choices for request in model.requests} == {("left", "right")}
    assert [request.prompt for request in model.requests][:2] == [
        "reach the end of 0 |- left\n- right",
        "reach the end of 0 > right\nYou are at 1.|- left\n- right",
    ]


def test_choice_in_a_world_without_choices_stops_the_run_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r'task c0: the environment offers no choices.*loop = "react"'):
        play(tmp_path, Script("right"), "choice", corridor(choices=False))


def test_a_choice_with_blanks_around_it_is_done_as_it_is(tmp_path: Path) -> None:
    from envs import Observation

    def trouble(where: str, task: str) -> Any:
        return {"reset": Observation("x", (" right",)), "step": Step(Observation("y"), 1.0, True)}.get(where)

    world = corridor(trouble, tasks=1)
    (turn,) = play(tmp_path, Script(" right"), "choice", world).turns
    assert (turn.invalid, did(world)) == (False, [" right"])


# react


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Action: right", "right"),
        ("I think.\n  action :  go to shelf 1  \n", "go to shelf 1"),
        ("Action: left\nNo.\nAction: right", "right"),
        ("**Action:** `right`", "right"),
        ('Action: "right"', "right"),
        ("Action:\nright", "right"),
        ("go right", None),
        ("Action: ", None),
        ("Action: ``", None),
        ("An action: right", None),
    ],
)
def test_the_last_action_line_counts(text: str, action: str | None) -> None:
    assert find_action(text) == action


def test_react_keeps_one_conversation_whose_beginning_never_changes(tmp_path: Path) -> None:
    model = Script("Hm.\nAction: right")
    found = play(tmp_path, model, "react")
    assert found.score == 1.0
    assert shown(model.requests[0]) == [("system", "Task: reach the end of 0"), ("user", "You are at 0.")]
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
    assert shown(model.requests[1])[2:] == [
        ("assistant", "Hm.\nAction: right"),
        ("user", "You are at 1.\nPossible actions: left, right"),
    ]


def test_react_tells_the_model_that_it_gave_no_action_and_goes_on(tmp_path: Path) -> None:
    model = Script("Hm.", "Action: right")
    found = play(tmp_path, model, "react")
    assert found.score == 1.0
    assert [turn.invalid for turn in found.turns] == [True, False, False, False]
    assert "No action was found in your answer" in shown(model.requests[1])[-1][1]


# tools

SKILL = {"skills/knots/SKILL.md": "---\nname: knots\ndescription: How to tie.\n---\nOver, under.\n"}


def test_tools_offers_act_the_worlds_functions_the_folders_own_and_skills(tmp_path: Path) -> None:
    source = 'def add(a: int, b: int = 1) -> int:\n    """Add two numbers."""\n    return a + b\n'
    model = Script(calls(("act", {"action": "right"})))
    found = play(tmp_path, model, "tools", **SKILL, **{"tools/add.py": source})
    assert found.score == 1.0
    offered = {tool["function"]["name"]: tool["function"] for tool in model.requests[0].tools}
    assert list(offered) == ["act", "add", "read_skill", "jump"]
    assert offered["act"]["parameters"]["properties"]["action"]["enum"] == ["left", "right"]
    assert offered["add"]["description"] == "Add two numbers."
    assert offered["add"]["parameters"]["properties"]["a"]["type"] == "integer"
    assert offered["add"]["parameters"]["required"] == ["a"]
    assert offered["jump"]["parameters"]["properties"] == {"n": {"type": "integer"}}


def test_each_call_gets_its_own_answer_and_several_are_done_in_order(tmp_path: Path) -> None:
    world = corridor(tasks=1)
    model = Script(calls(("act", {"action": "right"}), ("act", {"action": "left"})), calls(("jump", {"n": 3})))
    found = play(tmp_path, model, "tools", world)
    assert found.score == 1.0
    assert did(world) == ["right", "left", '{"name": "jump", "arguments": {"n": 3}}']
    assistant, first, second = model.requests[1].messages[2:]
    assert len(assistant.tool_calls) == 2
    assert [(m.role, m.tool_call_id, m.content) for m in (first, second)] == [
        ("tool", "0", "You are at 1."),
        ("tool", "1", "You are at 0."),
    ]


BAD_CALLS = {
    "malformed arguments": (("jump", '{"n": 3'), "the arguments are not valid JSON"),
    "arguments that are no object": (("jump", "[3]"), "the arguments must be a JSON object"),
    "an unknown function": (("fly", {}), "there is no function 'fly'"),
    "an action that is no text": (("act", {"action": 3}), "act needs a text 'action'"),
}


@pytest.mark.parametrize("bad", BAD_CALLS)
def test_a_call_that_cannot_be_meant_is_told_and_not_run(tmp_path: Path, bad: str) -> None:
    made, message = BAD_CALLS[bad]
    world = corridor(tasks=1)
    model = Script(calls(made), calls(("jump", {"n": 3})))
    found = play(tmp_path, model, "tools", world)
    assert (found.score, [turn.invalid for turn in found.turns]) == (1.0, [True, False])
    assert did(world) == ['{"name": "jump", "arguments": {"n": 3}}']
    answer = shown(model.requests[1])[-1]
    assert answer[0] == "tool"
    assert message in answer[1]
    assert "Nothing was done." in answer[1]


def test_an_answer_without_a_call_is_told_and_five_in_a_row_end_the_episode(tmp_path: Path) -> None:
    model = Script("I would go right.")
    found = play(tmp_path, model, "tools", corridor(tasks=1, max_steps=20))
    assert (found.status, found.score, len(found.turns)) == ("truncated", 0.0, 5)
    assert "Call one of the functions." in shown(model.requests[1])[-1][1]


def test_own_tools_answer_and_their_errors_are_text_for_the_model(tmp_path: Path) -> None:
    source = "from __future__ import annotations\n\ndef half(n: int) -> float:\n    return 1 / n\n"
    asked = calls(("half", {"n": 2}), ("half", {"n": 0}), ("half", {"n": "x"}), ("half", {}), ("half", {"m": 1}))
    model = Script(asked, calls(("jump", {"n": 3})))
    found = play(tmp_path, model, "tools", **{"tools/half.py": source})
    assert (found.score, len(found.turns), found.calls) == (1.0, 1, 2)
    answers = [content for role, content in shown(model.requests[1]) if role == "tool"]
    assert answers[0] == "0.5"
    assert answers[1] == "Error: half: ZeroDivisionError: division by zero"
    assert answers[2].startswith("Error: half: n: ")
    assert "Missing required argument" in answers[3]
    assert "m: Unexpected keyword argument" in answers[4]


def test_skills_are_read_on_demand_and_nothing_else_is(tmp_path: Path) -> None:
    asked = [("read_skill", {"name": "knots"}), ("read_skill", {"name": "..", "file": "harness.toml"})]
    model = Script(calls(*asked), calls(("jump", {"n": 3})))
    play(tmp_path, model, "tools", system="{skills}", **SKILL)
    assert "- knots: How to tie." in shown(model.requests[0])[0][1]
    body, refused = (content for role, content in shown(model.requests[1]) if role == "tool")
    assert body.endswith("Over, under.\n")
    assert refused == "Error: there is no skills/../harness.toml; there are: skills/knots/SKILL.md"


def test_a_model_that_only_looks_things_up_comes_to_an_end_with_a_score(tmp_path: Path) -> None:
    model = Script(calls(("read_skill", {"name": "knots"})))
    found = play(tmp_path, model, "tools", **SKILL)
    assert (found.status, found.score, len(found.turns), found.calls) == ("truncated", 0.0, 0, 6)
    assert found.reason == "6 answers of the model were not enough"


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("tools/a.py", "def b(): ...", r"tools/a\.py: must define a function named a"),
        ("tools/a.py", "def a(:", r"tools/a\.py: cannot be loaded: SyntaxError"),
        ("tools/a.py", "1/0", r"tools/a\.py: cannot be loaded: ZeroDivisionError"),
        ("tools/act.py", "def act(): ...", r"tools/act\.py: 'act' is taken"),
        ("skills/x/SKILL.md", "no frontmatter", r"skills/x"),
    ],
)
def test_a_faulty_tool_or_skill_stops_the_run_with_its_file(
    tmp_path: Path, file: str, source: str, message: str
) -> None:
    with pytest.raises(HarnessError, match=message):
        play(tmp_path, Script("x"), "tools", **{file: source})


def test_the_skills_of_a_harness_are_checked_once_however_many_agents_it_equips() -> None:
    from worlds import harness

    from harness.disclosure import disclose

    one, other = harness("tools", **SKILL), harness("tools", **SKILL)
    assert disclose(one) is disclose(other)
    changed = {"skills/knots/SKILL.md": SKILL["skills/knots/SKILL.md"].replace("How to tie", "How to untie")}
    assert disclose(harness("tools", **changed)) == "- knots: How to untie."


# control.py

CONTROL = """
from harness.model import Request


async def control(agent, episode):
    plan = await episode.ask(agent.model, Request(prompt="plan"))
    while not episode.over:
        answer = await episode.ask(agent.model, Request(prompt=plan.text + episode.observation.text))
        await episode.act(answer.text)
"""


def test_a_loop_of_ones_own_plays_and_all_its_calls_are_counted(tmp_path: Path) -> None:
    found = play(tmp_path, Script("the plan", "right"), "control", **{"control.py": CONTROL})
    assert (found.score, found.calls) == (1.0, 4)
    assert [len(turn.calls) for turn in found.turns] == [2, 1, 1]


def test_an_exception_in_control_is_the_harnesss_own_failure_and_is_scored(tmp_path: Path) -> None:
    source = "async def control(agent, episode):\n    await episode.act('right')\n    x = 1\n    x.y\n"
    found = play(tmp_path, Script("x"), "control", **{"control.py": source})
    assert (found.status, found.fault, found.score, len(found.turns)) == ("truncated", "bug", 0.0, 1)
    assert re.search(r"control\.py: line 4: AttributeError: 'int'", found.reason)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("async def control(agent, episode):\n    return (\n", r"control\.py: line 2: SyntaxError"),
        ("x = 1\ny = 1 / 0\n", r"control\.py: line 2: ZeroDivisionError"),
        ("x = 1\n", r"control\.py: defines no function\. Cure: async def control"),
    ],
)
def test_a_fault_in_control_is_told_with_its_line(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(HarnessError, match=message):
        play(tmp_path, Script("x"), "control", **{"control.py": source})


def test_a_loop_that_returns_early_is_scored_on_what_it_has(tmp_path: Path) -> None:
    source = "async def control(agent, episode):\n    await episode.act('right')\n"
    found = play(tmp_path, Script("x"), "control", **{"control.py": source})
    assert (found.status, found.score, len(found.turns)) == ("truncated", 0.0, 1)
    assert "returned before the episode was over" in found.reason


def test_faults_that_are_not_the_loops_own_pass_through_it(tmp_path: Path) -> None:
    from harness.model import ContextOverflow, ModelFault

    def failing(error: Exception) -> Callable[[Request], Answer]:
        def fail(request: Request) -> Answer:
            raise error

        return fail

    overflow = play(tmp_path / "a", Script(failing(ContextOverflow("9 of 8"))), "control", **{"control.py": CONTROL})
    assert (overflow.status, overflow.score) == ("truncated", 0.0)
    fault = ModelFault("down", retry_after=0.0001)
    assert play(tmp_path / "b", Script(failing(fault)), "control", **{"control.py": CONTROL}).status == "gap"
    with pytest.raises(ModelRefused):
        play(tmp_path / "c", Script(failing(ModelRefused("key"))), "control", **{"control.py": CONTROL})


# memory in prompts


def test_only_what_fits_the_prompt_is_shown_and_named_as_recalled_the_best_last(tmp_path: Path) -> None:
    from memory import Item

    items = [Item.make("step", "corridor", f"key {n}", "right " * (200 if n == 1 else 20)) for n in range(4)]
    asked: list[str] = []

    def recall(query: str, rng: Any) -> list[Item]:
        asked.append(query)
        return items

    model = Script("right")
    world = corridor(tasks=1)
    player = agent(model, recall=recall, step="{memories}{observation}", memory="{key}: {body}\n",
                   toml={"memory": "tokens = 80"})  # fmt: skip
    with Journal(tmp_path) as journal:
        (found,) = asyncio.run(Runner(world, journal).run([Job(player, world.tasks("valid")[0])]))
    assert asked[0] == "Goal: reach the end of 0\nNow: You are at 0."
    prompt = model.requests[0].prompt or ""
    assert [line.split(":")[0] for line in prompt.splitlines()] == ["key 2", "key 0", "You are at 0."]  # 1 is too long
    assert found.turns[0].retrieved == (items[0].id, items[2].id)
    assert found.retrieved == (items[0].id, items[2].id)


@pytest.mark.parametrize(("acts", "stops"), [(True, False), (False, True)])
def test_a_control_that_breaks_before_any_action_stops_the_run_and_one_that_acted_is_scored(
    tmp_path: Path, acts: bool, stops: bool
) -> None:
    first = "await episode.act('right')" if acts else "pass"
    source = f"async def control(agent, episode):\n    {first}\n    1 / 0\n"
    world = corridor(tasks=2)
    jobs = [Job(agent(Script("x"), "control", **{"control.py": source}), task) for task in world.tasks("valid")]
    for _ in range(2):  # the same when it is asked again
        with Journal(tmp_path) as journal:
            if stops:
                with pytest.raises(RunStopped, match="ZeroDivisionError"):
                    asyncio.run(Runner(world, journal, retries=0).run(jobs))
            else:
                found = asyncio.run(Runner(world, journal, retries=0).run(jobs))
                assert [(t.status, t.fault, t.score) for t in found] == [("truncated", "bug", 0.0)] * 2
