"""The SQLite file under a memory: WAL, one write at a time, and nothing read from a format we do not know.

One connection serves all threads of a process behind a lock; a forked child opens its own, because a connection
must not cross a fork. Writes are `BEGIN IMMEDIATE`, so that a read-then-write never loses another process's commit.
`secure_delete` overwrites what is deleted, because forgetting must reach the disk.
"""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memory.fault import MemoryFault, translated

FORMAT = (1, 0)  # a newer major version is refused, a newer minor one is read
WAIT_SECONDS = 30.0  # how long a writer waits for another process before it gives up
_APPLICATION = 0x494E5354  # "INST": marks the file as ours

_TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # A key is embedded once, however many items share it. AUTOINCREMENT: a row number is never used again, so an
    # index in memory sees what is new by `row > last` and what is gone by `gone.seq > last`.
    "CREATE TABLE keys (row INTEGER PRIMARY KEY AUTOINCREMENT, scope TEXT NOT NULL, kind TEXT NOT NULL,"
    " key TEXT NOT NULL, vector BLOB NOT NULL, UNIQUE (scope, kind, key))",
    "CREATE TABLE gone (seq INTEGER PRIMARY KEY AUTOINCREMENT, row INTEGER NOT NULL)",
    "CREATE TABLE items (row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, keyed INTEGER NOT NULL,"
    " version INTEGER NOT NULL, body TEXT NOT NULL, data TEXT NOT NULL)",
    "CREATE INDEX items_keyed ON items (keyed)",
    # Apart from the items, so that a utility update does not rewrite a long body.
    "CREATE TABLE stats (item INTEGER PRIMARY KEY, utility REAL NOT NULL, visits INTEGER NOT NULL,"
    " successes INTEGER NOT NULL)",
    "CREATE TABLE provenance (place INTEGER PRIMARY KEY, item INTEGER NOT NULL, trajectory TEXT NOT NULL,"
    " UNIQUE (item, trajectory))",
    "CREATE TABLE history (id TEXT NOT NULL, version INTEGER NOT NULL, item TEXT NOT NULL,"
    " PRIMARY KEY (id, version)) WITHOUT ROWID",
    "CREATE TABLE tombstones (id TEXT PRIMARY KEY) WITHOUT ROWID",
)

_inherited: list[sqlite3.Connection] = []  # a parent's connections in a forked child: never used, never closed
_alive: "weakref.WeakSet[Database]" = weakref.WeakSet()


def missing(path: str | Path) -> MemoryFault:
    """The error for a memory that is not there."""
    return MemoryFault(f"memory {path} does not exist. Cure: check the path, or create it with Store(path, embedder).")


class Database:
    """The open file. `created_with` is what a new file's meta table starts with; None opens an existing one only."""

    def __init__(self, path: Path, *, created_with: dict[str, str] | None, readonly: bool = False) -> None:
        self.path = str(path)
        self.readonly = readonly
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        if created_with is None and not path.exists():
            raise missing(path)
        with translated(self.path):
            self._connection = self._connect()
            _alive.add(self)
            try:
                self.meta = self._prepare(self._connection, created_with)
            except BaseException:
                self.close()
                raise

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """The connection, for queries; other threads of this process wait."""
        with self._lock, translated(self.path):
            yield self._live()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of the block is committed, or none of it when it raises."""
        with self._lock, translated(self.path):
            connection = self._live()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk may already have ended it
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Free the file; may be called twice."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _live(self) -> sqlite3.Connection:
        if self._closed:
            raise MemoryFault(f"memory {self.path} is closed. Cure: open it again.")
        if self._connection is None:  # the first use in a forked child
            self._connection = self._connect()
        return self._connection

    def _forked(self) -> None:
        self._lock = threading.RLock()  # a thread that is not in this process may have held it
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        path = Path(self.path).absolute()
        mode = "rwc"
        if self.readonly:
            mode = "ro"
            if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
                mode = (
                    "ro&immutable=1"  # WAL needs to create a file beside it, which an archive's folder does not allow
                )
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}",
            uri=True,
            timeout=WAIT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection, created_with: dict[str, str] | None) -> dict[str, str]:
        empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if empty and created_with is not None:
            self._create(connection, created_with)
        elif connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            raise MemoryFault(f"memory {self.path} is a database, but not a memory. Cure: give another path.")
        meta = dict(connection.execute("SELECT name, value FROM meta"))
        version = tuple(int(part) for part in meta["format"].split("."))
        if version[0] > FORMAT[0]:
            raise MemoryFault(
                f"memory {self.path} has format {meta['format']}, this program reads up to {FORMAT[0]}.x. "
                "Cure: update instar."
            )
        return meta

    def _create(self, connection: sqlite3.Connection, created_with: dict[str, str]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:  # SQLite does not wait by itself when two processes switch a new file to WAL at once
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if not str(error.sqlite_errorname).startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        connection.execute("BEGIN IMMEDIATE")
        try:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                for table in _TABLES:
                    connection.execute(table)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                meta = {"format": f"{FORMAT[0]}.{FORMAT[1]}", **created_with}
                connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _after_fork() -> None:
    for database in list(_alive):
        database._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
