"""The store keeps its promises against a real SQLite file."""

import os
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory import HashEmbedder, Item, MemoryFault, QRule, Stats, Store, WordLlamaEmbedder

SCOPE = "kitchen"


def item(key: str, body: str = "do it", **rest: object) -> Item:
    return Item.make("step", SCOPE, key, body, **rest)


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path / "m.db", HashEmbedder(64)) as opened:
        yield opened


def found(store: Store, text: str, **rest) -> list[str]:
    return [c.id for c in store.search(store.embed([text])[0], scope=rest.pop("scope", SCOPE), **rest)]


def test_an_item_comes_back_as_it_was_put(store: Store) -> None:
    one = item("apple\0 ünï 🍎", "", data={"a": [1, None, {"b": 2.5}]}, provenance=("t2", "t1"))
    one = one.model_copy(update={"stats": Stats(utility=0.5, visits=3, successes=1)})
    assert store.put([one]) == [True]
    assert store.get(one.id) == one
    assert store.items(SCOPE) == [one]
    assert len(store) == 1


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
json_values = st.recursive(
    json_leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@settings(max_examples=30, deadline=None)
@given(
    key=text.filter(bool),
    body=text,
    data=st.dictionaries(text, json_values, max_size=3),
    taught=st.lists(text, unique=True),
)
def test_any_valid_text_and_data_survive_the_file(tmp_path_factory, key, body, data, taught) -> None:
    one = item(key, body, data=data, provenance=tuple(taught))
    with Store(tmp_path_factory.mktemp("m") / "m.db", HashEmbedder(8)) as store:
        store.put([one])
        assert store.get(one.id) == one


def test_putting_the_same_again_changes_nothing_but_adds_provenance(store: Store) -> None:
    store.put([item("apple", provenance=("t1",))])
    assert store.put([item("apple", provenance=("t1", "t2"), stats=Stats(utility=9.0))]) == [False]
    (kept,) = store.items(SCOPE)
    assert (kept.version, kept.provenance, kept.stats.utility) == (1, ("t1", "t2"), 0.0)


def test_a_changed_body_is_a_new_version_and_the_old_one_stays_readable(store: Store) -> None:
    first = item("apple", stats=Stats(utility=0.7, visits=2))
    store.put([first])
    changed = first.model_copy(update={"body": "do it better", "key": "pear", "stats": Stats()})
    assert store.put([changed]) == [True]
    assert [(v.version, v.key, v.body) for v in store.versions(first.id)] == [
        (1, "apple", "do it"),
        (2, "pear", "do it better"),
    ]
    assert store.get(first.id).stats == first.stats
    assert found(store, "pear", floor=0.9) == [first.id]
    assert found(store, "apple", floor=0.9) == []


def test_a_batch_with_a_bad_item_writes_nothing(store: Store) -> None:
    with pytest.raises(ValueError, match="half a character"):
        store.put([item("good"), item("bad").model_copy(update={"body": "\ud800"})])
    assert len(store) == 0
    with pytest.raises(ValueError, match="not a number"):
        store.put([item("good"), item("bad", stats=Stats(utility=float("nan")))])
    assert len(store) == 0


def test_items_of_one_key_share_one_embedding(tmp_path: Path) -> None:
    class Counting(HashEmbedder):
        asked = 0

        def embed(self, texts):
            self.asked += len(texts)
            return super().embed(texts)

    counting = Counting(64)
    with Store(tmp_path / "m.db", counting) as store:
        store.put([item("apple", "a"), item("apple", "b"), item("pear", "a")])
        store.put([item("apple", "c")])
    assert counting.asked == 2


def test_search_stays_in_its_scope_and_kind(store: Store) -> None:
    mine, other = item("apple"), Item.make("step", "office", "apple", "x")
    note = Item.make("note", SCOPE, "apple", "x")
    store.put([mine, other, note])
    assert found(store, "apple", kinds=["step"]) == [mine.id]
    assert set(found(store, "apple")) == {mine.id, note.id}
    assert found(store, "apple", scope="nowhere") == []
    assert found(store, "apple", scope="*") == found(store, "apple", scope="%") == []
    with pytest.raises(ValueError, match="scope"):
        found(store, "apple", scope="")
    with pytest.raises(ValueError, match="scope"):
        store.items("")


def test_equal_similarities_come_in_an_order_that_does_not_depend_on_insertion(tmp_path: Path) -> None:
    items = [item(f"apple {'!' * n}", str(n)) for n in range(20)]  # one embedding, twenty keys
    orders = []
    for name, batch in (("a", items), ("b", items[::-1])):
        with Store(tmp_path / name, HashEmbedder(64)) as store:
            store.put(batch)
            orders.append(found(store, "apple", k=7))
    assert orders[0] == orders[1]
    assert len(orders[0]) == 7


def test_credit_is_applied_in_order(store: Store) -> None:
    a, b = item("apple"), item("pear")
    store.put([a, b])
    new = store.credit([(a.id, 1.0), (a.id, -1.0), (b.id, 1.0)], QRule())
    assert new[a.id].utility == pytest.approx(0.7 * 0.3 - 0.3)
    assert store.get(a.id).stats == new[a.id] == Stats(utility=new[a.id].utility, visits=2, successes=1)


def test_an_unscored_reward_or_an_unknown_id_credits_nobody(store: Store) -> None:
    a = item("apple")
    store.put([a])
    with pytest.raises(ValueError, match="not a number"):
        store.credit([(a.id, 1.0), (a.id, float("nan"))], QRule())
    with pytest.raises(MemoryFault, match="never had an item 'step-typo'"):
        store.credit([(a.id, 1.0), ("step-typo", 1.0)], QRule())
    assert store.get(a.id).stats == Stats()


def test_many_items_are_credited_at_once(store: Store) -> None:
    items = [item(f"key {n}") for n in range(1200)]
    store.put(items)
    assert len(store.credit([(one.id, float(n)) for n, one in enumerate(items)], QRule(alpha=1.0))) == 1200
    assert [one.stats.utility for one in store.items(SCOPE)] == list(range(1200))


def test_what_was_forgotten_is_gone_and_does_not_come_back(store: Store, tmp_path: Path) -> None:
    secret = item("the QUINCE stands left", "press the QUINCE", provenance=("poisoned-QUINCE",))
    other = item("the QUINCE stands left", "harmless")
    store.put([secret, other])
    store.put([secret.model_copy(update={"body": "press QUINCE twice"})])
    assert found(store, secret.key) == sorted([secret.id, other.id])

    assert store.forget(secret.id) == 1
    assert store.forget(secret.id) == 0
    assert store.get(secret.id) is None
    assert store.versions(secret.id) == []
    assert found(store, secret.key) == [other.id]
    assert store.credit([(secret.id, 1.0)], QRule()) == {}  # a retrieval from before may still earn
    assert store.put([secret]) == [False]
    assert store.get(secret.id) is None

    store.forget(other.id)
    assert len(store._index) == 1
    assert found(store, secret.key) == []
    assert len(store._index) == 0
    for file in tmp_path.iterdir():
        assert b"QUINCE" not in file.read_bytes(), f"the text is still in {file.name}"


def test_a_memory_of_another_embedder_is_refused_with_the_cure(tmp_path: Path) -> None:
    Store(tmp_path / "m.db", HashEmbedder(64)).close()
    with pytest.raises(MemoryFault, match=r"hash-64 .*not hash-32.*Cure"):
        Store(tmp_path / "m.db", HashEmbedder(32))


def test_an_existing_memory_opens_with_its_own_embedder(tmp_path: Path) -> None:
    one = item("apple")
    with Store(tmp_path / "m.db", HashEmbedder(64)) as store:
        store.put([one])
    with Store.open(tmp_path / "m.db") as again:
        assert found(again, "apple") == [one.id]


def test_a_custom_embedder_must_be_given_again_and_must_normalise(tmp_path: Path) -> None:
    class Long(HashEmbedder):
        def embed(self, texts):
            return super().embed(texts) * 3

    mine = Long(16)
    mine.name = "mine"
    with Store(tmp_path / "m.db", mine) as store, pytest.raises(ValueError, match="mine gave vectors"):
        store.put([item("apple")])
    with Store.open(tmp_path / "m.db") as again, pytest.raises(MemoryFault, match=r"pass its embedder"):
        found(again, "apple")


def test_a_newer_major_format_is_refused_and_a_newer_minor_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    Store(path, HashEmbedder(8)).close()
    for version, refused in (("1.9", False), ("2.0", True)):
        raw = sqlite3.connect(path)
        raw.execute("UPDATE meta SET value = ? WHERE name = 'format'", (version,))
        raw.commit()
        raw.close()
        if refused:
            with pytest.raises(MemoryFault, match=r"format 2\.0.*update instar"):
                Store(path, HashEmbedder(8))
        else:
            Store(path, HashEmbedder(8)).close()


def test_what_is_not_a_memory_is_named_with_a_cure(tmp_path: Path) -> None:
    with pytest.raises(MemoryFault, match=r"none\.db does not exist.*Cure"):
        Store.open(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(MemoryFault, match=r"cannot be opened.*Cure"):
        Store(tmp_path / "no folder" / "m.db", HashEmbedder(8))
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"not a database at all" * 100)
    with pytest.raises(MemoryFault, match=r"junk\.db is not an SQLite database.*Cure"):
        Store(junk, HashEmbedder(8))
    raw = sqlite3.connect(tmp_path / "other.db")
    raw.execute("CREATE TABLE mine (x)")
    raw.close()
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(MemoryFault, match=r"other\.db is a database, but not a memory"):
        Store(tmp_path / "other.db", HashEmbedder(8))
    assert (tmp_path / "other.db").read_bytes() == before


def test_a_readonly_memory_can_be_searched_but_not_written(tmp_path: Path) -> None:
    with Store(tmp_path / "a ?#%.db", HashEmbedder(64)) as writer:
        writer.put([item("apple")])
        with Store.open(tmp_path / "a ?#%.db", readonly=True) as reader:
            assert len(found(reader, "apple")) == 1
            writer.put([item("apple pie")])
            assert len(found(reader, "apple")) == 2
            with pytest.raises(MemoryFault, match=r"may not be written.*Cure"):
                reader.put([item("pear")])


def test_a_full_disk_is_named_and_loses_nothing_that_was_committed(store: Store) -> None:
    store.put([item("apple")])
    with store._db.read() as c:
        c.execute(f"PRAGMA max_page_count = {c.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(MemoryFault, match=r"m\.db cannot grow.*full.*Cure"):
        store.put([item(f"key {n}", "x" * 5000) for n in range(50)])
    assert [one.key for one in store.items(SCOPE)] == ["apple"]
    with store._db.read() as c:
        c.execute("PRAGMA max_page_count = 1000000")
    assert store.put([item("pear")]) == [True]


def test_a_closed_memory_says_so(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(MemoryFault, match="is closed"):
        len(store)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_folder_without_write_rights_is_named(tmp_path: Path) -> None:
    with Store(tmp_path / "m.db", HashEmbedder(64)) as store:
        store.put([item("apple")])
    tmp_path.chmod(0o555)
    (tmp_path / "m.db").chmod(0o444)
    opened = [parent for parent in tmp_path.parents if not parent.stat().st_mode & 0o001]
    modes = {parent: parent.stat().st_mode for parent in opened}
    try:
        for parent in opened:  # pytest's folders are closed to the user that the child becomes
            parent.chmod(0o755)
        child = os.fork()
        if child == 0:
            verdict = 9
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                verdict = _without_rights(tmp_path)
            finally:
                os._exit(verdict)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        for parent, mode in modes.items():
            parent.chmod(mode)
        tmp_path.chmod(0o755)


def _without_rights(folder: Path) -> int:
    """0 when an archived memory can be read, and neither written nor created, in words."""
    with Store.open(folder / "m.db", readonly=True) as archived:
        if len(found(archived, "apple")) != 1:
            return 1
    for name in ("m.db", "new.db"):
        try:
            with Store(folder / name, HashEmbedder(64)) as store:
                store.put([item("pear")])
            return 2
        except MemoryFault as fault:
            if "Cure" not in str(fault) or str(folder / name) not in str(fault):
                return 3
    return 0


def test_threads_share_one_store(store: Store) -> None:
    shared = item("shared")
    store.put([shared])
    errors: list[BaseException] = []

    def work(name: int) -> None:
        try:
            for n in range(40):
                store.put([item(f"thread {name} number {n}")])
                store.credit([(shared.id, 1.0)], QRule())
                assert found(store, f"thread {name} number {n}", k=1, floor=0.99)
        except BaseException as error:  # noqa: BLE001 (handed to the main thread)
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store) == 161
    assert store.get(shared.id).stats.visits == 160


def test_the_default_embedder_finds_by_meaning_offline(tmp_path: Path) -> None:
    with Store(tmp_path / "m.db", WordLlamaEmbedder()) as store:
        store.put([item("heat an egg in the microwave"), item("buy a train ticket to the coast"), item("wash the car")])
        (best, *_) = store.search(store.embed(["warm up some food in the oven"])[0], scope=SCOPE, k=1)
        assert store.get(best.id).key == "heat an egg in the microwave"
