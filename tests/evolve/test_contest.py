"""Several candidates against one baseline: corrected for their number, and never at odds with their intervals."""

import random

import pytest

from evolve.contest import Contest, contest
from evolve.stats import Scores, compare


def played(chances: list[float], rng: random.Random, episodes: int = 1) -> Scores:
    return {(f"t{i:03d}", e): float(rng.random() < p) for i, p in enumerate(chances) for e in range(episodes)}


def field(rng: random.Random, *gains: float, tasks: int = 60, episodes: int = 1) -> tuple[Scores, dict[str, Scores]]:
    chances = [rng.betavariate(2, 2) for _ in range(tasks)]
    better = [[p + gain * (1 - p) for p in chances] for gain in gains]
    return played(chances, rng, episodes), {f"c{i}": played(ps, rng, episodes) for i, ps in enumerate(better)}


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_interval_adjusted_p_and_winner_of_each_candidate_say_the_same(level: float) -> None:
    rng, won, lost = random.Random(1), 0, 0
    for trial in range(60):
        base, candidates = field(rng, 0.6, 0.4, 0.3, 0.0, episodes=1 + trial % 2)
        for entry in contest(base, candidates, level=level).candidates:
            c = entry.comparison
            assert entry.p_adjusted is not None
            assert c.low is not None
            assert c.high is not None
            shown = entry.p_adjusted <= 1 - level + 1e-12
            assert shown == (c.winner is not None) == (c.low > 0 or c.high < 0)
            won, lost = won + shown, lost + (not shown)
    assert won > 30
    assert lost > 30


def test_one_candidate_is_compared_as_it_is_alone() -> None:
    base, candidates = field(random.Random(2), 0.4)
    found = contest(base, candidates)
    assert found.correction == "none"
    assert found.candidates[0].comparison == compare(base, candidates["c0"])
    assert found.candidates[0].p_adjusted == found.candidates[0].comparison.p_value


def test_a_lucky_candidate_among_many_is_no_winner() -> None:
    base = {(f"t{i}", 0): 0.0 for i in range(30)}
    lucky = {key: float(i < 7) for i, key in enumerate(base)}  # p = 2 / 2^7 = .0156
    assert compare(base, lucky).winner == "candidate"
    found = contest(base, {"lucky": lucky, **{f"same{i}": base for i in range(4)}})
    assert found.better == ()
    assert found.candidates[0].p_adjusted == pytest.approx(5 * 2 / 2**7)
    assert "no difference shown" in found.candidates[0].comparison.summary()


def test_after_a_winner_the_next_is_held_to_less() -> None:
    base = {(f"t{i}", 0): 0.0 for i in range(30)}
    # Of two, .0156 must be below .05 / 2; of three with one clear winner as well, of three alone not.
    second = {key: float(i < 7) for i, key in enumerate(base)}
    clear = dict.fromkeys(base, 1.0)
    assert contest(base, {"a": clear, "b": second, "c": base}).better == ("a", "b")
    assert contest(base, {"b": second, "c": base, "d": base, "e": base}).better == ()


def test_an_undecided_candidate_claims_nothing_and_counts_among_the_tries() -> None:
    base = {(f"t{i}", 0): 0.0 for i in range(30)}
    gone = {key: 1.0 if i < 20 else None for i, key in enumerate(base)}
    good = dict.fromkeys(base, 1.0)
    found = contest(base, {"gone": gone, "good": good, "elsewhere": {("x", 0): 1.0}})
    assert found.better == ("good",)
    assert [entry.p_adjusted is None for entry in found.candidates] == [True, False, True]
    alone = compare(base, good).p_value
    assert alone is not None
    assert found.candidates[1].p_adjusted == pytest.approx(3 * alone)
    assert Contest.model_validate_json(found.model_dump_json()) == found


def test_any_useless_winner_is_as_rare_as_for_one_candidate() -> None:
    rng, wrong, uncorrected = random.Random(3), 0, 0
    for _ in range(150):
        base, candidates = field(rng, *[0.0] * 6, tasks=30, episodes=2)
        wrong += bool([e for e in contest(base, candidates).candidates if e.comparison.winner])
        uncorrected += any(compare(base, scores).winner for scores in candidates.values())
    assert wrong / 150 <= 0.09
    assert uncorrected > wrong


def test_no_candidate_is_an_error() -> None:
    with pytest.raises(ValueError, match="no candidate"):
        contest({("a", 0): 1.0}, {})
