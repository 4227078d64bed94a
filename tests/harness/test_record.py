"""What is asked again and what is not: sharing between episodes, replays after a kill, and the cost of broken tries."""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worlds import agent, corridor, outcome

from envs import Benchmark, Observation
from envs.env import EnvFault
from harness.journal import FILE, Journal
from harness.model import Completion, Message, Request, ToolCall, Usage
from harness.models.scripted import ScriptedModel
from harness.runner import Job, Runner
from harness.trajectory import Call, Lost, Trajectory

USED = Usage(prompt_tokens=10, output_tokens=1, dollars=0.5)


class Remote:
    """A model that need not answer equal requests equally; its n-th answer is `answer(n, request)`."""

    name = "remote"

    def __init__(self, answer: Callable[[int, Request], str] = lambda n, request: "right") -> None:
        self.answer, self.asked = answer, 0

    async def complete(self, request: Request) -> Completion:
        self.asked += 1
        return Completion(text=self.answer(self.asked, request), usage=USED)

    async def close(self) -> None:
        """Nothing to free."""


def jobs(model: Any, world: Benchmark, numbers: int = 1) -> list[Job]:
    player = agent(model)
    return [Job(player, task, n) for n in range(numbers) for task in world.tasks("valid")]


def play(folder: Path, model: Any, world: Benchmark | None = None, numbers: int = 1, **rest: Any) -> list[Trajectory]:
    world = world or corridor(tasks=1)
    with Journal(folder) as journal:
        runner = Runner(world, journal, **{"retries": 0, "concurrency": 1, **rest})
        return outcome(runner, jobs(model, world, numbers))


# sharing


def test_repeats_with_a_model_that_may_vary_ask_it_anew_and_show_how_much_it_varies(tmp_path: Path) -> None:
    model = Remote(lambda n, request: "right" if n % 4 else "left")
    found = play(tmp_path, model, corridor(tasks=1, max_steps=3), numbers=4)
    assert model.asked == sum(t.calls for t in found) == 12
    assert [t.score for t in found] == [1.0, 0.0, 0.0, 0.0]
    assert sum(t.cached for t in found) == 0


def test_repeats_with_a_deterministic_model_are_served_from_the_record(tmp_path: Path) -> None:
    class Local(Remote):
        deterministic = True

    model = Local()
    found = play(tmp_path, model, numbers=4)
    assert model.asked == 3
    assert [t.cached for t in found] == [0, 3, 3, 3]
    other = Local()
    play(tmp_path, other, corridor(tasks=3))  # a new process reads the record from the journal
    assert other.asked == 0


def test_an_equal_question_in_the_same_episode_is_asked_again_of_a_model_that_may_vary(tmp_path: Path) -> None:
    model = Remote(lambda n, request: "left" if n == 1 else "right" if n != 3 else "left")
    (found,) = play(tmp_path, model)
    assert [turn.action for turn in found.turns][:3] == ["left", "right", "left"]
    assert len({call.digest for call in found.all_calls}) == found.calls == model.asked


# replays


class Killed(BaseException):
    """Stands for a kill: nothing of the try is written after it."""


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_try_that_was_killed_is_replayed_with_the_very_answers_it_had_and_counted_once(
    tmp_path: Path, deterministic: bool
) -> None:
    def answer(n: int, request: Request) -> str:
        if n == 3:
            raise Killed
        return "left"

    class Model(Remote):
        pass

    Model.deterministic = deterministic  # type: ignore[attr-defined]
    first = Model(answer)
    with pytest.raises(Killed):
        play(tmp_path, first, corridor(tasks=1, max_steps=8))
    rest = Model()
    (found,) = play(tmp_path, rest, corridor(tasks=1, max_steps=8))
    assert [turn.action for turn in found.turns][:3] == ["left", "left", "right"]
    assert found.lost == Lost()
    assert found.calls == found.cached + 2 + rest.asked
    assert (found.cached > 0) == deterministic  # one that is deterministic goes to and fro, and repeats itself


# broken tries


def breaking(times: int, at: int = 3) -> Any:
    """A corridor whose first `times` worlds break at step `at`; each world words what it shows in its own way."""
    worlds = steps = 0

    def trouble(where: str, task: str) -> Observation | None:
        nonlocal worlds, steps
        if where == "reset":
            worlds, steps = worlds + 1, 0
            return Observation(f"world {worlds}", ("left", "right"))
        if where == "step":
            steps += 1
            if worlds <= times and steps == at:
                raise EnvFault("the container died")
        return None

    return trouble


def test_what_a_broken_try_asked_and_the_next_one_did_not_is_charged_to_the_episode(tmp_path: Path) -> None:
    model = Remote()
    (found,) = play(tmp_path, model, corridor(breaking(2), tasks=1), retries=2)
    assert (found.score, len(found.all_calls)) == (1.0, 3)
    # each broken try asked about its own first sight; what came after was the same for all and is replayed
    assert (found.lost.calls, found.lost.usage.prompt_tokens, found.lost.usage.dollars) == (2, 20, 1.0)
    assert (found.calls, found.tokens, found.dollars) == (5, 55, 2.5)
    assert model.asked == found.calls
    with Journal(tmp_path) as journal:
        assert journal.trajectory(found.id) == found


def test_a_call_before_the_very_step_that_broke_is_charged_too(tmp_path: Path) -> None:
    model = Remote()
    (found,) = play(tmp_path, model, corridor(breaking(1, at=1), tasks=1), retries=1)
    assert (found.lost.calls, found.calls, model.asked) == (1, 4, 4)


def test_a_gap_is_charged_with_all_its_tries(tmp_path: Path) -> None:
    model = Remote()
    (found,) = play(tmp_path, model, corridor(breaking(9), tasks=1), retries=2)
    assert (found.status, len(found.all_calls), found.lost.calls) == ("gap", 3, 2)
    assert found.calls == model.asked == 5


def test_a_world_that_is_the_same_after_it_broke_has_lost_nothing(tmp_path: Path) -> None:
    broken = False

    def trouble(where: str, task: str) -> None:
        nonlocal broken
        if where == "step" and not broken:
            broken = True
            raise EnvFault("lost")

    model = Remote()
    (found,) = play(tmp_path, model, corridor(trouble, tasks=1), retries=1)
    assert (found.lost, found.calls, model.asked) == (Lost(), 3, 3)


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_a_run_that_is_killed_between_broken_tries_charges_the_same_as_one_that_was_not(
    tmp_path: Path, cut: int
) -> None:
    whole = play(tmp_path / "whole", Remote(), corridor(breaking(2), tasks=1), retries=2)

    def answer(n: int, request: Request) -> str:
        if n == cut:
            raise Killed
        return "right"

    trouble = breaking(2)

    def after_a_kill(where: str, task: str) -> Observation | None:
        """The world of the try that was killed comes up again as it was."""
        if where == "reset" and again:
            again.pop()
            return Observation(f"world {1 + broken}", ("left", "right"))
        found: Observation | None = trouble(where, task)
        return found

    again: list[int] = []
    first = Remote(answer)
    with pytest.raises(Killed):
        play(tmp_path / "cut", first, corridor(after_a_kill, tasks=1), retries=2)
    with Journal(tmp_path / "cut", readonly=True) as journal:
        broken = sum(1 for _ in journal.events("lost"))
    again.append(1)
    (found,) = play(tmp_path / "cut", Remote(), corridor(after_a_kill, tasks=1), retries=2)
    assert (found.score, found.calls, found.tokens, found.dollars) == (1.0, 5, 55, 2.5)
    with Journal(tmp_path / "cut") as one, Journal(tmp_path / "whole") as other:
        assert one.digest() == other.digest()
    assert [t.calls for t in whole] == [5]


# calls are kept whole


def chatting(folder: Path, turns: int) -> Trajectory:
    """An episode of `turns` function calls, with long thoughts and long sights."""

    def answer(request: Request) -> Completion:
        n = sum(message.role == "assistant" for message in request.messages)
        call = ToolCall(id=f"call-{n}", name="act", arguments=json.dumps({"action": "right", "n": n}))
        return Completion(text=f"Thought {n}. {_noise(n)}", tool_calls=(call,), usage=USED)

    world = corridor(tasks=1, length=turns, max_steps=turns)
    with Journal(folder) as journal:
        job = Job(agent(ScriptedModel(answer), "tools", toml={"limits": "seconds = 60.0"}), world.tasks("valid")[0])
        (found,) = asyncio.run(Runner(world, journal).run([job]))
    return found


def _noise(n: int) -> str:
    """Text that does not compress away."""
    return random.Random(n).randbytes(200).hex()


def test_a_chat_call_holds_the_very_messages_calls_ids_and_schemas_that_were_sent(tmp_path: Path) -> None:
    sent: list[Request] = []

    def answer(request: Request) -> Completion:
        sent.append(request)
        return Completion(text="Hm.", tool_calls=(ToolCall(id="7", name="act", arguments='{"action": "right"}'),))

    world = corridor(tasks=1)
    with Journal(tmp_path) as journal:
        job = Job(agent(ScriptedModel(answer), "tools"), world.tasks("valid")[0])
        asyncio.run(Runner(world, journal).run([job]))
    with Journal(tmp_path, readonly=True) as journal:
        (found,) = journal.trajectories()
    for call, request in zip(found.all_calls, sent, strict=True):
        assert (call.messages, call.tools, call.prompt) == (request.messages, request.tools, None)
    assert found.all_calls[1].text.splitlines()[-6:] == [
        "[assistant]", "Hm.", '-> act({"action": "right"}) [7]', "", "[tool 7]", "You are at 1.",
    ]  # fmt: skip


def test_a_call_has_either_messages_or_a_prompt() -> None:
    assert Call(prompt="p", output="o").text == "p"
    assert Call(messages=(Message(role="user", content="hi"),), output="o").text == "[user]\nhi"
    for both in ({}, {"prompt": "p", "messages": ()}):
        with pytest.raises(ValueError, match="either messages or a prompt"):
            Call(output="o", **both)  # type: ignore[arg-type]


def test_a_journal_of_a_conversation_grows_with_what_is_said_and_not_with_its_square(tmp_path: Path) -> None:
    sizes, read = {}, {}
    for turns in (15, 30, 60):
        found = chatting(tmp_path / str(turns), turns)
        sizes[turns] = (tmp_path / str(turns) / FILE).stat().st_size
        with Journal(tmp_path / str(turns), readonly=True) as journal:
            (read[turns],) = journal.trajectories()
        assert read[turns] == found
        assert len(found.all_calls[-1].messages or ()) == 2 * turns
    first, second = sizes[30] - sizes[15], sizes[60] - sizes[30]
    assert second < 2.3 * first, sizes
    assert sizes[30] / 30 < 4000, sizes
