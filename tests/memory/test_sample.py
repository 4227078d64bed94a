"""A memory that an earlier build wrote is read by this one; the sample is a dump of a file of format 1.0."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from memory import Item, MemoryFault, QRule, Stats, Store

SAMPLE = (Path(__file__).parent / "data" / "memory_1.sql").read_text(encoding="utf-8")
STEP, REFLECTION, FORGOTTEN = "step-113f0c1c1aa67c54", "reflection-7dfdf6abe46981ad", "step-226171dce435695d"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "m.db")) as db:
        db.executescript(SAMPLE)
    return tmp_path / "m.db"


def test_a_memory_of_format_1_is_read_whole_searched_and_written_on(path: Path) -> None:
    with Store.open(path) as store:
        step = store.get(STEP)
        assert step == Item(
            id=STEP, kind="step", scope="kitchen", key="Goal: cool the egg\nNow: You see a fridge.", body="open fridge",
            provenance=("round-0/evolved/train-1/0", "round-1/evolved/train-2/0"),
            stats=Stats(utility=0.9299999999999999, visits=1, successes=1),
        )  # fmt: skip
        assert step.id == Item.make("step", "kitchen", step.key, step.body).id  # ids are made as they were
        assert [(v.version, v.body) for v in store.versions(REFLECTION)] == [
            (1, "Look into the fridge first. ünï 🍎"),
            (2, "Open the fridge first."),
        ]
        assert store.forgotten() == [FORGOTTEN]
        found = store.search(store.embed([step.key])[0], scope="kitchen", k=1)
        assert [(one.id, pytest.approx(one.similarity)) for one in found] == [(STEP, 1.0)]
        assert store.put([Item.make("step", "kitchen", "new", "x"), step]) == [True, False]
        assert store.credit([(REFLECTION, 1.0)], QRule())[REFLECTION].visits == 2


def test_a_memory_of_format_2_is_refused_with_the_cure(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE meta SET value = '2.0' WHERE name = 'format'")
        db.commit()
    with pytest.raises(MemoryFault, match=r"m\.db has format 2\.0.*Cure: update instar"):
        Store.open(path)
