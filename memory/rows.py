"""Items as rows and back: the SQL of one item, always inside the caller's transaction.

A row is trusted when it is read, because it was checked when it was written; so reading builds items without
validating them again, which is what keeps a retrieval well under a millisecond.
"""

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from memory.item import Item, Stats

Connection = sqlite3.Connection

_SELECT = (
    "SELECT i.id, k.kind, k.scope, k.key, i.body, i.data, i.version, s.utility, s.visits, s.successes,"
    " (SELECT json_group_array(trajectory) FROM (SELECT trajectory FROM provenance WHERE item = i.row ORDER BY place))"
    " FROM items i JOIN keys k ON k.row = i.keyed JOIN stats s ON s.item = i.row"
)
_CHUNK = 500  # values in one query


def load(c: Connection, where: str, values: Sequence[Any]) -> Iterator[Item]:
    """The current items that meet `where` (k: keys, i: items, s: stats)."""
    for row in c.execute(f"{_SELECT} {where}", values):
        id, kind, scope, key, body, data, version, utility, visits, successes, taught = row
        yield Item.model_construct(
            id=id,
            kind=kind,
            scope=scope,
            key=key,
            body=body,
            data=json.loads(data),
            provenance=tuple(json.loads(taught)),
            version=version,
            stats=Stats.model_construct(utility=utility, visits=visits, successes=successes),
        )


def load_stats(c: Connection, ids: Sequence[str]) -> dict[str, Stats]:
    """The stats of those ids that exist."""
    found: dict[str, Stats] = {}
    for some in chunks(ids):
        query = (
            "SELECT i.id, s.utility, s.visits, s.successes FROM items i JOIN stats s ON s.item = i.row"
            f" WHERE i.id IN ({marks(some)})"
        )
        for id, utility, visits, successes in c.execute(query, some):
            found[id] = Stats.model_construct(utility=utility, visits=visits, successes=successes)
    return found


def insert(c: Connection, item: Item, keyed: int) -> None:
    """A new item under key row `keyed`, with the stats that it brings."""
    row = c.execute(
        "INSERT INTO items (id, keyed, version, body, data) VALUES (?, ?, ?, ?, ?)",
        (item.id, keyed, item.version, item.body, json.dumps(item.data)),
    ).lastrowid
    stats = item.stats
    c.execute("INSERT INTO stats VALUES (?, ?, ?, ?)", (row, stats.utility, stats.visits, stats.successes))


def replace(c: Connection, old: Item, new: Item, keyed: int) -> None:
    """The next version of `old`, which goes to the history; a key that nothing uses any more goes too."""
    (old_keyed,) = c.execute("SELECT keyed FROM items WHERE id = ?", (old.id,)).fetchone()
    past = json.dumps(old.model_dump(exclude={"stats"}))
    c.execute("INSERT INTO history VALUES (?, ?, ?)", (old.id, old.version, past))
    c.execute(
        "UPDATE items SET keyed = ?, version = ?, body = ?, data = ? WHERE id = ?",
        (keyed, old.version + 1, new.body, json.dumps(new.data), old.id),
    )
    drop_unused_key(c, old_keyed)


def add_provenance(c: Connection, item: Item) -> None:
    """Add the trajectories of `item` that its row does not name yet."""
    query = (
        "INSERT OR IGNORE INTO provenance (item, trajectory) SELECT row, ? FROM items WHERE id = ?"  # keeps their order
    )
    c.executemany(query, [(trajectory, item.id) for trajectory in item.provenance])


def delete(c: Connection, id: str) -> bool:
    """Remove an item, its versions, stats and provenance, and its key if unused; leave a tombstone."""
    found = c.execute("SELECT row, keyed FROM items WHERE id = ?", (id,)).fetchone()
    if found is None:
        return False
    row, keyed = found
    c.execute("DELETE FROM items WHERE row = ?", (row,))
    c.execute("DELETE FROM stats WHERE item = ?", (row,))
    c.execute("DELETE FROM provenance WHERE item = ?", (row,))
    c.execute("DELETE FROM history WHERE id = ?", (id,))
    c.execute("INSERT OR IGNORE INTO tombstones VALUES (?)", (id,))
    drop_unused_key(c, keyed)
    return True


def drop_unused_key(c: Connection, row: int) -> None:
    """Remove a key without items, and note it for the indexes of all processes."""
    if not c.execute("SELECT 1 FROM items WHERE keyed = ? LIMIT 1", (row,)).fetchone():
        c.execute("DELETE FROM keys WHERE row = ?", (row,))
        c.execute("INSERT INTO gone (row) VALUES (?)", (row,))


def same(old: Item, new: Item) -> bool:
    """Whether two items say the same; stats, version and provenance do not count."""
    fields = ("scope", "kind", "key", "body")
    if any(getattr(old, name) != getattr(new, name) for name in fields):
        return False
    return json.dumps(old.data, sort_keys=True) == json.dumps(new.data, sort_keys=True)


def checked(item: Item) -> Item:
    """`item`, or ValueError when SQLite could not hold it unchanged."""
    finite(item.id, item.stats.utility)
    for name in ("id", "kind", "scope", "key", "body", "provenance"):
        value = getattr(item, name)
        try:
            "".join(value).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"item {item.id!r}: {name} holds half a character ({error}). Cure: memory.clean"
            ) from error
    return item


def finite(id: str, utility: float) -> None:
    """ValueError for a utility that is NaN or infinite."""
    if not math.isfinite(utility):
        raise ValueError(f"item {id}: the utility {utility} is not a number. Cure: leave unscored outcomes out.")


def marks(values: Sequence[Any]) -> str:
    """As many question marks as values."""
    return ",".join("?" * len(values))


def chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """`values` in pieces that fit one query."""
    return (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))
