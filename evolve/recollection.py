"""What a run remembered, how often it was recalled, and what that earned: from the memory file, or else the journal.

The memory file knows the utilities, the journal what was taught when. What a person made the memory forget is not
shown again from the journal; only its id is.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evolve.episodes import Episodes, natural
from evolve.gate import Verdict
from harness.journal import Journal

if TYPE_CHECKING:
    from memory import Item

FILE = "memory.db"
SHOWN = 10  # items at either end of the ranking
_JOURNAL = "the journal"  # what is read where there is no memory file


@dataclass(frozen=True)
class Remembered:
    """One item. `utility` and `visits` None without a memory file; `mean_reward` is over the credits in the journal."""

    id: str
    kind: str
    key: str
    body: str
    taught_by: tuple[str, ...]
    utility: float | None
    visits: int | None
    mean_reward: float | None
    recalled: int
    forgotten: bool = False

    @property
    def worth(self) -> float | None:
        """What it is ranked by: its utility, or its mean reward where no memory file tells it."""
        return self.utility if self.utility is not None else self.mean_reward


@dataclass(frozen=True)
class Taught:
    """What one round added, and how many credits it gave (`good` of them positive)."""

    when: str
    added: int
    kinds: dict[str, int]
    credits: int
    good: int


@dataclass(frozen=True)
class Recollection:
    """The memory of a run. `best` and `worst` rank what was credited; `note` says what could not be read."""

    taught: tuple[Taught, ...]
    items: dict[str, Remembered]
    best: tuple[Remembered, ...]
    worst: tuple[Remembered, ...]
    credited: int
    never_recalled: int
    source: str
    note: str = ""
    verdict: Verdict | None = None  # whether the memory was kept, once that was decided
    owner: str | None = None  # the run or file that it was lent by; None: it is the run's own
    whole: bool = True  # whether the memory file was read, so that `items` are all it holds

    @property
    def held(self) -> int:
        """Items that are still there."""
        return sum(not item.forgotten for item in self.items.values())

    @property
    def forgotten(self) -> int:
        """Items that a person took out; only their ids are left."""
        return len(self.items) - self.held

    @property
    def recalled(self) -> int:
        """Items, of those still there, that were recalled at least once."""
        return self.held - self.never_recalled


def read_recollection(
    journal: Journal, episodes: Episodes, elsewhere: str | None = None, digest: str | None = None
) -> Recollection | None:
    """The run's memory, or the one it was given (`elsewhere`, with its `digest` then); None when it had none.

    Raises JournalError.
    """
    added: dict[str, dict[str, object]] = {}
    taught: dict[str, Counter[str]] = {}
    for event in journal.events("remembered"):
        for entry in event.body["added"]:
            added.setdefault(entry["id"], entry)
        taught[event.key] = Counter(entry["kind"] for entry in event.body["added"])
    earned: dict[str, list[float]] = {}
    credits: dict[str, list[float]] = {}
    for event in journal.events("credited"):
        credits[event.key] = [reward for _, reward in event.body["rewards"]]
        for item, reward in event.body["rewards"]:
            earned.setdefault(item, []).append(reward)
    if not added and not taught and not episodes.recalls and elsewhere is None:
        return None
    decided = journal.last("verdict", "memory")
    stored, forgotten, source, note = _stored(journal.folder, elsewhere, digest)
    items: dict[str, Remembered] = {}
    for id in dict.fromkeys([*added, *stored, *episodes.recalls]):
        items[id] = _item(id, added.get(id), stored.get(id), earned.get(id), episodes.recalls[id], id in forgotten)
    ranked = [item for item in items.values() if item.worth is not None and (item.visits or item.id in earned)]
    ranked = [item for item in ranked if not item.forgotten]
    ranked.sort(key=lambda item: (-(item.worth or 0.0), -item.recalled, item.id))
    half = min(SHOWN, len(ranked) // 2)
    best, worst = ranked[: SHOWN if len(ranked) >= 2 * SHOWN else len(ranked) - half], ranked[len(ranked) - half :]
    return Recollection(
        taught=tuple(
            Taught(key, taught.get(key, Counter()).total(), dict(taught.get(key, {})), len(credits.get(key, ())),
                   sum(reward > 0 for reward in credits.get(key, ())))
            for key in sorted(taught.keys() | credits.keys(), key=natural)
        ),
        items=items, best=tuple(best), worst=tuple(reversed(worst)), credited=len(ranked),
        never_recalled=sum(not item.recalled and not item.forgotten for item in items.values()),
        source=source, note=note,
        verdict=Verdict.model_validate(decided.body) if decided else None, owner=elsewhere,
        whole=source != _JOURNAL,
    )  # fmt: skip


def _item(
    id: str,
    entry: "dict[str, object] | None",
    item: "Item | None",
    rewards: "list[float] | None",
    recalled: int,
    gone: bool,
) -> Remembered:
    sources = entry.get("from") if entry else None
    taught_by = item.provenance if item else tuple(map(str, sources)) if isinstance(sources, list) else ()
    kind, key, body = (
        (item.kind, item.key, item.body)
        if item
        else (str(entry["kind"]), str(entry["key"]), str(entry["body"]))
        if entry
        else ("", "", "")
    )
    return Remembered(
        id=id, kind=kind, key="" if gone else key, body="" if gone else body, taught_by=taught_by,
        utility=item.stats.utility if item else None, visits=item.stats.visits if item else None,
        mean_reward=sum(rewards) / len(rewards) if rewards else None, recalled=recalled, forgotten=gone,
    )  # fmt: skip


def _stored(folder: Path, elsewhere: str | None, digest: str | None) -> "tuple[dict[str, Item], set[str], str, str]":
    """Items of the memory file by id, forgotten ids, where they are from, and what went wrong."""
    path, name = folder / FILE, FILE
    if not path.exists() and elsewhere is not None:
        path = Path(elsewhere) / FILE if Path(elsewhere).is_dir() else Path(elsewhere)
        name = str(path)
    if not path.exists():
        return {}, set(), _JOURNAL, f"There is no {name}, so utilities are unknown; ranked by mean reward."
    from evolve.setup import memory_digest
    from memory import MemoryFault, Store

    try:
        with Store.open(path, readonly=True) as store:
            items = {item.id: item for scope in store.scopes() for item in store.items(scope)}
            changed = digest is not None and name != FILE and memory_digest(store) != digest
            note = "It has changed since the run recalled from it: this is how it is now." if changed else ""
            return items, set(store.forgotten()), name, note
    except MemoryFault as fault:
        return {}, set(), _JOURNAL, f"The memory file could not be read: {fault}"
