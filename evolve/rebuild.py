"""A run's memory is derived from its journal: a resumed run starts it afresh, and what was forgotten stays so."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memory import Store

FILE = "memory.db"


def fresh_store(folder: Path) -> "Store":
    """An empty store in `folder`, knowing the ids that a person made an earlier one forget."""
    from memory import Store, WordLlamaEmbedder

    path = folder / FILE
    forgotten: tuple[str, ...] = ()
    if path.exists():
        with Store.open(path, readonly=True) as old:
            forgotten = tuple(old.forgotten())
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(f"{path}{suffix}"):
                os.remove(f"{path}{suffix}")
    store = Store(path, WordLlamaEmbedder())
    store.bury(forgotten)
    return store
