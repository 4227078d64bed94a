"""What does not let the others go on is named, while it does so, with the line that it stands at."""

import asyncio
import threading
from pathlib import Path

import pytest
from worlds import agent, corridor

from harness.journal import Journal
from harness.models.scripted import ScriptedModel
from harness.runner import Job, Runner
from harness.watchdog import watched


def test_code_that_does_not_give_way_is_named_with_its_line() -> None:
    told: list[str] = []
    heard = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        heard.set()

    async def main() -> None:
        with watched(tell, seconds=0.2):
            await asyncio.sleep(0)
            assert heard.wait(20)

    asyncio.run(main())
    assert "does not give way" in told[0]
    assert f"({__file__}:" in told[0]


def test_a_loop_that_turns_is_left_alone() -> None:
    told: list[str] = []

    async def main() -> None:
        with watched(told.append, seconds=0.4):
            for _ in range(60):
                await asyncio.sleep(0.02)

    asyncio.run(main())
    assert told == []
    assert not [thread for thread in threading.enumerate() if thread.name == "watchdog"]


def test_a_run_tells_of_a_world_that_blocks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.watchdog.SILENT", 0.2)
    told: list[str] = []
    heard = threading.Event()

    def block(where: str, task: str) -> None:
        if where == "step" and not heard.is_set():
            assert heard.wait(20)

    def watch(progress: object) -> None:
        if waiting := getattr(progress, "waiting", ""):
            told.append(waiting)
            heard.set()

    world = corridor(block, tasks=1)
    with Journal(tmp_path) as journal:
        runner = Runner(world, journal, watch=watch)
        asyncio.run(runner.run([Job(agent(ScriptedModel(lambda _: "right")), world.tasks("valid")[0])]))
    assert "block (" in told[0]
