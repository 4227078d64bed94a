"""Two-phase retrieval decides as published, and only inside its scope."""

import math
import random
from pathlib import Path

import pytest

from memory import Candidate, HashEmbedder, Item, Retriever, RetrieveSettings, Stats, Store
from memory.retrieve import choose, rank, z_scores

SCOPE = "kitchen"


def item(key: str, body: str, utility: float = 0.0, kind: str = "step") -> Item:
    return Item.make(kind, SCOPE, key, body, stats=Stats(utility=utility))


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path / "m.db", HashEmbedder(512)) as opened:
        yield opened


def bodies(store: Store, query: str, rng: random.Random | None = None, **settings: object) -> list[str]:
    got = Retriever(store, RetrieveSettings(**settings)).retrieve(query, scope=SCOPE, rng=rng)
    return [one.body for one in got.items]


def test_z_scores_do_not_divide_by_a_spread_of_zero() -> None:
    assert z_scores([]) == []
    assert z_scores([0.1, 0.1, 0.1]) == [0.0, 0.0, 0.0]
    assert z_scores([1.0, 3.0]) == [-1.0, 1.0]


def test_the_score_is_the_published_formula() -> None:
    # similarities .1 .2 .6: mean .3, std sqrt(.14 / 3); utilities 0 0 3: mean 1, std sqrt(2)
    candidates = [Candidate("a", 0.1, 0.0), Candidate("b", 0.2, 0.0), Candidate("c", 0.6, 3.0)]
    ranked = rank(candidates, RetrieveSettings(weight_similarity=0.25, weight_utility=2.0))
    spread = math.sqrt(0.14 / 3)
    assert [(c.id, pytest.approx(score)) for score, c in ranked] == [
        ("c", 0.25 * 0.3 / spread + 2 * math.sqrt(2)),
        ("b", -0.25 * 0.1 / spread - math.sqrt(2)),
        ("a", -0.25 * 0.2 / spread - math.sqrt(2)),
    ]


def test_utility_statistics_are_taken_after_the_drop() -> None:
    candidates = [Candidate("a", 0.5, 0.4), Candidate("b", 0.5, 0.6), Candidate("poor", 0.5, -100.0)]
    ranked = rank(candidates, RetrieveSettings(least_utility=0.0))
    assert [(c.id, pytest.approx(score)) for score, c in ranked] == [("b", 0.5), ("a", -0.5)]


def test_a_runaway_utility_is_clipped() -> None:
    candidates = [Candidate(f"{n:02}", 0.5, 0.0) for n in range(40)] + [Candidate("rich", 0.5, 1e9)]
    (score, best), *_ = rank(candidates, RetrieveSettings())
    assert (best.id, score) == ("rich", 1.5)


def test_equal_scores_are_ranked_by_id() -> None:
    candidates = [Candidate(id, 0.5, 0.0) for id in "dbca"]
    assert [c.id for _, c in rank(candidates, RetrieveSettings())] == list("abcd")


def test_exploration_is_the_callers_luck_and_never_repeats_an_item() -> None:
    ranked = rank([Candidate(f"{n:02}", 0.5, -n) for n in range(20)], RetrieveSettings())
    assert [c.id for _, c in choose(ranked, 3, 0.0, None)] == ["00", "01", "02"]
    draws = [tuple(c.id for _, c in choose(ranked, 3, 0.5, random.Random(seed))) for seed in range(200)]
    assert draws == [tuple(c.id for _, c in choose(ranked, 3, 0.5, random.Random(seed))) for seed in range(200)]
    assert all(len(set(draw)) == 3 for draw in draws)
    first = sum(draw[0] != "00" for draw in draws) / len(draws)
    assert 0.35 < first < 0.6  # .5 * 19/20 = .475
    with pytest.raises(ValueError, match="random"):
        choose(ranked, 3, 0.5, None)


def test_near_keys_come_first_and_far_ones_not_at_all(store: Store) -> None:
    store.put(
        [item("cool the lettuce in the fridge", "fridge"), item("heat the egg", "microwave"), item("zebra", "zoo")]
    )
    assert bodies(store, "cool the tomato in the fridge", take=1) == ["fridge"]
    assert "zoo" not in bodies(store, "cool the tomato in the fridge", floor=0.1)
    assert bodies(store, "quantum", floor=0.1) == []


def test_proven_items_win_among_similar_ones(store: Store) -> None:
    store.put(
        [item("cool the lettuce", "bad", -0.9), item("cool the lettuce", "good", 0.9), item("cool the lettuce", "new")]
    )
    assert bodies(store, "cool the lettuce") == ["good", "new", "bad"]
    assert bodies(store, "cool the lettuce", least_utility=0.0) == ["good", "new"]


def test_the_limit_on_keys_counts_keys_and_not_items(store: Store) -> None:
    store.put([item("cool the lettuce", f"body {n}") for n in range(4)] + [item("cool the egg", "second key")])
    assert len(bodies(store, "cool the lettuce", keys=1, take=9)) == 4
    assert len(bodies(store, "cool the lettuce", keys=2, take=9)) == 5


def test_a_scope_must_be_named_and_hides_all_others(store: Store) -> None:
    store.put([item("cool the lettuce", "mine")])
    retriever = Retriever(store)
    assert retriever.retrieve("cool the lettuce", scope="office").items == ()
    with pytest.raises(ValueError, match="scope"):
        retriever.retrieve("cool the lettuce", scope="")


def test_a_cached_query_still_sees_new_and_forgotten_items(store: Store) -> None:
    retriever = Retriever(store)
    assert retriever.retrieve("cool the lettuce", scope=SCOPE).ids == ()
    one = item("cool the lettuce", "a")
    store.put([one])
    assert retriever.retrieve("cool the lettuce", scope=SCOPE).ids == (one.id,)
    store.forget(one.id)
    assert retriever.retrieve("cool the lettuce", scope=SCOPE).ids == ()


def test_a_near_task_joins_an_existing_key(store: Store) -> None:
    store.put([item("cool the green lettuce in the old white fridge now", "a")])
    retriever = Retriever(store)
    near = "cool the green lettuce in the old white fridge"
    assert (
        retriever.shared_key(near, scope=SCOPE, kind="step", least=0.8)
        == "cool the green lettuce in the old white fridge now"
    )
    assert retriever.shared_key(near, scope=SCOPE, kind="step", least=0.999) == near
    assert retriever.shared_key(near, scope=SCOPE, kind="note", least=0.8) == near


def test_settings_that_cannot_work_are_refused() -> None:
    for wrong in ({"keys": 0}, {"take": 0}, {"epsilon": 1.5}, {"k1": 5}):
        with pytest.raises(ValueError):  # noqa: PT011 (pydantic's own words)
            RetrieveSettings(**wrong)
