"""Events that episodes write at the same moment are committed together, and each before its episode goes on."""

import asyncio
from pathlib import Path

import pytest

from envs import Benchmark, Env, Observation, Step, Task, fixed
from harness import Agent, Harness
from harness.journal import Journal, JournalError
from harness.model import Request
from harness.models.scripted import ScriptedModel
from harness.runner import Job, Runner
from harness.trajectory import Trajectory, Turn

TURN = Turn(observation="o", action="a")
END = Trajectory(
    id="k", task="t", split="test", goal="g", episode=0, seed=0, harness="h", model="m", turns=(TURN,), status="done",
    score=1.0,
)  # fmt: skip


def seen(folder: Path) -> list[str]:
    """The kinds of events that another reader finds."""
    with Journal(folder, readonly=True) as reader:
        return [event.kind for event in reader.events()]


async def test_what_is_written_soon_is_there_for_others_when_the_loop_has_come_round(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for key in ("a", "b", "c"):
            journal.append("start", {"attempt": 0}, key, soon=True)
            journal.step(key, 0, TURN, soon=True)
        assert [event.kind for event in journal.events()] == ["start", "step"] * 3  # to its own writer at once
        assert seen(tmp_path) == []
        await asyncio.sleep(0)
        assert seen(tmp_path) == ["start", "step"] * 3


async def test_whatever_is_durable_at_once_takes_along_what_came_before_it(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.step("k", 0, TURN, soon=True)
        journal.append("note", {})
        assert seen(tmp_path) == ["step", "note"]
        journal.step("k", 0, TURN, soon=True)
        journal.finish(END, 0)
        assert seen(tmp_path) == ["step", "note", "step", "episode"]
        journal.step("k", 1, TURN, soon=True)
    assert seen(tmp_path) == ["step", "note", "step", "episode", "step"]


def test_a_loop_that_ended_too_early_leaves_the_journal_usable_in_another_one(tmp_path: Path) -> None:
    async def write(rounds: int) -> None:
        journal.step("k", 0, TURN, soon=True)
        for _ in range(rounds):
            await asyncio.sleep(0)

    with Journal(tmp_path) as journal:
        loop = asyncio.new_event_loop()
        loop.call_soon(loop.stop)
        task = loop.create_task(write(0))
        loop.run_forever()  # stops before what was written is committed
        loop.close()
        assert task.done()
        assert seen(tmp_path) == []
        asyncio.run(write(1))
        assert seen(tmp_path) == ["step", "step"]


async def test_when_a_commit_fails_nothing_that_would_follow_is_written_and_whoever_writes_is_told(
    tmp_path: Path,
) -> None:
    big = Turn(observation="".join(map(chr, range(0x4E00, 0x8E00))), action="a")
    with Journal(tmp_path) as journal:
        journal.append("note", {})
        pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
        journal._db.execute(f"PRAGMA max_page_count = {pages + 1}")
        journal.step("small", 0, TURN, soon=True)
        with pytest.raises(JournalError, match="disk is full"):
            journal.step("large", 0, big, soon=True)
        journal._db.execute(f"PRAGMA max_page_count = {pages + 1000}")  # there is room again, and the turn is missing
        for write in (lambda: journal.step("small", 0, TURN, soon=True), lambda: journal.append("note", {}),
                      lambda: journal.finish(END, 0)):  # fmt: skip
            with pytest.raises(JournalError, match="disk is full"):
                write()
    assert seen(tmp_path) == ["note"]


class Witness(Env):
    """Sees before each action which turns are in the journal, for everybody to read."""

    def __init__(self, folder: Path, found: dict[str, list[int]]) -> None:
        self.folder, self.found = folder, found

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task, self.count = task.id, 0
        return Observation("go", ("on",))

    async def step(self, action: str) -> Step:
        with Journal(self.folder, readonly=True) as reader:
            turns = list(reader.events("step", f"run/agent/{self.task}/0"))
        self.found.setdefault(self.task, []).append(len(turns))
        self.count += 1
        return Step(Observation(f"{self.count}", ("on",)), float(self.count == 3), self.count == 3)


async def test_each_turn_is_in_the_journal_before_the_next_action_reaches_the_world(tmp_path: Path) -> None:
    found: dict[str, list[int]] = {}
    tasks = [Task(id=f"t{i}", split="test", goal="g") for i in range(5)]
    benchmark = Benchmark("witness", lambda: Witness(tmp_path, found), fixed(tasks))
    harness = Harness.from_files({"harness.toml": "", "prompts/step.md": "{observation}"})

    def on(request: Request) -> str:
        return "on"

    with Journal(tmp_path) as journal:
        jobs = [Job(Agent.equip(harness, ScriptedModel(on)), task) for task in tasks]
        played = await Runner(benchmark, journal, concurrency=5).run(jobs)
    assert [trajectory.score for trajectory in played] == [1.0] * 5
    assert found == {task.id: [0, 1, 2] for task in tasks}
