"""A journal that grows for a night: flat memory, texts once, readers that hold nothing up, rows instead of turns."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness import database, texts
from harness.finished import Finished
from harness.journal import FILE, Journal
from harness.model import Message, ToolCall, Usage
from harness.trajectory import Call, Lost, Trajectory, Turn

BIG = "a text of more than a thousand characters " * 40


def count(folder: Path, table: str) -> int:
    with closing(sqlite3.connect(folder / FILE)) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def said(*words: str) -> tuple[Message, ...]:
    """A conversation: what the system says, then in turn the assistant and a tool."""
    head = [Message(role="system", content=BIG), Message(role="user", content="begin")]
    for n, word in enumerate(words):
        made = ToolCall(id=str(n), name="act", arguments=f'"{word}"')
        head += [Message(role="assistant", content=word, tool_calls=(made,)),
                 Message(role="tool", content=f"{word} was done", tool_call_id=str(n))]  # fmt: skip
    return tuple(head)


def turn(messages: tuple[Message, ...], digest: str = "m:1#1", **more: Any) -> Turn:
    tool: dict[str, Any] = {"type": "function", "function": {"name": "act", "description": BIG}}
    call = Call(messages=messages, tools=(tool,), output="o", digest=digest, usage=Usage(dollars=0.0), **more)
    return Turn(observation="seen " * 60, action="a", calls=(call,), retrieved=("i", "j", "i"))


def episode(key: str, turns: tuple[Turn, ...] = (), **more: Any) -> Trajectory:
    told = {"status": "done", "score": 1.0} | more
    return Trajectory(
        id=key, task=key.split("/")[2], split="valid", goal="g", episode=0, seed=1, harness="h", model="m", turns=turns,
        arm="agent", **told,
    )  # fmt: skip


def write(journal: Journal, one: Trajectory, attempt: int = 0) -> None:
    journal.append("start", {"attempt": attempt}, one.id)
    for each in one.turns:
        journal.step(one.id, attempt, each)
    journal.finish(one, attempt)


GROW = """
import sys
from harness.journal import Journal
from harness.model import Message
from harness.trajectory import Call, Trajectory, Turn

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

with Journal(sys.argv[1]) as journal:
    for n in range(3000):
        talk = tuple(Message(role="assistant", content=f"{n} {i} " * 50) for i in range(20))
        turns = (Turn(observation="o", action="a", calls=(Call(messages=talk, output="o"),)),)
        one = Trajectory(id=f"run/agent/t{n}/0", task="t", split="s", goal="g", episode=0, seed=0, harness="h",
                         model="m", turns=turns, status="done")
        journal.step(one.id, 0, one.turns[0])
        journal.finish(one, 0)
        if n == 1000:
            before = resident()
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells what is resident")
def test_memory_does_not_grow_with_events_that_all_differ(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", GROW, tmp_path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4_000_000  # one small string for each piece would be 12 MB


FOLLOW = """
import sys
from harness.journal import Journal
with Journal(sys.argv[1], readonly=True) as journal:
    seen = 0
    for _ in sys.stdin:
        new = [event.body["n"] for event in journal.events(after=seen)]
        seen += len(new)
        print(*new, flush=True)
"""


def test_another_process_sees_each_event_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        reader = subprocess.Popen(
            [sys.executable, "-c", FOLLOW, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with reader as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for n in range(100):
                journal.append("a", {"n": n, "text": f"{n} {BIG}"})
                print("look", file=process.stdin, flush=True)
                assert process.stdout.readline() == f"{n}\n"


def beside(folder: Path) -> int:
    """Bytes that wait beside the database."""
    return (folder / f"{FILE}-wal").stat().st_size


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits beside the database is moved into it every 50 pages, and 100 kB may stay."""
    monkeypatch.setattr(database, "_CHECKPOINT", 50)
    monkeypatch.setattr(database, "_SPARE", 100_000)


def fill(journal: Journal, n: int) -> None:
    for i in range(n):
        journal.append("a", {"n": i, "text": f"{i} " * 500})


@pytest.mark.usefixtures("often")
def test_a_reader_in_the_middle_of_a_journal_does_not_make_it_grow(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, Journal(tmp_path, readonly=True) as reader:
        fill(journal, 600)
        reading: list[Iterator[Any]] = [reader.events(), reader.events("a"), reader.finished()]
        firsts = [next(events) for events in reading[:2]]
        fill(journal, 1500)
        assert beside(tmp_path) < 1_000_000
        assert [event.seq for event in firsts] == [1, 1]
        assert [sum(1 for _ in events) for events in reading] == [599, 599, 0]  # what there was when they began


@pytest.mark.usefixtures("often")
def test_a_reader_that_holds_a_snapshot_stops_nobody_and_what_it_cost_is_given_back(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        fill(journal, 10)
        with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM events").fetchone() == (10,)
            fill(journal, 1000)
            assert reader.execute("SELECT count(*) FROM events").fetchone() == (10,)
            grown = beside(tmp_path)
            assert grown > 2_000_000
            reader.execute("COMMIT")
        fill(journal, 100)
        assert beside(tmp_path) < 1_000_000
        assert sum(1 for _ in journal.events()) == 1110


def test_a_large_text_is_stored_once_also_when_it_was_long_ago_and_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_RECENT", 10)
    for _ in range(3):
        with Journal(tmp_path) as journal:
            for n in range(20):
                journal.append("a", {"large": BIG, "small": f"{n}" * 300})
    assert count(tmp_path, "pieces") == 1 + 3 * 20
    with Journal(tmp_path, readonly=True) as journal:
        assert all(event.body["large"] == BIG for event in journal.events())


def test_texts_whose_hashes_collide_are_not_taken_for_one_another(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append("a", {"text": BIG})
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        (hash,) = db.execute("SELECT hash FROM names").fetchone()
        db.execute("DELETE FROM names")
        db.execute("INSERT INTO pieces (data) VALUES ('another')")
        db.execute("INSERT INTO names SELECT ?, max(id) FROM pieces", (hash,))
        db.commit()
    with Journal(tmp_path) as journal:
        journal.append("a", {"text": BIG})
        assert [event.body for event in journal.events()] == [{"text": BIG}] * 2


def test_a_conversation_that_grows_costs_what_is_new(tmp_path: Path) -> None:
    words = [f"word {n} " * 30 for n in range(20)]
    with Journal(tmp_path) as journal:
        for n in range(len(words) + 1):
            talk = said(*words[:n])
            for key in ("run/agent/a/0", "run/agent/b/0"):  # two at once, and other objects of the same content
                again = tuple(Message.model_validate(message.model_dump()) for message in talk)
                journal.step(key, 0, turn(talk if key < "run/agent/b" else again))
        bodies = [event.body for event in journal.events("step")]
    assert [len(body["turn"]["calls"][0]["messages"]) for body in bodies[::2]] == list(range(2, 43, 2))
    # the text of system and tool; what was seen; a link for the tools, one for the first messages, and then a link for
    # each two, with the texts of what was said, of the call's arguments and of the answer
    assert count(tmp_path, "pieces") == 1 + 1 + 1 + 1 + 20 * (1 + 3)


def test_what_step_writes_is_what_append_writes(tmp_path: Path) -> None:
    same = said("one", "two")
    odd = ({"$text": "1"}, {"role": "assistant"}, {"messages": [{"role": "assistant"}]})
    turns = [
        turn(said()), turn(said("one")), turn(same), turn(same), turn(said("one", "other")), turn(said("one")),
        turn(()), turn(said("\ud800" * 300)), turn(said(BIG, BIG), tool_calls=same[2].tool_calls),
        Turn(observation="no call", action="a"),
        Turn(observation="", action="", calls=(Call(prompt="", output=""), Call(prompt=BIG, output="", tools=odd))),
    ]  # fmt: skip
    with Journal(tmp_path) as journal:
        for each in turns:
            journal.step("k", 3, each)
            journal.append("step", {"attempt": 3, "turn": each.model_dump(mode="json", exclude_defaults=True)}, "k")
        bodies = [event.body for event in journal.events()]
    assert bodies[::2] == bodies[1::2]
    assert [Turn.model_validate(body["turn"]) for body in bodies[::2]] == turns
    assert {body["attempt"] for body in bodies} == {3}


def test_an_event_that_cannot_be_written_leaves_nothing_of_itself_behind(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        with pytest.raises(TypeError):
            journal.append("a", {"text": BIG, "talk": {"messages": ["x"]}, "bad": object()})
        journal.append("a", {"other": BIG[::-1]})
        journal.append("a", {"text": BIG})
        assert [event.body for event in journal.events()] == [{"other": BIG[::-1]}, {"text": BIG}]


def older(folder: Path) -> None:
    """Make it a journal as a version wrote it that knew no rows."""
    with closing(sqlite3.connect(folder / FILE)) as db:
        db.execute("DROP TRIGGER finished_last")
        db.execute("DELETE FROM finished")
        db.commit()


def test_rows_of_episodes_are_the_same_whether_they_were_kept_or_are_made_from_the_turns(tmp_path: Path) -> None:
    used = Usage(prompt_tokens=5, cached_tokens=2, output_tokens=3, dollars=0.25, seconds=1.0)
    lost = Lost(calls=1, usage=used)
    turns = (turn(said(), faults=("429", "429", "time-out")), turn(said("one"), "m:2", cached=True))
    with Journal(tmp_path) as journal:
        write(journal, episode("run/agent/plain/0", turns))
        write(journal, episode("run/agent/empty/0", status="gap", score=None, reason="it broke", fault="environment"))
        journal.append("start", {"attempt": 0}, "run/agent/late/0")
        journal.step("run/agent/late/0", 0, turn(said(), "m:paid"))
        journal.append("lost", {"attempt": 0, "unfinished": [{"digest": "m:too", "output": ""}]}, "run/agent/late/0")
        write(journal, episode("run/agent/late/0", turns, lost=lost), attempt=1)
        unpriced = (turns[0].model_copy(update={"calls": (Call(prompt=BIG, output=BIG),)}),)
        write(journal, episode("exam/agent/plain/0", unpriced, started=3.0, seconds=0.5))
        write(journal, episode("exam/agent/plain/0", turns, score=0.25), attempt=1)
        journal.finish(episode("exam/agent/unsaid/0"), 0)
        asked = (Call(prompt="p", output="o", digest="m:3"),)
        journal.append("lost", {"attempt": 0, "unfinished": [asked[0].model_dump(mode="json")]}, "run/agent/twice/0")
        journal.finish(episode("run/agent/twice/0", status="gap", score=None, unfinished=asked), 1)
        journal.step("run/agent/apart/0", 0, turns[0])
        journal.finish(episode("run/agent/apart/0"), 0)  # its turns are not given again
        kept = list(journal.finished())
        assert [row.id.split("/")[2] for row in kept] == [
            "plain", "empty", "late", "plain", "plain", "unsaid", "twice", "apart",
        ]  # fmt: skip
        assert [row.turns for row in kept] == [2, 0, 2, 1, 2, 0, 0, 1]
        assert [row.stray for row in kept] == [0, 0, 1, 0, 1, 0, 0, 0]
        assert (kept[2].calls, kept[2].prompt_tokens, kept[2].paid_dollars) == (3, 5, 0.25)
        assert (kept[0].cached, dict(kept[0].retried)) == (1, {"429": 2, "time-out": 1})
        assert (kept[3].dollars, kept[3].size > 2 * len(BIG)) == (None, True)
        assert [row.id for row in journal.finished("exam/")] == ["exam/agent/plain/0"] * 2 + ["exam/agent/unsaid/0"]
        assert list(journal.finished(newest_first=True)) == kept[::-1]
        assert journal.ended("exam/agent/plain/0") == kept[4]
        assert journal.ended("run/agent/nobody/0") is None
        recalls = journal.recalls()
        assert recalls == {"i": 7, "j": 7}  # of the one that was played again only the last time
        assert journal.recalls(["run/agent/plain/0", "run/agent/nobody/0"]) == {"i": 2, "j": 2}
        trajectories = list(journal.trajectories())
    older(tmp_path)
    for readonly in (True, False):
        with Journal(tmp_path, readonly=readonly) as journal:
            assert list(journal.finished()) == kept
            assert journal.recalls() == recalls
            assert journal.ended("exam/agent/plain/0") == kept[4]
    both = [(t.calls, t.cached, t.tokens, t.dollars, t.score, t.status, t.reason) for t in trajectories]
    assert both == [(r.calls, r.cached, r.tokens, r.dollars, r.score, r.status, r.reason) for r in kept]


def test_a_row_of_a_later_version_is_read_without_what_is_not_known() -> None:
    row = Finished.of(episode("run/agent/t/0"))
    assert Finished.parse([row.text()[:-1] + ',"what is this"]', row.text()]) == [row, row]


def test_episodes_that_did_not_end_are_named_with_the_calls_they_had_paid(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        write(journal, episode("run/agent/done/0", (turn(said()),)))
        journal.append("start", {"attempt": 0}, "run/agent/cut/0")
        journal.step("run/agent/cut/0", 0, turn(said(), "m:1"))
        journal.step("run/agent/cut/0", 0, turn(said("one"), "m:2", cached=True))
        write(journal, episode("run/agent/gap/0", (turn(said(), "m:3"),), status="gap", score=None))
        journal.append("start", {"attempt": 1}, "run/agent/gap/0")
        journal.step("run/agent/gap/0", 1, turn(said("new"), "m:4"))
        assert journal.unfinished() == ["run/agent/cut/0", "run/agent/gap/0"]
        assert [journal.stray(f"run/agent/{key}/0") for key in ("done", "cut", "gap")] == [0, 1, 1]


def test_an_answer_that_serves_all_is_found_by_its_digest_and_the_first_one_counts(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for n, digest in enumerate(("m:one", "m:two", "m:one", "m:own#1")):
            answered = turn(said(), digest).calls[0].model_copy(update={"output": f"{n} {BIG}"})
            journal.step(f"k{n}", 0, Turn(observation="o", action="a", calls=(answered,)))
        journal.append("lost", {"attempt": 0, "unfinished": [{"digest": "m:lost", "output": "l"}]}, "k")
        unfinished = (Call(prompt="p", output="u", digest="m:last"),)
        journal.finish(episode("run/agent/t/0", unfinished=unfinished), 0)
    for readonly in (False, True):
        with Journal(tmp_path, readonly=readonly) as journal:
            one = journal.answer("m:one")
            assert one is not None
            assert one["output"] == f"0 {BIG}"
            assert not one.keys() & {"messages", "tools", "prompt"}
            found = [journal.answer(digest) for digest in ("m:two", "m:lost", "m:last")]
            assert [call["output"][:1] if call else None for call in found] == ["1", "l", "u"]
            assert journal.answer("m:own#1") is None
            assert journal.answer("m:unknown") is None
    assert count(tmp_path, "answers") == 4


def test_calls_are_told_in_order_with_their_attempt_and_without_what_was_sent(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.step("k", 0, turn(said(), "m:1#1"))
        journal.append("lost", {"attempt": 0, "unfinished": [{"digest": "m:2#1", "output": BIG, "prompt": BIG}]}, "k")
        journal.step("k", 1, turn(said(), "m:1#1", cached=True))
        journal.step("other", 0, turn(said()))
        told = [(attempt, call["digest"], sorted(call)) for attempt, call in journal.calls("k")]
    most = ["digest", "output", "usage"]
    assert told == [(0, "m:1#1", most), (1, "m:1#1", ["cached", *most]), (0, "m:2#1", ["digest", "output"])]


def test_the_newest_event_of_some_kinds(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for n, kind in enumerate("abcab"):
            journal.append(kind, {"n": n}, f"{n}")
        for kinds, expected in ((("a", "c"), 3), (("c",), 2), ("abc", 4)):
            found = journal.newest(kinds)
            assert found is not None
            assert found.body == {"n": expected}
        assert journal.newest(("d",)) is None


def test_a_run_that_recalled_nothing_says_so_whether_its_rows_were_kept_or_not(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        write(journal, episode("run/agent/t/0", (Turn(observation="o", action="a"),)))
        assert journal.recalls() == {}
        journal.step("run/agent/u/0", 0, Turn(observation="o", action="a", retrieved=("i",)))
        journal.finish(episode("run/agent/u/0"), 0)
        assert journal.recalls() == {"i": 1}
    older(tmp_path)
    with Journal(tmp_path) as journal:
        assert journal.recalls() == {"i": 1}
