"""SQLite is the truth: an item, its version, vector, stats and provenance are committed together or not at all.

Everything else (the index) follows the file, and sees another process's commit at its next search. An edit is a new
version; forgetting leaves nothing but the id, so that what was taken back does not return with the next rebuild.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from memory import rows
from memory.credit import Rule, credited
from memory.database import Database, missing
from memory.embed import Embedder, Vectors, embedder_named
from memory.fault import MemoryFault
from memory.index import ExactIndex, Index, Key
from memory.item import Item, Stats
from memory.rows import Connection


@dataclass(frozen=True, slots=True)
class Candidate:
    """An item under a found key, before it is loaded: `similarity` is its key's cosine to the query."""

    id: str
    similarity: float
    utility: float


class Store:
    """The items of one file. Threads may share it, processes open their own; a forked child may go on with it."""

    def __init__(
        self,
        path: str | Path,
        embedder: Embedder | None,
        *,
        readonly: bool = False,
        make_index: Callable[[int], Index] = ExactIndex,
    ) -> None:
        """Open or create the memory at `path`. `embedder` None: an existing one, with the embedder it was made with."""
        created_with = None if embedder is None or readonly else {"embedder": embedder.name, "dim": str(embedder.dim)}
        self._db = Database(Path(path), created_with=created_with, readonly=readonly)
        self.path = self._db.path
        try:
            self._embedder = self._checked(embedder)
        except BaseException:
            self._db.close()
            raise
        self._dim = int(self._db.meta["dim"])
        self._index = make_index(self._dim)
        self._seen = (0, 0)  # last key row and last removal that the index knows

    @classmethod
    def open(cls, path: str | Path, *, embedder: Embedder | None = None, readonly: bool = False) -> Self:
        """An existing memory (MemoryFault when there is none); readonly=True to look at it while others write."""
        if not Path(path).exists():
            raise missing(path)
        return cls(path, embedder, readonly=readonly)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the file; may be called twice."""
        self._db.close()

    # Items

    def put(self, items: Iterable[Item]) -> list[bool]:
        """Write `items` in one transaction; True for each that was new or became a new version.

        Equal id and content is a no-op, except that new provenance is added. Changed content is a new version; version
        and stats of the given item count only when its id is new. A forgotten id is left out.
        """
        batch = [rows.checked(item) for item in items]
        with self._db.read() as c:
            texts = sorted({item.key for item in batch if _key_row(c, item) is None})
        ready = dict(zip(texts, self.embed(texts), strict=True))  # before the write lock is taken: it is slow
        with self._db.write() as c:
            return [self._put(c, item, ready) for item in batch]

    def get(self, id: str) -> Item | None:
        """The current version, or None when there is none."""
        return self.get_many([id]).get(id)

    def get_many(self, ids: Sequence[str]) -> dict[str, Item]:
        """The current versions of those that exist, by id."""
        found: dict[str, Item] = {}
        with self._db.read() as c:
            for some in rows.chunks(ids):
                found.update((item.id, item) for item in rows.load(c, f"WHERE i.id IN ({rows.marks(some)})", some))
        return found

    def items(self, scope: str, kind: str | None = None) -> list[Item]:
        """All current items of a scope, oldest first."""
        where, values = "WHERE k.scope = ?", [_named(scope)]
        if kind is not None:
            where, values = where + " AND k.kind = ?", [*values, kind]
        with self._db.read() as c:
            return list(rows.load(c, where + " ORDER BY i.row", values))

    def scopes(self) -> list[str]:
        """The scopes that hold items, sorted."""
        with self._db.read() as c:
            return [row[0] for row in c.execute("SELECT DISTINCT scope FROM keys ORDER BY scope")]

    def versions(self, id: str) -> list[Item]:
        """Every version of an item, oldest first; each with the provenance of its time and today's stats."""
        with self._db.read() as c:
            current = list(rows.load(c, "WHERE i.id = ?", [id]))
            past = c.execute("SELECT item FROM history WHERE id = ? ORDER BY version", (id,)).fetchall()
        return [Item.model_validate({**json.loads(row[0]), "stats": current[0].stats}) for row in past] + current

    def __len__(self) -> int:
        with self._db.read() as c:
            return int(c.execute("SELECT count(*) FROM items").fetchone()[0])

    # What they earned

    def credit(self, rewards: Sequence[tuple[str, float]], rule: Rule) -> dict[str, Stats]:
        """Apply `rule` to every (id, reward) in one transaction, so that no process loses another's credit.

        Returns the new stats. Forgotten ids are passed over; one that never existed raises MemoryFault, and nothing is
        set.
        """
        ids = list(dict.fromkeys(id for id, _ in rewards))
        with self._db.write() as c:
            old = rows.load_stats(c, ids)
            self._check_known(c, [id for id in ids if id not in old])
            new = credited(old, rewards, rule)
            values = [(stats.utility, stats.visits, stats.successes, id) for id, stats in new.items()]
            c.executemany(
                "UPDATE stats SET utility = ?, visits = ?, successes = ?"
                " WHERE item = (SELECT row FROM items WHERE id = ?)",
                values,
            )
        return new

    # Forgetting

    def forget(self, *ids: str) -> int:
        """Remove items with all their versions, vectors and provenance; the number removed.

        Only the id stays, as a tombstone. Deleted bytes are overwritten; a process that reads at this
        very moment may keep them in the write-ahead log until the log is next emptied.
        """
        with self._db.write() as c:
            gone = sum(rows.delete(c, id) for id in ids)
        if gone:
            with self._db.read() as c:
                c.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return gone

    def bury(self, ids: Iterable[str]) -> None:
        """Put tombstones for ids that this store need not have known: a rebuild must not bring them back."""
        with self._db.write() as c:
            c.executemany("INSERT OR IGNORE INTO tombstones VALUES (?)", [(id,) for id in ids])

    def forgotten(self) -> list[str]:
        """The ids of what was forgotten, in order."""
        with self._db.read() as c:
            return [id for (id,) in c.execute("SELECT id FROM tombstones ORDER BY id")]

    # Search

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The embedder's vectors, checked: float32 [len(texts), dim], rows of length 1 or 0."""
        if not texts:
            return np.zeros((0, self._dim), np.float32)
        if self._embedder is None:
            self._embedder = self._own_embedder()
        vectors = np.asarray(self._embedder.embed(texts), np.float32)
        lengths = np.linalg.norm(vectors, axis=-1)
        unit = (np.abs(lengths - 1) < 1e-3) | (lengths == 0)
        if vectors.shape != (len(texts), self._dim) or not unit.all():
            raise ValueError(
                f"embedder {self._embedder.name} gave vectors of shape {vectors.shape}, {int((~unit).sum())} of them "
                f"not of length 1 or 0; wanted {(len(texts), self._dim)}. Cure: normalise its rows."
            )
        return vectors

    def search(
        self, vector: Vectors, *, scope: str, k: int = 5, kinds: Collection[str] | None = None, floor: float = -1.0
    ) -> list[Candidate]:
        """Every item under the `k` keys of `scope` nearest to `vector` with cosine >= `floor`, best key first.

        Items of one key share its similarity and come in order of id. Sees all commits of all processes until now.
        """
        _named(scope)
        with self._db.read() as c:
            self._follow(c)
            keys = self._index.search(vector, k, scope=scope, kinds=kinds, floor=floor)
            owned: dict[int, list[Candidate]] = {row: [] for row, _ in keys}
            cosines = dict(keys)
            for some in rows.chunks(list(owned)):
                query = (
                    "SELECT i.keyed, i.id, s.utility FROM items i JOIN stats s ON s.item = i.row"
                    f" WHERE i.keyed IN ({rows.marks(some)}) ORDER BY i.id"
                )
                for row, id, utility in c.execute(query, some):
                    owned[row].append(Candidate(id, cosines[row], utility))
        return [candidate for row, _ in keys for candidate in owned[row]]

    # Inside

    def _follow(self, c: Connection) -> None:
        """Bring the index up to the file's current state."""
        key, removal = self._seen
        gone = c.execute("SELECT seq, row FROM gone WHERE seq > ? ORDER BY seq", (removal,)).fetchall()
        fresh = c.execute(
            "SELECT row, scope, kind, key, vector FROM keys WHERE row > ? ORDER BY row", (key,)
        ).fetchall()
        if gone:
            self._index.remove({row for _, row in gone})
            removal = gone[-1][0]
        if fresh:
            vectors = np.frombuffer(b"".join(row[4] for row in fresh), "<f4").reshape(len(fresh), self._dim)
            self._index.add([Key(*row[:4]) for row in fresh], vectors)
            key = fresh[-1][0]
        self._seen = (key, removal)

    def _put(self, c: Connection, item: Item, ready: Mapping[str, Vectors]) -> bool:
        old = next(rows.load(c, "WHERE i.id = ?", [item.id]), None)
        changed = old is None or not rows.same(old, item)
        if old is None:
            if c.execute("SELECT 1 FROM tombstones WHERE id = ?", (item.id,)).fetchone():
                return False
            rows.insert(c, item, self._key(c, item, ready))
        elif changed:
            rows.replace(c, old, item, self._key(c, item, ready))
        rows.add_provenance(c, item)
        return changed

    def _key(self, c: Connection, item: Item, ready: Mapping[str, Vectors]) -> int:
        row = _key_row(c, item)
        if row is None:
            # Not ready: another process forgot the key since we looked.
            vector = ready[item.key] if item.key in ready else self.embed([item.key])[0]
            values = (item.scope, item.kind, item.key, vector.astype("<f4").tobytes())
            row = c.execute("INSERT INTO keys (scope, kind, key, vector) VALUES (?, ?, ?, ?)", values).lastrowid
            assert row is not None
        return row

    def _check_known(self, c: Connection, absent: Sequence[str]) -> None:
        for id in absent:
            if not c.execute("SELECT 1 FROM tombstones WHERE id = ?", (id,)).fetchone():
                raise MemoryFault(
                    f"memory {self.path} never had an item '{id}'. Cure: use the ids that retrieval returned."
                )

    def _checked(self, embedder: Embedder | None) -> Embedder | None:
        name, dim = self._db.meta["embedder"], int(self._db.meta["dim"])
        if embedder is not None and (embedder.name, embedder.dim) != (name, dim):
            raise MemoryFault(
                f"memory {self.path} was made with embedder {name} ({dim}-d), not {embedder.name} ({embedder.dim}-d). "
                "Cure: open it with its own embedder, or put its items into a new memory made with the other one."
            )
        return embedder

    def _own_embedder(self) -> Embedder:
        try:
            return embedder_named(self._db.meta["embedder"])
        except ValueError as error:
            raise MemoryFault(f"memory {self.path}: {error}. Cure: pass its embedder when opening it.") from error


def _key_row(c: Connection, item: Item) -> int | None:
    query = "SELECT row FROM keys WHERE scope = ? AND kind = ? AND key = ?"
    found = c.execute(query, (item.scope, item.kind, item.key)).fetchone()
    return None if found is None else int(found[0])


def _named(scope: str) -> str:
    if not isinstance(scope, str) or not scope:
        raise ValueError("a scope must be named: memory is never searched across all scopes")
    return scope
