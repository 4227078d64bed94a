"""A run's memory is derived from its journal: a resumed run starts it afresh, and what was forgotten stays so."""

from pathlib import Path
from typing import TYPE_CHECKING

from harness.journal import Journal

if TYPE_CHECKING:
    from memory import Store

FILE = "memory.db"


def fresh_store(journal: Journal) -> "Store":
    """An empty store in the run's folder, knowing the ids that a person made an earlier one forget.

    What was forgotten goes into the journal before the old store goes, so that a kill in between loses nothing.
    """
    from memory import Store, WordLlamaEmbedder

    path = journal.folder / FILE
    forgotten = {id for event in journal.events("forgotten") for id in event.body["ids"]}
    if path.exists():
        with Store(path, WordLlamaEmbedder()) as old:  # for writing: one that was killed at its birth has no tables yet
            new = sorted(set(old.forgotten()) - forgotten)
        if new:
            journal.append("forgotten", {"ids": new}, key=new[0])
            forgotten |= set(new)
    for suffix in ("-wal", "-shm", ""):  # the log first: beside a new file an old one would be played into it
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    store = Store(path, WordLlamaEmbedder())
    store.bury(sorted(forgotten))
    return store
