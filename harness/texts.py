"""A long text is written once, compressed, and named by a number; so is each link of a conversation, after the one
before it: a conversation that only grows costs what is new, not all of it again at each call.

New pieces go to the end of one table, which costs the same whether it holds a thousand or ten million. What was written
lately is known here in bounded memory. Only large texts are looked for in the whole table: by their hash, and then by
their content, so that no two texts are ever taken for one another.
"""

import hashlib
import json
import sqlite3
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from harness.trajectory import Call, Turn

_LONG = 200  # characters above which a text is worth a piece of its own
_LARGE = 1000  # bytes above which a piece is looked for in the whole table
_PLAIN = 300  # bytes of JSON up to which compressing saves next to nothing
_CHAINS = ("messages", "tools")  # lists that begin as an earlier one did
_SMALL = (int, float, bool, type(None))
_NONE = object()  # the default of a field that has none
_MARKS = ("$text", "$chain", "$plain")
_RECENT = 16_384  # pieces whose content is known without looking
_TALKS = 2048  # last conversations, and last lists of tools, of episodes that go on
_KEPT = 64  # chains that a reader remembers, to read the next one from where it differs

SCHEMA = """
CREATE TABLE pieces (id INTEGER PRIMARY KEY, data NOT NULL);
CREATE TABLE names (hash INTEGER PRIMARY KEY, id INTEGER NOT NULL);
CREATE TRIGGER pieces_stay BEFORE UPDATE ON pieces BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER pieces_last BEFORE DELETE ON pieces BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER pieces_once BEFORE INSERT ON pieces WHEN EXISTS (SELECT 1 FROM pieces WHERE id = NEW.id)
  BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""

_escaped = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def as_json(value: Any) -> bytes:
    """Plain data as JSON, in UTF-8; a half of a surrogate pair, which a model may send, is escaped."""
    try:
        return to_json(value, inf_nan_mode="constants")
    except ValueError:
        return _escaped(value).encode()


class TextMissing(Exception):
    """A piece that an event names is not there."""


class Texts:
    """The pieces in one database. Whoever writes holds the transaction, and calls `forget` when it is rolled back."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._recent: OrderedDict[bytes, int] = OrderedDict()
        self._talks: OrderedDict[tuple[str, str], tuple[tuple[Any, ...], list[tuple[int, int]]]] = OrderedDict()
        self._chains: dict[int | str, list[Any]] = {}

    def fold(self, value: Any, name: str = "") -> Any:
        """Plain data, or models as their dump without defaults, with long texts and conversations put away."""
        if isinstance(value, str):
            return value if len(value) <= _LONG else {"$text": self._keep(value.encode("utf-8", "surrogatepass"))}
        if isinstance(value, dict):
            parts = {key: part if type(part) in _SMALL else self.fold(part, key) for key, part in value.items()}
            return {"$plain": parts} if len(parts) == 1 and next(iter(parts)) in _MARKS else parts
        if isinstance(value, (list, tuple)):
            if name in _CHAINS and value:
                return {"$chain": self._chain(value)[-1][1]}
            return [part if type(part) in _SMALL else self.fold(part) for part in value]
        if isinstance(value, BaseModel):
            return self._fold_model(value)
        if isinstance(value, _SMALL):
            return value
        raise TypeError(f"a {type(value).__name__} is no plain data, so a journal cannot keep it")

    def _fold_model(self, model: BaseModel, less: Sequence[str] = ()) -> dict[str, Any]:
        """What `fold` makes of the model's dump, at a fraction of what the dump alone would cost."""
        usual, made = _usual(type(model)), {}
        for name, part in vars(model).items():
            known, kind = usual[name], type(part)
            if part is known or name in less:
                continue
            if kind is str or kind in _SMALL:
                if known is _NONE or part != known:
                    made[name] = part if kind is not str or len(part) <= _LONG else self.fold(part)
            elif kind is tuple or not isinstance(part, BaseModel):
                if known is _NONE or part != known:
                    made[name] = self.fold(part, name)
            elif kind is not type(known) or vars(part) != vars(known):  # a model's own == takes ten times as long
                made[name] = self._fold_model(part)
        return made

    def fold_turn(self, key: str, turn: Turn) -> dict[str, Any]:
        """A turn as `fold` would put it away, quickly: what its episode `key` said before is known by identity."""
        body = self._fold_model(turn, ("calls",))
        if turn.calls:
            body["calls"] = [self._fold_call(key, call) for call in turn.calls]
        return body

    def _fold_call(self, key: str, call: Call) -> dict[str, Any]:
        made = self._fold_model(call, _CHAINS)
        for name in _CHAINS:
            parts: tuple[Any, ...] | None = getattr(call, name)
            if parts:
                made[name] = {"$chain": self._go_on(key, name, parts)}
            elif parts is not None and name == "messages":
                made[name] = []
        return made

    def _go_on(self, key: str, name: str, parts: tuple[Any, ...]) -> int:
        """Put away what the last call of the same episode did not begin with."""
        old, links = self._talks.pop((key, name), ((), []))
        if parts[: len(old)] == old:
            same = len(old)
        else:
            same = next((at for at, (a, b) in enumerate(zip(old, parts, strict=False)) if a != b), len(parts))
            links = [link for link in links if link[0] <= same]
        begun, head = links[-1] if links else (0, "")
        if begun < len(parts):
            links += self._chain(parts[begun:], begun, head)
        self._talks[key, name] = parts, links
        if len(self._talks) > _TALKS:
            self._talks.popitem(last=False)
        return links[-1][1]

    def ended(self, key: str) -> None:
        """No more turns of this episode will come."""
        for name in _CHAINS:
            self._talks.pop((key, name), None)

    def forget(self) -> None:
        """Know nothing of what was written lately: it was rolled back."""
        self._recent.clear()
        self._talks.clear()

    def unfold(self, value: Any) -> Any:
        """What was folded, in full. Raises TextMissing."""
        if isinstance(value, dict):
            if len(value) == 1:
                ((mark, what),) = value.items()
                if mark == "$text":
                    return self._read(what).decode("utf-8", "surrogatepass")
                if mark == "$chain":
                    return self._unchain(what)
                if mark == "$plain":
                    value = what
            return {key: self.unfold(part) for key, part in value.items()}
        return [self.unfold(part) for part in value] if isinstance(value, list) else value

    def _chain(self, parts: Iterable[Any], begun: int = 0, head: int | str = "") -> list[tuple[int, int]]:
        """Put away the parts in links, each with the name of the one before it; where each link ends, and its name.

        A link ends before each of the assistant's messages, so that conversations that begin alike share links.
        """
        links: list[tuple[int, int]] = []
        link: list[Any] = []
        for part in parts:
            folded = self.fold(part)
            if link and isinstance(folded, dict) and folded.get("role") == "assistant":
                begun, head = begun + len(link), self._link(head, link)
                links.append((begun, head))
                link = []
            link.append(folded)
        links.append((begun + len(link), self._link(head, link)))
        return links

    def _link(self, head: int | str, parts: list[Any]) -> int:
        return self._keep(as_json([head, *parts]), plain=True)

    def _keep(self, data: bytes, plain: bool = False) -> int:
        """The number of this piece, which is written if it is new; as text, if it may be and is short."""
        mark = hashlib.sha256(data).digest()[:16]
        id = self._recent.get(mark)
        if id is not None:
            self._recent.move_to_end(mark)
            return id
        hash = int.from_bytes(mark[:8], "big", signed=True)
        id = self._find(hash, data) if len(data) > _LARGE else None
        if id is None:
            stored = data.decode() if plain and len(data) <= _PLAIN else zlib.compress(data, 3)
            id = int(self._db.execute("INSERT INTO pieces (data) VALUES (?)", (stored,)).lastrowid or 0)
            if len(data) > _LARGE:
                self._db.execute("INSERT OR IGNORE INTO names VALUES (?, ?)", (hash, id))
        self._recent[mark] = id
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)
        return id

    def _find(self, hash: int, data: bytes) -> int | None:
        row = self._db.execute("SELECT id FROM names WHERE hash = ?", (hash,)).fetchone()
        return int(row[0]) if row is not None and self._read(row[0]) == data else None

    def _unchain(self, name: int | str) -> list[Any]:
        links: list[list[Any]] = []
        head = name
        while head and head not in self._chains:
            head, *parts = json.loads(self._read(head))
            links.append(parts)
        parts = [*self._chains.get(head, ()), *(self.unfold(part) for link in reversed(links) for part in link)]
        if len(self._chains) >= _KEPT:
            self._chains.clear()
        self._chains[name] = parts
        return list(parts)

    def _read(self, name: int | str) -> bytes:
        """A piece's content; one with a name instead of a number was written by format 1."""
        where = "texts WHERE hash = ?" if isinstance(name, str) else "pieces WHERE id = ?"
        row = self._db.execute(f"SELECT data FROM {where}", (name,)).fetchone()
        if row is None:
            raise TextMissing(str(name))
        return zlib.decompress(row[0]) if isinstance(row[0], bytes) else row[0].encode()


@cache
def _usual(model: type[BaseModel]) -> Mapping[str, Any]:
    """The default of each field: what a dump without defaults leaves out. One that is required has none."""
    fields = model.model_fields.items()
    return {name: _NONE if f.is_required() else f.get_default(call_default_factory=True) for name, f in fields}
