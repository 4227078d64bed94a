"""One append-only journal per run: the only precious thing a run leaves behind.

Every event is durable when `append` returns (SQLite, WAL: a killed process loses nothing that was appended),
nothing is ever changed or deleted (the database refuses it), and resume, caches, reports and exports only read.
Long texts are stored once, compressed, under the hash of their content. So is each link of a conversation, after the
link before it: a conversation that only grows costs what is new, not all of it again at each call.
"""

import fcntl
import hashlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.trajectory import Trajectory

FORMAT = 1
FILE = "journal.db"
_LONG = 200  # characters above which a text is worth its own row
_CHAINS = ("messages", "tools")  # lists that begin as an earlier one did
_KEPT = 64  # chains that a reader remembers, to read the next one from where it differs
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
  seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL
);
CREATE INDEX events_by_kind ON events (kind, key);
CREATE TABLE texts (hash TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER events_last BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER events_once BEFORE INSERT ON events WHEN EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq)
  BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER texts_stay BEFORE UPDATE ON texts BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER texts_last BEFORE DELETE ON texts BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""


class JournalError(Exception):
    """The journal cannot be opened or written; the message names the file and the cure."""


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
        self.path = self.folder / FILE
        self._lock: int | None = None
        self._stored: set[str] = set()
        self._chains: dict[str, list[Any]] = {}
        if readonly:
            if not self.path.is_file():
                raise JournalError(
                    f"{self.folder}: no run here ({FILE} is missing). Cure: name the folder that a run printed"
                )
        else:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._take_lock()
            except OSError as error:
                raise JournalError(
                    f"{self.folder}: cannot be written: {error.strerror}. Cure: choose another folder with --out"
                ) from error
        try:
            self._db = self._connect(readonly)
            self._open(readonly)
        except BaseException:
            self.close()
            raise

    def append(self, kind: str, body: dict[str, Any], key: str = "") -> int:
        """Add one event and return its number; when this returns the event survives a kill."""
        with self._faults():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                text = json.dumps(self._fold(body), ensure_ascii=True, separators=(",", ":"))
                row = self._db.execute(
                    "INSERT INTO events (at, kind, key, body) VALUES (?, ?, ?, ?)", (time.time(), kind, key, text)
                )
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self._stored.clear()
                raise
        return int(row.lastrowid or 0)

    def events(self, kind: str | None = None, key: str | None = None, after: int = 0) -> Iterator[Event]:
        """Events in order, of one kind and key if given, without loading them all at once."""
        query = "SELECT seq, at, kind, key, body FROM events WHERE seq > ?"
        limits: list[Any] = [after]
        if kind is not None:
            query += " AND kind = ?"
            limits.append(kind)
        if key is not None:
            query += " AND key = ?"
            limits.append(key)
        with self._faults():
            for seq, at, name, label, body in self._db.execute(query + " ORDER BY seq", limits):
                yield Event(seq, at, name, label, self._unfold(json.loads(body)))

    def last(self, kind: str, key: str = "") -> Event | None:
        """The newest event of `kind` and `key`."""
        with self._faults():
            row = self._db.execute(
                "SELECT seq, at, kind, key, body FROM events WHERE kind = ? AND key = ? ORDER BY seq DESC LIMIT 1",
                (kind, key),
            ).fetchone()
        if row is None:
            return None
        seq, at, name, label, body = row
        return Event(seq, at, name, label, self._unfold(json.loads(body)))

    def trajectory(self, key: str) -> Trajectory | None:
        """The finished episode `key`, or None when it never finished."""
        event = self.last("episode", key)
        return None if event is None else self._assemble(event)

    def trajectories(self) -> Iterator[Trajectory]:
        """All finished episodes in order of finishing; of a repeated one, each."""
        for event in self.events("episode"):
            yield self._assemble(event)

    def digest(self) -> str:
        """Hash of what came out, free of times, tries, gaps since filled, and caching: equal for equal runs."""
        rows = {t.id: _hash(t.model_dump(mode="json", exclude={"lost"})) for t in self.trajectories()}
        for event in self.events():
            if event.kind not in ("start", "step", "lost", "episode"):
                rows[f"{event.kind}:{event.key}"] = _hash(event.body)
        return _hash(rows)

    def close(self) -> None:
        """Close the database and release the folder; idempotent."""
        if hasattr(self, "_db"):
            self._db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def finish(self, trajectory: Trajectory, attempt: int) -> None:
        """Write down the end of an episode whose turns were written as `step` events of the same attempt."""
        body = trajectory.model_dump(mode="json", exclude={"turns"}) | {"attempt": attempt}
        self.append("episode", body, trajectory.id)

    def _assemble(self, event: Event) -> Trajectory:
        body = dict(event.body)
        attempt = body.pop("attempt")
        turns = [e.body["turn"] for e in self.events("step", event.key) if e.body["attempt"] == attempt]
        return Trajectory.model_validate({**body, "turns": turns})

    def _take_lock(self) -> None:
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            self._lock = None
            raise JournalError(
                f"{self.folder}: another process is writing this run. Cure: wait for it, or use another --out"
            ) from error

    def _connect(self, readonly: bool) -> sqlite3.Connection:
        how = "?mode=ro" if readonly else ""
        if readonly and not os.access(self.folder, os.W_OK) and not Path(f"{self.path}-wal").exists():
            how = "?immutable=1"  # an archive: SQLite could not make its shared memory there, and nobody writes
        with self._faults():
            return sqlite3.connect(
                f"{self.path.resolve().as_uri()}{how}", uri=True, timeout=30, isolation_level=None,
                check_same_thread=False,
            )  # fmt: skip

    def _open(self, readonly: bool) -> None:
        with self._faults():
            if not readonly:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.execute("BEGIN IMMEDIATE")
                if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():  # empty, so it is a new one
                    for statement in _SCHEMA.strip().split(";\n"):
                        self._db.execute(statement)
                    self._db.execute("INSERT INTO meta VALUES ('format', ?)", (str(FORMAT),))
                self._db.execute("COMMIT")
            row = self._db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        if row is None or not str(row[0]).isdigit():
            raise JournalError(f"{self.path}: not a journal of instar")
        if int(row[0]) > FORMAT:
            raise JournalError(
                f"{self.path}: format {row[0]} is newer than this instar reads ({FORMAT}). Cure: update instar"
            )

    def _faults(self) -> "_Faults":
        return _Faults(self.path)

    def _fold(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str) and len(value) > _LONG:
            return {"$text": self._keep(value.encode("utf-8", "surrogatepass"))}
        if isinstance(value, dict):
            return {key: self._fold(part, key) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            parts = [self._fold(part) for part in value]
            return {"$chain": self._chain(parts)} if name in _CHAINS and parts else parts
        return value

    def _chain(self, parts: list[Any]) -> str:
        """Keep each part with the name of what came before it; the name of the last one stands for all."""
        head = ""
        for part in parts:
            head = self._keep(json.dumps([head, part], ensure_ascii=True, separators=(",", ":")).encode())
        return head

    def _keep(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        if name not in self._stored:
            self._db.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", (name, zlib.compress(data, 3)))
            self._stored.add(name)
        return name

    def _unfold(self, value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"$text"}:
                return self._kept(value["$text"]).decode("utf-8", "surrogatepass")
            if set(value) == {"$chain"}:
                return self._unchain(value["$chain"])
            return {key: self._unfold(part) for key, part in value.items()}
        return [self._unfold(part) for part in value] if isinstance(value, list) else value

    def _unchain(self, name: str) -> list[Any]:
        links, head = [], name
        while head and head not in self._chains:
            head, part = json.loads(self._kept(head))
            links.append(part)
        parts = [*self._chains.get(head, ()), *(self._unfold(part) for part in reversed(links))]
        if len(self._chains) >= _KEPT:
            self._chains.clear()
        self._chains[name] = parts
        return list(parts)

    def _kept(self, name: str) -> bytes:
        row = self._db.execute("SELECT data FROM texts WHERE hash = ?", (name,)).fetchone()
        if row is None:
            raise JournalError(f"{self.path}: damaged: the text {name} is missing. Cure: restore the file from a copy")
        return zlib.decompress(row[0])


class _Faults:
    """Turns SQLite's errors into one clear JournalError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, sqlite3.Error):
            return
        text = str(error)
        if "full" in text:
            cure = "the disk is full. Cure: free some space and give the same command again; what had finished is kept"
        elif "disk I/O error" in text:
            cure = (
                "the disk did not take it: it broke, or a quota is used up. Cure: make room and give the command again"
            )
        elif "readonly" in text or "unable to open" in text:
            cure = "the folder cannot be written. Cure: choose another folder with --out"
        elif "not a database" in text or "malformed" in text or "no such table" in text:
            cure = "not a journal of instar, or a damaged one. Cure: move it away or use another folder with --out"
        else:
            cure = "the journal failed"
        raise JournalError(f"{self.path}: {cure} ({text})") from error


def timeless(value: Any) -> Any:
    """Plain data without what may differ between equal runs: times, durations, caching."""
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if key not in ("seconds", "started", "at", "cached")}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(timeless(value), sort_keys=True).encode()).hexdigest()
