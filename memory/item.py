"""One remembered thing: what is matched (`key`), what is shown (`body`), what it earned, and where it came from.

Every memory and skill system keeps its own kinds of item in the same shape: an experience, a single step of
one, a reflection, a principle, a workflow, a note. An item is never changed in place: an edit is a new version. Text
from a world may be anything, so what `make` takes is put in order first: a bad byte is no reason to end a run.
"""

import hashlib
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue


def clean(text: str) -> str:
    """`text` with lone surrogates (half a character, from a badly decoded file) replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Stats(BaseModel):
    """What an item earned: `utility` is MemRL's Q; `visits` counts credited retrievals, `successes` the solved ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    utility: float = 0.0
    visits: int = 0
    successes: int = 0


class Item(BaseModel):
    """A versioned memory. `scope` separates owners and purposes; `provenance` lists the trajectories that taught it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    kind: str = Field(min_length=1)  # experience | step | reflection | principle | workflow | note ...
    scope: str = Field(min_length=1)
    key: str = Field(min_length=1)
    body: str
    data: dict[str, JsonValue] = Field(default_factory=dict)
    provenance: tuple[str, ...] = ()
    version: int = 1
    stats: Stats = Stats()

    @classmethod
    def make(cls, kind: str, scope: str, key: str, body: str, **rest: object) -> Self:
        """An item whose id is a hash of kind, scope, key and body: the same memory always gets the same id.

        Half characters become U+FFFD, and a blank key becomes "(nothing)", since an item must be found under something.
        """
        key, body = clean(key), clean(body)
        key = key if key.strip() else "(nothing)"
        digest = hashlib.sha256("\x1f".join((kind, scope, key, body)).encode("utf-8", "surrogatepass")).hexdigest()
        return cls.model_validate(
            {"id": f"{kind}-{digest[:16]}", "kind": kind, "scope": scope, "key": key, "body": body, **rest}
        )
