"""Killed at any moment and begun again, a run loses nothing that was written, doubles nothing, and ends as if nothing
had happened.

INSTAR_KILLS=200 kills each kind of run that often; the suite is content with a few.
"""

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evolve.report import read_report
from evolve.terminal import show
from harness.journal import Journal, JournalError

KILLS = int(os.environ.get("INSTAR_KILLS", "4"))
WORLD = Path(__file__).parents[1] / "harness" / "counting.py"
TASKS, NUMBERS, AT_ONCE = 40, 2, 16

LIFE = '''
"""One life of a run: FOLDER, KIND, WORLD, TASKS, NUMBERS, AT_ONCE. Tells on descriptor 1 what is safe."""

import asyncio, hashlib, json, os, sys
from evolve import run
from harness.database import Database, Writing
from harness.episode import Episode
from harness.folder import Harness
from harness.model import Completion, Usage
from harness.starter import starter

folder, kind, world = sys.argv[1:4]
tasks, numbers, at_once = map(int, sys.argv[4:])
same = kind == "same"
settle, leave, start = Database.settle, Writing.__exit__, Episode.start


def tell(*words):
    os.write(1, (json.dumps(words) + "\\n").encode())


def settled(self):
    """What was gathered is committed."""
    gathers = self._gathers
    settle(self)
    if gathers:
        tell("safe", self.connection.execute("SELECT max(seq) FROM events").fetchone()[0])


def left(self, *what):
    """What was written at once is committed."""
    result = leave(self, *what)
    tell("safe", self._data.connection.execute("SELECT max(seq) FROM events").fetchone()[0] or 0)
    return result


async def started(self):
    """Before an action reaches the world, the turns before it are safe."""
    await start(self)
    step = self.env.step

    async def told(action):
        tell("acts", f"run/agent/{self.task.id}/{self.number}", len(self.turns))
        return await step(action)

    self.env.step = told


Database.settle, Writing.__exit__, Episode.start = settled, left, started
asked = os.open(os.path.join(os.path.dirname(folder), "asked"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Model:
    name, deterministic, address = "counts", same, None

    async def complete(self, request):
        os.write(asked, b".")
        said = [(message.role, message.content) for message in request.messages]
        chance = hashlib.sha256(json.dumps([said, request.seed]).encode()).digest()
        await asyncio.sleep(chance[1] / 256 * 0.004)
        action = "inc" if chance[0] < 200 else "skip"
        return Completion(text=f"Action: {action}", usage=Usage(prompt_tokens=len(said), output_tokens=1, dollars=0.0))

    async def close(self):
        pass


heat, files = 0.0 if same else 1.0, dict(starter("react").files)
files["harness.toml"] = f'name = "counts"\\n[model]\\ntemperature = {heat}\\n[control]\\nloop = "react"\\n'
agent = Harness.from_files(files)
found = run(agent, world, model=Model(), n=tasks, episodes=numbers, concurrency=at_once, out=folder)
tell("done", found.model_dump(mode="json", exclude={"folder"}))
'''


@dataclass
class Run:
    """A run in `folder`, in as many lives as it takes; `safe` is the last event that it said was safe."""

    folder: Path
    script: Path
    same: bool
    safe: int = 0
    kills: int = 0
    refused: int = 0
    acts: dict[str, int] = field(default_factory=dict)

    def live(self, until: int | None = None, seconds: float | None = None) -> dict[str, Any] | None:
        """Live to the end, or be killed after so much was told, or so many seconds after the first word.

        With both, the seconds count from the very start.
        """
        command = [sys.executable, self.script, self.folder, "same" if self.same else "sampled", WORLD]
        numbers = map(str, (TASKS, NUMBERS, AT_ONCE))
        self.acts.clear()
        with subprocess.Popen([*command, *numbers], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            stop = threading.Timer(seconds or 0.0, process.kill)
            if until is not None and seconds is not None:
                stop.start()
            for told, line in enumerate(process.stdout, 1):
                if not line.endswith(b"\n"):
                    break  # it was killed while it told
                what, *words = json.loads(line)
                if what == "done":
                    stop.cancel()
                    process.wait()
                    found: dict[str, Any] = words[0]
                    return found
                if what == "safe":
                    self.safe = max(self.safe, words[0])
                else:
                    self.acts[words[0]] = words[1]
                if told == 1:
                    self.rival(process)
                    if until is None and seconds is not None:
                        stop.start()
                if told == until:
                    process.kill()
            stop.cancel()
            said = process.stderr.read().decode()
            assert process.wait() == -signal.SIGKILL, said
        self.kills += 1
        return None

    def rival(self, process: "subprocess.Popen[bytes]") -> None:
        """Another one that would write is refused as long as this one lives."""
        try:
            Journal(self.folder).close()
        except JournalError as error:
            self.refused += "another process is writing this run" in str(error)
        else:
            assert process.wait() == -signal.SIGKILL

    def check(self) -> None:
        """What was said to be safe is there, and there once."""
        if not self.folder.joinpath("journal.db").exists():
            assert self.safe == 0
            return
        with Journal(self.folder, readonly=True) as journal:
            numbers = [event.seq for event in journal.events()]
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(numbers) >= self.safe
            ended = Counter(event.key for event in journal.events("episode"))
            assert set(ended.values()) <= {1}
            for key, turns in self.acts.items():
                tries = Counter(event.body["attempt"] for event in journal.events("step", key))
                assert tries[len(list(journal.events("start", key))) - 1] >= turns
            for key in ended:
                tries = Counter(event.body["attempt"] for event in journal.events("step", key))
                assert tries[max(tries)] == 10
                assert all(steps <= 10 for steps in tries.values())

    @property
    def asked(self) -> int:
        return self.folder.with_name("asked").stat().st_size


@contextmanager
def read_all_the_while(folder: Path) -> Iterator[list[int]]:
    """Reads `folder` again and again; the numbers of finished episodes that it saw."""
    seen: list[int] = []
    over, failures = threading.Event(), list[BaseException]()

    def read() -> None:
        while not over.wait(0.005):
            try:
                with Journal(folder, readonly=True) as journal:
                    rows = [row.id for row in journal.finished()]
                    begun = journal.last("plan") is not None
            except JournalError as error:
                if re.search("no run here|not a journal", str(error)):
                    continue  # it is just being made
                raise
            assert len(set(rows)) == len(rows)
            seen.append(len(rows))
            if begun:
                read_report(folder)

    def keep() -> None:
        try:
            read()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    reader = threading.Thread(target=keep)
    reader.start()
    try:
        yield seen
    finally:
        over.set()
        reader.join()
    if failures:
        raise failures[0]


def table(folder: Path) -> str:
    """What a person is shown, without times and places."""
    out = io.StringIO()
    show(folder, Console(file=out, width=200))
    return re.sub(r"(time|run|page):.*|\(.* repeats answered.*?\)", "", out.getvalue())


@pytest.mark.parametrize("same", [True, False], ids=["deterministic", "sampled"])
def test_a_run_that_is_killed_again_and_again_ends_like_one_that_was_not(tmp_path: Path, same: bool) -> None:
    script = tmp_path / "life.py"
    script.write_text(LIFE)
    places = [tmp_path / name for name in ("whole", "one", "other")]
    for place in places:
        place.mkdir()
    whole, *runs = (Run(place / "run", script, same) for place in places)
    expected = whole.live()
    assert expected is not None
    words = 3 * TASKS * NUMBERS * 10 if not same else 2 * TASKS * NUMBERS * 10

    rng, failures = random.Random(KILLS), list[BaseException]()

    def live(run: Run, until: int | None, seconds: float | None) -> None:
        try:
            run.live(until, seconds)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    with read_all_the_while(runs[0].folder) as seen:
        for _ in range(KILLS):
            lives = []
            for run in runs:
                moment: tuple[int | None, float | None] = rng.choice(
                    [(rng.randint(1, 1 + words // (KILLS + 2)), None), (None, rng.uniform(0.0, 0.05)),
                     (10**9, rng.uniform(0.0, 0.8))]
                )  # fmt: skip
                lives.append(threading.Thread(target=live, args=(run, *moment)))
            for life in lives:
                life.start()
            for life in lives:
                life.join()
            assert not failures, failures
            for run in runs:
                run.check()
        ends = [run.live() for run in runs]
    for run, found in zip(runs, ends, strict=True):
        run.check()
        assert run.kills == KILLS
        assert run.refused >= 1
        assert found is not None
        paid = {"cost": None, "cached": None}
        assert {**found, **paid} == {**expected, **paid}
        assert found["cost"]["calls"] == expected["cost"]["calls"]
        assert table(run.folder) == table(whole.folder)
        with Journal(run.folder, readonly=True) as journal, Journal(whole.folder, readonly=True) as other:
            assert journal.digest() == other.digest()
            assert {t.id: t.score for t in journal.trajectories()} == {t.id: t.score for t in other.trajectories()}
            assert not journal.unfinished()
        assert whole.asked <= run.asked <= whole.asked + KILLS * AT_ONCE  # no more than was in flight
    assert len(seen) > KILLS
    assert seen == sorted(seen)
