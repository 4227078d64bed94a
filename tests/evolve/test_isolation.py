"""Worlds in worker processes change nothing of a run, except that it survives what they do."""

from pathlib import Path

import pytest

from evolve import run
from harness.journal import Journal
from harness.starter import starter

WORLD = """
import os
from envs import Benchmark, Env, Observation, Step, Task, fixed

class World(Env):
    '''Task 1 ends its process at the first step.'''
    async def reset(self, task, seed):
        self.task = task
        return Observation(f"{task.id}: {seed % 1000}", ("left", "right"))
    async def step(self, action):
        if self.task.data["deadly"]:
            os._exit(3)
        return Step(Observation("the end"), 1.0, True)

tasks = [Task(id=f"t{n}", split="valid", goal="go", data={"deadly": n == 1}) for n in range(4)]
benchmark = Benchmark("deadly", World, fixed(tasks))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "world.py").write_text(WORLD)
    (tmp_path / "models.py").write_text("def left(request):\n    return 'left'\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_world_that_ends_its_process_is_a_gap_and_the_run_goes_on(place: Path) -> None:
    found = run(starter("small", "a"), "world.py", model="scripted:models.py:left", out="one", isolate=True)
    assert (found.mean.episodes, found.mean.missing, found.missing) == (3, 1, {"environment": 1})
    assert found.mean.mean == 1.0
    assert not found.mean.decided


def test_isolation_is_no_part_of_what_a_run_is(place: Path) -> None:
    (place / "world.py").write_text(WORLD.replace("n == 1", "False"))
    digests = []
    for out, isolate in (("one", True), ("two", False)):
        run(starter("small", "a"), "world.py", model="scripted:models.py:left", out=out, isolate=isolate)
        with Journal(out, readonly=True) as journal:
            digests.append(journal.digest())
    assert digests[0] == digests[1]
    again = run(starter("small", "a"), "world.py", model="scripted:models.py:left", out="one")
    assert again.mean.episodes == 4


def test_a_step_that_never_ends_is_stopped_after_its_seconds_and_not_tried_again_at_once(place: Path) -> None:
    (place / "world.py").write_text(
        WORLD.replace("os._exit(3)", "open('tries', 'a').write('x')\n            while True: pass")
    )
    found = run(starter("small", "a"), "world.py", model="scripted:models.py:left", out="one", isolate=1.0)
    assert (found.mean.episodes, found.missing) == (3, {"environment": 1})
    assert (place / "tries").read_text() == "x"
    with Journal("one", readonly=True) as journal:
        (gap,) = [row for row in journal.finished() if row.status == "gap"]
    assert "did not answer step within 1 s" in gap.reason
