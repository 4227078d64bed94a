"""The journal keeps whatever `append` returned for, whoever kills, fills or misuses it; it is never changed."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.finished import Finished
from harness.journal import FILE, FORMAT, Journal, JournalError
from harness.model import Message, ToolCall, Usage
from harness.trajectory import Call, Trajectory, Turn

DATA = Path(__file__).parent / "data"
SAMPLE = DATA / f"journal_{FORMAT}.sql"
LONG = "a long text, \U0001f98b and \ud800 " * 20


def trajectory(id: str = "run/agent/t/0", status: str = "done", score: float | None = 1.0) -> Trajectory:
    used = Usage(prompt_tokens=3, dollars=0.5, seconds=0.25)
    call = Call(prompt=LONG, output="go", digest="m:1", usage=used)
    made = ToolCall(id="1", name="act", arguments='{"action": "go"}')
    talk = (Message(role="system", content=LONG), Message(role="assistant", content="", tool_calls=(made,)),
            Message(role="tool", content="gone", tool_call_id="1"))  # fmt: skip
    tools = ({"type": "function", "function": {"name": "act", "description": LONG, "parameters": {}}},)
    chat = Call(messages=talk, tools=tools, output="", tool_calls=(made,), digest="m:2#1", usage=used)
    turn = Turn(observation=LONG, action="go", situation="s", retrieved=("i",), calls=(call, chat), reward=score)
    return Trajectory(
        id=id, task="t", split="valid", goal="g", episode=0, seed=1, harness="h", model="m", turns=(turn, turn),
        final="end", score=score, status=status, reason="", arm="agent", started=5.0, seconds=2.5,
    )  # fmt: skip


def write(journal: Journal, one: Trajectory, attempt: int = 0) -> None:
    for turn in one.turns:
        body = {"attempt": attempt, "turn": turn.model_dump(mode="json", exclude_defaults=True)}
        journal.append("step", body, one.id)
    journal.finish(one, attempt)


def test_what_was_appended_is_read_back_in_order_by_kind_and_key(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        numbers = [journal.append(kind, {"n": n}, key) for n, (kind, key) in enumerate(["ax", "bx", "ay", "ax"])]
        assert numbers == [1, 2, 3, 4]
        assert [e.body["n"] for e in journal.events()] == [0, 1, 2, 3]
        assert [e.body["n"] for e in journal.events("a")] == [0, 2, 3]
        assert [e.body["n"] for e in journal.events("a", "x")] == [0, 3]
        assert [e.body["n"] for e in journal.events(after=2)] == [2, 3]
        last = journal.last("a", "x")
        assert last is not None
        assert (last.seq, last.kind, last.key, last.body) == (4, "a", "x", {"n": 3})
        assert journal.last("a", "z") is None


def test_events_and_texts_can_neither_be_changed_nor_deleted_nor_replaced(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append("a", {"text": LONG})
        journal.finish(trajectory(), 0)
    db = sqlite3.connect(tmp_path / FILE)
    for statement in (
        "UPDATE events SET body = '{}'",
        "DELETE FROM events",
        "INSERT OR REPLACE INTO events VALUES (1, 0, 'a', '', '{}')",
        "UPDATE pieces SET data = x'00'",
        "DELETE FROM pieces",
        "INSERT OR REPLACE INTO pieces VALUES (1, x'00')",
        "UPDATE finished SET row = '{}'",
        "DELETE FROM finished",
    ):
        with pytest.raises(sqlite3.DatabaseError, match="append-only"):
            db.execute(statement)
    db.close()
    with Journal(tmp_path, readonly=True) as journal:
        assert [e.body for e in journal.events("a")] == [{"text": LONG}]


def test_an_episode_is_read_back_whole_with_the_turns_of_its_last_try_only(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        whole = trajectory()
        cut = {"attempt": 0, "turn": Turn(observation="lost", action="lost").model_dump(mode="json")}
        journal.append("step", cut, whole.id)
        assert journal.trajectory(whole.id) is None
        write(journal, whole, attempt=1)
        assert journal.trajectory(whole.id) == whole
        assert list(journal.trajectories()) == [whole]


def test_long_texts_are_stored_once_and_odd_ones_survive(tmp_path: Path) -> None:
    odd = {
        "surrogate": "\ud800",
        "nul": "a\x00b",
        "breaks": "\r\n\u2028",
        "nested": [{"deep": LONG * 2}, [LONG * 2]],
        "a name of ours": {"$text": "1"},
        "nan": 1e400,
    }
    with Journal(tmp_path) as journal:
        for _ in range(50):
            journal.append("a", odd)
    with Journal(tmp_path) as journal:
        journal.append("a", odd)
        assert all(event.body == odd for event in journal.events())
        assert sum(1 for _ in journal.events()) == 51
    db = sqlite3.connect(tmp_path / FILE)
    assert db.execute("SELECT count(*) FROM pieces").fetchone() == (1,)
    db.close()


def test_two_writers_are_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    code = "import sys; from harness.journal import Journal\ntry: Journal(sys.argv[1])\nexcept Exception as e: print(e)"
    with Journal(tmp_path) as journal:
        with pytest.raises(JournalError, match=r"another process is writing this run\. Cure: wait for it"):
            Journal(tmp_path)
        other = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
        assert "another process is writing this run" in other.stdout
        journal.append("a", {})
    with Journal(tmp_path) as journal:
        assert sum(1 for _ in journal.events()) == 1


def test_readers_see_what_was_written_while_it_is_written(tmp_path: Path) -> None:
    counts: list[int] = []
    with Journal(tmp_path) as journal:
        journal.append("a", {"text": LONG})

        def read() -> None:
            while not counts or counts[-1] < 200:
                with Journal(tmp_path, readonly=True) as reader:
                    counts.append(sum(event.body == {"text": LONG} for event in reader.events()))

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(199):
            journal.append("a", {"text": LONG})
        for thread in threads:
            thread.join()
    assert max(counts) == 200


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append("a", {})
    with Journal(tmp_path, readonly=True) as journal, pytest.raises(JournalError, match="cannot be written"):
        journal.append("a", {})


WRITER = """
import sys
from harness.journal import Journal
journal, n = Journal(sys.argv[1]), int(sys.argv[2])
while True:
    n += 1
    journal.append("a", {"n": n, "text": f"{n} " * 200})
    print(n, flush=True)
"""


def test_nothing_that_was_appended_is_lost_when_the_writer_is_killed_at_random_moments(tmp_path: Path) -> None:
    rng, told = random.Random(5), 0
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path, str(told)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        lines = [first, *process.stdout]
        process.stdout.close()
        process.wait()
        told = max(int(line) for line in lines if line.endswith("\n"))
        with Journal(tmp_path) as journal:  # the lock died with its owner
            bodies = [event.body for event in journal.events()]
        assert [body["n"] for body in bodies] == list(range(1, len(bodies) + 1))
        assert all(body["text"] == f"{body['n']} " * 200 for body in bodies)
        assert len(bodies) >= told
        told = len(bodies)


def test_a_newer_format_is_refused_with_the_cure(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    db = sqlite3.connect(tmp_path / FILE)
    db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (str(FORMAT + 1),))
    db.commit()
    db.close()
    for readonly in (True, False):
        with pytest.raises(JournalError, match=rf"{FILE}: format {FORMAT + 1} is newer .* update instar"):
            Journal(tmp_path, readonly=readonly)
    with pytest.raises(JournalError, match="newer"):  # and the refused writer left no lock behind
        Journal(tmp_path)


@pytest.mark.parametrize("readonly", [True, False])
def test_what_is_no_journal_is_refused_and_left_as_it_was(tmp_path: Path, readonly: bool) -> None:
    (tmp_path / FILE).write_text("my notes, no database, and long enough to be looked at as one\n" * 20)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(JournalError, match=r"not a journal of instar, or a damaged one\. Cure: move it away"):
        Journal(tmp_path, readonly=readonly)
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize("readonly", [True, False])
def test_another_programs_database_is_refused_and_gets_no_tables_of_ours(tmp_path: Path, readonly: bool) -> None:
    db = sqlite3.connect(tmp_path / FILE)
    db.execute("CREATE TABLE theirs (x)")
    with pytest.raises(JournalError, match="not a journal of instar"):
        Journal(tmp_path, readonly=readonly)
    assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    db.close()


def test_reading_where_no_run_is_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"no run here \(journal\.db is missing\)"):
        Journal(tmp_path / "none", readonly=True)
    assert not (tmp_path / "none").exists()


def test_a_file_in_place_of_the_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(JournalError, match=r"run: cannot be written: .* choose another folder with --out"):
        Journal(tmp_path / "run")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_an_archive_on_a_disk_that_cannot_be_written_can_be_read(small_disk: Path) -> None:
    with Journal(small_disk) as journal:
        journal.append("a", {"n": 1})
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with Journal(small_disk, readonly=True) as journal:
        assert [event.body for event in journal.events()] == [{"n": 1}]
    with pytest.raises(JournalError, match=r"cannot be written: .* choose another folder with --out"):
        Journal(small_disk)
    with pytest.raises(JournalError, match=r"cannot be written: .* choose another folder with --out"):
        Journal(small_disk / "new")


def test_a_disk_that_gets_full_is_one_clear_error_and_what_had_finished_is_kept(small_disk: Path) -> None:
    done, noise = 0, random.Random(0)
    with Journal(small_disk) as journal:
        with pytest.raises(JournalError, match=r"the disk is full\. Cure: free some space"):  # noqa: PT012
            for done in range(1000):
                journal.append("a", {"n": done, "noise": noise.randbytes(3000).hex()})
        assert [event.body["n"] for event in journal.events()] == list(range(done))
    with Journal(small_disk, readonly=True) as journal:
        assert sum(1 for _ in journal.events()) == done
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    with Journal(small_disk) as journal:
        journal.append("a", {"n": done})
        assert [event.body["n"] for event in journal.events()] == list(range(done + 1))


FILLER = """
import os, resource, sys
from harness.journal import Journal, JournalError
journal = Journal(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
n = 0
try:
    while True:
        journal.append("a", {"n": n, "noise": os.urandom(3000).hex()})
        n += 1
except JournalError as error:
    print(f"{n}\\n{error}")
"""


def test_a_disk_quota_is_one_clear_error_and_what_had_finished_is_kept(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FILLER, tmp_path], capture_output=True, text=True, check=True)
    count, message = done.stdout.splitlines()
    assert str(tmp_path / FILE) in message
    assert "Cure: make room and give the command again" in message
    with Journal(tmp_path) as journal:
        assert [event.body["n"] for event in journal.events()] == list(range(int(count)))
        journal.append("a", {"n": "on"})


def test_the_digest_forgets_times_tries_caching_and_gaps_since_filled(tmp_path: Path) -> None:
    with Journal(tmp_path / "a") as a, Journal(tmp_path / "b") as b:
        write(a, trajectory("x"))
        write(a, trajectory("y"))
        a.append("note", {"seconds": 1, "n": 2})
        write(b, trajectory("y"))
        gap = trajectory("x", status="gap", score=None)
        write(b, gap)
        assert a.digest() != b.digest()
        later = trajectory("x").model_copy(update={"started": 9.0, "seconds": 0.0})
        paid = later.turns[0].calls[0].model_copy(update={"cached": True, "usage": Usage(prompt_tokens=3, dollars=0.5)})
        calls = (paid, *later.turns[0].calls[1:])
        turns = (later.turns[0].model_copy(update={"calls": calls}), later.turns[1])
        write(b, later.model_copy(update={"turns": turns}), attempt=1)
        b.append("note", {"n": 2, "seconds": 5})
        assert a.digest() == b.digest()
        b.append("note", {"n": 3})
        assert a.digest() != b.digest()


def stored(folder: Path, format: int) -> Path:
    """The run folder of the sample of `format`."""
    folder.mkdir()
    db = sqlite3.connect(folder / FILE)
    db.executescript((DATA / f"journal_{format}.sql").read_text(encoding="utf-8"))
    db.close()
    return folder


@pytest.mark.parametrize("format", range(1, FORMAT + 1))
def test_a_journal_of_every_format_is_read(tmp_path: Path, format: int) -> None:
    """A sample was written by `python tests/harness/test_journal.py` for its format; it must stay readable."""
    folder = stored(tmp_path / "run", format)
    for readonly in (True, False):
        with Journal(folder, readonly=readonly) as journal:
            assert [event.kind for event in journal.events()] == ["plan", "step", "step", "episode", "outcome"]
            assert list(journal.trajectories()) == [trajectory()]
            assert list(journal.finished()) == [Finished.of(trajectory())]
            plan = journal.last("plan")
            assert plan is not None
            assert plan.body == {"command": "run", "files": {"prompts/step.md": LONG}}


def test_a_journal_of_format_1_is_gone_on_with_and_nothing_in_it_is_rewritten(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", 1)
    db = sqlite3.connect(folder / FILE)
    before = [db.execute(f"SELECT * FROM {table}").fetchall() for table in ("events", "texts")]
    with Journal(folder, readonly=True) as journal:
        digest = journal.digest()
        assert journal.answer("m:1") is None  # nobody looks through an old journal for it
    with Journal(folder) as journal:
        assert journal.digest() == digest
        answered = journal.answer("m:1")
        assert answered is not None
        assert answered["output"] == "go"
        write(journal, trajectory("run/agent/u/0"))
        journal.append("plan", {"files": {"prompts/step.md": LONG}})
    with Journal(folder, readonly=True) as journal:
        assert list(journal.trajectories()) == [trajectory(), trajectory("run/agent/u/0")]
        assert [row.id for row in journal.finished()] == ["run/agent/t/0", "run/agent/u/0"]
    after = [db.execute(f"SELECT * FROM {table}").fetchall() for table in ("events", "texts")]
    assert db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == (str(FORMAT),)
    db.close()
    assert after == [before[0] + after[0][len(before[0]) :], before[1]]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        with Journal(folder) as sample:
            sample.append("plan", {"command": "run", "files": {"prompts/step.md": LONG}})
            write(sample, trajectory())
            sample.append("outcome", json.loads('{"mean": 0.5}'))
        connection = sqlite3.connect(Path(folder) / FILE)
        SAMPLE.write_text("\n".join(connection.iterdump()) + "\n", encoding="utf-8")
        connection.close()
