"""The file of a journal: one process writes it, any number read it, and what goes wrong with it is one clear error.

What was committed survives a kill of the process. A machine that loses its power may lose what its operating system had
not yet brought to the disk, some tens of seconds, and never gets a damaged file from it (SQLite, WAL, synchronous =
NORMAL): waiting for the disk at each event would cost more than the event.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.texts import SCHEMA as _TEXTS

FORMAT = 2
FILE = "journal.db"
_CHECKPOINT = 4000  # pages of 4 kB that are written beside the database before they are moved into it
_SPARE = 64_000_000  # bytes that the file beside it may keep after a reader that stood still made it grow
_EVENTS = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
  seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL
);
CREATE INDEX events_by_kind ON events (kind, key);
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER events_last BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER events_once BEFORE INSERT ON events WHEN EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq)
  BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""
#: What is derived from events, so that not all of them must be read: a row for each `episode` event, beside it the ids
#: of items that its turns recalled (NULL: none), and the event in which the answer to a request was first written down,
#: by the hash of the request's digest.
_DERIVED = """
CREATE TABLE finished (seq INTEGER PRIMARY KEY, row TEXT NOT NULL, recalled TEXT);
CREATE TABLE answers (hash INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TRIGGER finished_stay BEFORE UPDATE ON finished BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER finished_last BEFORE DELETE ON finished BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""


class JournalError(Exception):
    """The journal cannot be opened or written; the message names the file and the cure."""


class Database:
    """The database in `folder`. `format`: the one that it had when it was opened."""

    def __init__(self, folder: Path, *, readonly: bool) -> None:
        self.folder, self.path = folder, folder / FILE
        self.undone: Callable[[], None] = lambda: None  # called when a transaction is rolled back
        self._lock: int | None = None
        self._gathers = False  # whether a transaction is open that waits for more
        self._lost: JournalError | None = None  # why one could not be ended
        if readonly:
            if not self.path.is_file():
                raise JournalError(
                    f"{folder}: no run here ({FILE} is missing). Cure: name the folder that a run printed"
                )
        else:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._take_lock()
            except OSError as error:
                raise JournalError(
                    f"{folder}: cannot be written: {error.strerror}. Cure: choose another folder with --out"
                ) from error
        try:
            self.connection = self._connect(readonly)
            self.format = self._open(readonly)
        except BaseException:
            self.close()
            raise

    def select(self, query: str, given: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows at once, so that nothing is held open."""
        with self.faults():
            return self.connection.execute(query, given).fetchall()

    def faults(self) -> "Faults":
        """A context in which SQLite's errors become a JournalError."""
        return Faults(self.path)

    def writing(self) -> "Writing":
        """A context that is one transaction: all of it, or nothing."""
        return Writing(self)

    def gathering(self) -> "Gathering":
        """A context in which to write a part of a transaction; `settle` ends it."""
        return Gathering(self)

    def begin(self) -> None:
        """Begin to gather, if nobody has. Raises JournalError when what was gathered before is lost."""
        if self._lost is not None:
            raise self._lost
        if not self._gathers:
            with self.faults():
                self.connection.execute("BEGIN IMMEDIATE")
            self._gathers = True

    def settle(self) -> None:
        """Commit what was gathered. Raises JournalError when that is lost, and again for all that would follow it."""
        if self._lost is not None:
            raise self._lost
        if self._gathers:
            self._gathers = False
            try:
                self.connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise self.lose(self.faults().told(error)) from error

    def lose(self, why: JournalError) -> JournalError:
        """Undo what was gathered, for good: what would follow it must not be written either."""
        self._gathers, self._lost = False, why
        self.undo()
        return why

    def undo(self) -> None:
        """Roll back."""
        self.undone()
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def upgrade(self) -> None:
        """Make the tables of this format in a database of an older one; in a transaction of the caller's."""
        _create(self.connection, _TEXTS, _DERIVED)
        self.connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", (str(FORMAT),))

    def close(self) -> None:
        """Close the database and release the folder; idempotent. Raises JournalError when what was gathered is lost."""
        try:
            if self._gathers:
                self.settle()
        finally:
            if hasattr(self, "connection"):
                self.connection.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

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
        with self.faults():
            return sqlite3.connect(
                f"{self.path.resolve().as_uri()}{how}", uri=True, timeout=30, isolation_level=None,
                check_same_thread=False,
            )  # fmt: skip

    def _open(self, readonly: bool) -> int:
        db = self.connection
        with self.faults():
            if not readonly:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
                db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
                db.execute(f"PRAGMA journal_size_limit = {_SPARE}")
                db.execute("BEGIN IMMEDIATE")
                if not db.execute("SELECT 1 FROM sqlite_master").fetchone():  # empty, so it is a new one
                    _create(db, _EVENTS, _TEXTS, _DERIVED)
                    db.execute("INSERT INTO meta VALUES ('format', ?)", (str(FORMAT),))
                db.execute("COMMIT")
            row = db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        if row is None or not str(row[0]).isdigit():
            raise JournalError(f"{self.path}: not a journal of instar")
        if int(row[0]) > FORMAT:
            raise JournalError(
                f"{self.path}: format {row[0]} is newer than this instar reads ({FORMAT}). Cure: update instar"
            )
        return int(row[0])


class Faults:
    """Turns SQLite's errors into one clear JournalError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, sqlite3.Error):
            raise self.told(error) from error

    def told(self, error: sqlite3.Error) -> JournalError:
        """What it means and what to do."""
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
        return JournalError(f"{self.path}: {cure} ({text})")


class Writing(Faults):
    """One transaction: all of it, or nothing."""

    def __init__(self, data: Database) -> None:
        super().__init__(data.path)
        self._data, self._db = data, data.connection

    def __enter__(self) -> None:
        self._data.settle()
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self.told(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self._db.execute("COMMIT")
            except sqlite3.Error as failed:
                self._data.undo()
                raise self.told(failed) from failed
            return
        self._data.undo()
        super().__exit__(kind, error, trace)


class Gathering(Faults):
    """A part of a transaction: a part that cannot be written takes what was gathered before with it."""

    def __init__(self, data: Database) -> None:
        super().__init__(data.path)
        self._data = data

    def __enter__(self) -> None:
        self._data.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, sqlite3.Error):
            raise self._data.lose(self.told(error)) from error
        if error is not None and not isinstance(error, Exception):  # Ctrl-C, anywhere
            self._data.lose(JournalError(f"{self.path}: interrupted while it was written"))


def _create(db: sqlite3.Connection, *schemas: str) -> None:
    for schema in schemas:
        for statement in schema.strip().split(";\n"):
            db.execute(statement)
