"""One append-only journal per run: the only precious thing a run leaves behind.

Every event is durable when `append` returns (`harness/database.py` says against what), nothing is ever changed or
deleted (the database refuses it), and resume, caches, reports and exports only read. Of an event that is wanted `soon`
it holds when the event loop comes round: what many episodes write at one moment is one transaction.

An event costs the same whether it is the first or the millionth, in time and in memory. Readers never hold the journal
up and it never holds them up: they read a page at a time what had been committed when the reading began.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.database import FILE as FILE
from harness.database import FORMAT as FORMAT
from harness.database import Database, Gathering
from harness.database import JournalError as JournalError
from harness.finished import Finished, recalled
from harness.texts import TextMissing, Texts, as_json
from harness.trajectory import Trajectory, Turn

_PAGE = 256  # events that a reader takes at once
_CHANCE = ("seconds", "started", "at", "cached", "faults", "retried")  # what may differ between equal runs


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the journal: `body` is plain JSON data."""

    seq: int
    at: float
    kind: str
    key: str
    body: dict[str, Any]


class Journal:
    """The journal in `folder`. One writer at a time (the folder is locked); any number of readers."""

    def __init__(self, folder: str | os.PathLike[str], *, readonly: bool = False) -> None:
        self.folder = Path(folder)
        self._data = Database(self.folder, readonly=readonly)
        self.path = self._data.path
        self._db = self._data.connection
        self._texts = Texts(self._db)
        self._data.undone = self._texts.forget
        self._settling: asyncio.AbstractEventLoop | None = None  # the one that will commit what was gathered
        self._derives = self._data.format == FORMAT or not readonly
        if self._data.format < FORMAT and not readonly:
            try:
                self._upgrade()
            except BaseException:
                self.close()
                raise

    def append(
        self, kind: str, body: dict[str, Any], key: str = "", *, at: float | None = None, soon: bool = False
    ) -> int:
        """Add one event and return its number; when this returns the event survives a kill.

        `at`: Unix seconds of something that happened elsewhere; None is now. Events are in order of writing, always.
        `soon`: survives one when the event loop comes round, together with what others write until then.
        """
        with self._soon() if soon else self._data.writing():
            return self._insert(kind, self._texts.fold(body), key, at)

    def step(self, key: str, attempt: int, turn: Turn, *, at: float | None = None, soon: bool = False) -> int:
        """Add a `step` event: the next turn of this try at episode `key`. What was said before costs nothing again."""
        with self._soon() if soon else self._data.writing():
            return self._insert("step", {"attempt": attempt, "turn": self._texts.fold_turn(key, turn)}, key, at)

    def finish(self, trajectory: Trajectory, attempt: int, *, at: float | None = None) -> int:
        """Add an `episode` event: the end of an episode whose turns were written as `step` events of this attempt.

        The trajectory may leave its turns out: they are then read.
        """
        body = trajectory.model_dump(mode="json", exclude={"turns"}) | {"attempt": attempt}
        if not trajectory.turns:
            turns = tuple(Turn.model_validate(turn) for turn in self._turns(trajectory.id, attempt))
            trajectory = trajectory.model_copy(update={"turns": turns})
        row, items = Finished.of(trajectory, self._earlier(trajectory, attempt)).text(), recalled(trajectory)
        kept = as_json(items).decode() if items else None
        with self._data.gathering():
            seq = self._insert("episode", self._texts.fold(body), trajectory.id, at)
            self._db.execute("INSERT INTO finished VALUES (?, ?, ?)", (seq, row, kept))
        self._data.settle()
        self._texts.ended(trajectory.id)
        return seq

    def events(self, kind: str | None = None, key: str | None = None, after: int = 0) -> Iterator[Event]:
        """Events in order, of one kind and key if given, that there are now; never all of them in memory at once."""
        for seq, at, name, label, body in self._rows(kind, key, after):
            yield Event(seq, at, name, label, self._unfold(json.loads(body)))

    def last(self, kind: str, key: str = "") -> Event | None:
        """The newest event of `kind` and `key`."""
        return self._one("kind = ? AND key = ?", kind, key)

    def newest(self, kinds: Sequence[str]) -> Event | None:
        """The newest event of any of these kinds."""
        return self._one(f"+kind IN ({','.join('?' * len(kinds))})", *kinds)

    def trajectory(self, key: str) -> Trajectory | None:
        """The finished episode `key`, or None when it never finished."""
        event = self.last("episode", key)
        return None if event is None else self._assemble(event)

    def trajectories(self) -> Iterator[Trajectory]:
        """All finished episodes in order of finishing; of a repeated one, each."""
        for event in self.events("episode"):
            yield self._assemble(event)

    def ended(self, key: str) -> Finished | None:
        """The row of the finished episode `key`, without reading its turns; None when it never finished."""
        row = "(SELECT row FROM finished WHERE finished.seq = events.seq)" if self._derives else "NULL"
        query = f"SELECT seq, {row} FROM events WHERE kind = 'episode' AND key = ? ORDER BY seq DESC LIMIT 1"
        for seq, text in self._data.select(query, (key,)):
            return Finished.parse([text])[0] if text else self._derive(seq)
        return None

    def finished(self, prefix: str | tuple[str, ...] = "", *, newest_first: bool = False) -> Iterator[Finished]:
        """The rows of all finished episodes whose key begins so, in order of finishing; of a repeated one, each.

        Newest first, the first row of a repeated one is the one that counts.
        """
        query = "SELECT seq, row FROM finished WHERE seq BETWEEN ? AND ? ORDER BY seq"
        pages = list(_pages(self._numbers("episode")))
        for page in reversed(pages) if newest_first else pages:
            kept = self._data.select(query, (page[0], page[-1])) if self._derives else []
            rows = Finished.parse(text for _, text in kept)
            if len(rows) < len(page):
                known = dict(zip((seq for seq, _ in kept), rows, strict=True))
                rows = [known[seq] if seq in known else self._derive(seq) for seq in page]
            for row in reversed(rows) if newest_first else rows:
                if row.id.startswith(prefix):
                    yield row

    def recalls(self, keys: Iterable[str] | None = None) -> Counter[str]:
        """How often each item was in the prompt of a turn: of these episodes, or of all, each as it ended last."""
        if keys is None:
            if self._derives:
                rows, recalling = self._data.select("SELECT count(*), count(recalled) FROM finished")[0]
                ended = self._data.select("SELECT count(*) FROM events WHERE kind = 'episode'")[0][0]
                if not recalling and rows == ended:
                    return Counter()
            query = "SELECT max(seq) FROM events WHERE kind = 'episode' GROUP BY key ORDER BY 1"
            numbers = array("q", (seq for (seq,) in self._data.select(query)))
        else:
            numbers = array("q", sorted(seq for key in keys for seq in self._numbers("episode", key)[-1:]))
        found: Counter[str] = Counter()
        for page in _pages(numbers):
            query = f"SELECT seq, recalled FROM finished WHERE seq IN ({','.join('?' * len(page))})"
            kept = dict(self._data.select(query, page)) if self._derives else {}
            texts = [kept[seq] for seq in page if kept.get(seq)]
            for items in json.loads(f"[{','.join(texts)}]"):
                found.update(items)
            for seq in page:
                if seq not in kept:
                    found.update(recalled(self._ending(seq)[0]))
        return found

    def unfinished(self) -> list[str]:
        """Keys of episodes whose last try began and did not end."""
        query = """SELECT key FROM (
            SELECT key, max(seq) AS seq FROM events WHERE kind = 'start' GROUP BY key
          ) AS begun WHERE NOT EXISTS (
            SELECT 1 FROM events WHERE kind = 'episode' AND key = begun.key AND seq > begun.seq
          )"""
        return [key for (key,) in self._data.select(query)]

    def calls(self, key: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """The attempt and the call, in order, of all calls of all tries at `key`; without what was sent to the model.

        In each try, calls of turns come first and those that no action followed come last.
        """
        for kind in ("step", "lost", "episode"):
            for _, _, _, _, text in self._rows(kind, key):
                body = json.loads(text)
                for call in _calls(kind, body):
                    yield body["attempt"], self._unfold(_unsent(call))

    def stray(self, key: str) -> int:
        """Calls that tries at `key` had paid for, which its last finished try neither used nor counted as lost."""
        end = self.last("episode", key)
        if end is None:
            return _stray((call for _, call in self.calls(key)), ())
        last = end.body["attempt"]
        others = (call for attempt, call in self.calls(key) if attempt != last)
        final = self._assemble(end)
        return _stray(others, (call.digest for call in final.all_calls), final.lost.calls)

    def answer(self, digest: str) -> dict[str, Any] | None:
        """The call that first got the answer to this request, without what was sent; None: nobody has asked.

        Only for digests whose answers serve all episodes (`serves_all`).
        """
        if not self._derives:
            return None
        with self._data.faults():
            query = "SELECT kind, body FROM events WHERE seq = (SELECT seq FROM answers WHERE hash = ?)"
            found = self._db.execute(query, (_short(digest),)).fetchone()
        if found is not None:
            for call in _calls(found[0], json.loads(found[1])):
                if call.get("digest") == digest:
                    return dict(self._unfold(_unsent(call)))
        return None

    def digest(self) -> str:
        """Hash of what came out, free of times, tries, gaps since filled, and caching: equal for equal runs."""
        rows = {t.id: _hash(t.model_dump(mode="json", exclude={"lost"})) for t in self.trajectories()}
        with self._data.faults():
            kinds = [kind for (kind,) in self._db.execute("SELECT DISTINCT kind FROM events").fetchall()]
        for kind in kinds:
            if kind not in ("start", "step", "lost", "episode"):
                rows |= {f"{kind}:{event.key}": _hash(event.body) for event in self.events(kind)}
        return _hash(rows)

    def close(self) -> None:
        """Close the database and release the folder; idempotent."""
        self._data.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _soon(self) -> Gathering:
        """Gather what is written, and commit it when the running event loop comes round."""
        loop = asyncio.get_running_loop()
        if self._settling is not loop:
            self._settling = loop
            loop.call_soon(self._settle)
        return self._data.gathering()

    def _settle(self) -> None:
        self._settling = None
        with contextlib.suppress(JournalError):  # whoever writes next, or closes the journal, is told
            self._data.settle()

    def _insert(self, kind: str, folded: dict[str, Any], key: str, at: float | None) -> int:
        values = (time.time() if at is None else at, kind, key, as_json(folded).decode())
        row = self._db.execute("INSERT INTO events (at, kind, key, body) VALUES (?, ?, ?, ?)", values)
        seq = int(row.lastrowid or 0)
        self._index(seq, kind, folded)
        return seq

    def _index(self, seq: int, kind: str, body: Mapping[str, Any]) -> None:
        for call in _calls(kind, body):
            if serves_all(call.get("digest", "")):
                self._db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (_short(call["digest"]), seq))

    def _numbers(self, kind: str, key: str | None = None, after: int = 0) -> "array[int]":
        """The numbers of all events of a kind, from the index alone."""
        query = "SELECT seq FROM events INDEXED BY events_by_kind WHERE kind = ? AND seq > ?"
        given: list[Any] = [kind, after]
        if key is not None:
            query += " AND key = ?"
            given.append(key)
        with self._data.faults():
            return array("q", (seq for (seq,) in self._db.execute(f"{query} ORDER BY seq", given)))

    def _rows(self, kind: str | None, key: str | None = None, after: int = 0) -> Iterator[tuple[Any, ...]]:
        """Events as they are stored, a page at a time: between two pages nothing is held open."""
        if kind is not None:
            for page in _pages(self._numbers(kind, key, after)):
                marks = ",".join("?" * len(page))
                query = f"SELECT seq, at, kind, key, body FROM events WHERE seq IN ({marks}) ORDER BY seq"
                yield from self._data.select(query, page)
            return
        top = self._data.select("SELECT max(seq) FROM events", ())[0][0] or 0
        given = "" if key is None else "AND key = ?"
        query = f"SELECT seq, at, kind, key, body FROM events WHERE seq > ? AND seq <= ? {given} ORDER BY seq LIMIT ?"
        while after < top:
            rows = self._data.select(query, (after, top, *(() if key is None else (key,)), _PAGE))
            yield from rows
            after = rows[-1][0] if rows else top

    def _one(self, where: str, *given: Any) -> Event | None:
        rows = self._data.select(
            f"SELECT seq, at, kind, key, body FROM events WHERE {where} ORDER BY seq DESC LIMIT 1", given
        )
        if not rows:
            return None
        seq, at, kind, key, body = rows[0]
        return Event(seq, at, kind, key, self._unfold(json.loads(body)))

    def _assemble(self, event: Event) -> Trajectory:
        body = dict(event.body)
        attempt = body.pop("attempt")
        return Trajectory.model_validate({**body, "turns": self._turns(event.key, attempt)})

    def _turns(self, key: str, attempt: int) -> list[dict[str, Any]]:
        return [event.body["turn"] for event in self.events("step", key) if event.body["attempt"] == attempt]

    def _derive(self, seq: int) -> Finished:
        """The row of an episode that an older version wrote."""
        trajectory, attempt = self._ending(seq)
        return Finished.of(trajectory, self._earlier(trajectory, attempt))

    def _ending(self, seq: int) -> tuple[Trajectory, int]:
        """The episode that ended in this event, and its attempt."""
        event = self._one("seq = ?", seq)
        assert event is not None
        return self._assemble(event), event.body["attempt"]

    def _earlier(self, final: Trajectory, last: int) -> int:
        """Calls that the tries before the last one had paid and it neither used nor counts as lost."""
        if not last:
            return 0
        earlier = (call for attempt, call in self.calls(final.id) if attempt < last)
        return _stray(earlier, (call.digest for call in final.all_calls), final.lost.calls)

    def _upgrade(self) -> None:
        """Go on with a journal of format 1: what is there stays as it is, what comes is written as format 2."""
        with self._data.writing():
            self._data.upgrade()
            for kind in ("step", "lost", "episode"):
                for seq, _, _, _, body in self._rows(kind):
                    self._index(seq, kind, json.loads(body))

    def _unfold(self, value: Any) -> Any:
        with self._data.faults():
            try:
                return self._texts.unfold(value)
            except TextMissing as name:
                raise JournalError(
                    f"{self.path}: damaged: the text {name} is missing. Cure: restore the file from a copy"
                ) from None


def serves_all(digest: str) -> bool:
    """Whether the answer to this request serves all episodes: its model gives equal requests equal answers."""
    return bool(digest) and "#" not in digest.rpartition(":")[2]


def _short(digest: str) -> int:
    """A digest as the database holds it. Two with the same number are told apart by what is written."""
    return int.from_bytes(hashlib.sha256(digest.encode()).digest()[:8], "big", signed=True)


def _calls(kind: str, body: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The calls of an event as they are stored."""
    found: Iterable[dict[str, Any]] = ()
    if kind == "step":
        found = body["turn"].get("calls", ())
    elif kind in ("lost", "episode"):
        found = body.get("unfinished", ())
    return found


def _stray(calls: Iterable[Mapping[str, Any]], used: Iterable[str], counted: int = 0) -> int:
    """How many answers were paid for and not used, less those that are counted as lost."""
    paid = {call.get("digest", "") for call in calls if not call.get("cached")}
    return max(0, len(paid - set(used)) - counted)


def _unsent(call: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in call.items() if name not in ("messages", "prompt", "tools")}


def _pages(numbers: "array[int]") -> Iterator["array[int]"]:
    for start in range(0, len(numbers), _PAGE):
        yield numbers[start : start + _PAGE]


def timeless(value: Any) -> Any:
    """Plain data without what may differ between equal runs: times, durations, caching, tries of calls."""
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if key not in _CHANCE}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(timeless(value), sort_keys=True).encode()).hexdigest()
