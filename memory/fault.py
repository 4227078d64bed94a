"""A failure of the memory file is one exception that names the file, what happened and the cure.

SQLite's own errors ("unable to open database file") tell a user neither, so they are translated here and nowhere
else. Errors that would be our own bug (wrong SQL, a broken constraint) pass through untouched.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

_CAUSES = (  # prefix of SQLite's error name, what happened, cure
    ("SQLITE_CANTOPEN", "cannot be opened", "check that its folder exists and that you may read and write both"),
    (
        "SQLITE_READONLY",
        "may not be written",
        "open it without readonly=True, and give yourself write rights to the file and its folder",
    ),
    ("SQLITE_PERM", "may not be accessed", "give yourself rights to the file and its folder"),
    ("SQLITE_AUTH", "may not be accessed", "give yourself rights to the file and its folder"),
    (
        "SQLITE_FULL",
        "cannot grow: the disk or its quota is full",
        "free space and try again; what was committed is safe",
    ),
    (
        "SQLITE_IOERR",
        "the disk failed or is full",
        "check free space and the disk, then try again; what was committed is safe",
    ),
    ("SQLITE_NOTADB", "is not an SQLite database", "give the path of a memory, or of a new file"),
    ("SQLITE_CORRUPT", "is damaged", "restore it from a copy, or rebuild it from the run's journal"),
    ("SQLITE_BUSY", "is held by another process for too long", "end or wait for the process that holds a write open"),
    ("SQLITE_LOCKED", "is held by another process for too long", "end or wait for the process that holds a write open"),
)


class MemoryFault(Exception):
    """The memory could not be read or written; the message names the path and the cure."""


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Raise SQLite's failures inside the block as MemoryFault about `path`."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if type(error) not in (sqlite3.DatabaseError, sqlite3.OperationalError):
            raise  # IntegrityError, ProgrammingError: a bug of ours, not the file's state
        name = getattr(error, "sqlite_errorname", None) or ""
        for prefix, what, cure in _CAUSES:
            if name.startswith(prefix):
                raise MemoryFault(f"memory {path} {what} (SQLite: {error}). Cure: {cure}.") from error
        raise
