"""Means, comparisons, pass rates and corrections over plain scores."""

import itertools
import json
import math
import random
from pathlib import Path

import pytest

from evolve.exact import holm, mcnemar, pass_at_k, pass_hat_k, sign_flip, wilson
from evolve.interval import bootstrap
from evolve.stats import Comparison, Mean, PassRates, compare, mean_interval, pass_rates

#: What was written down before means said whether they are decided, and rates and bounds had intervals.
BEFORE = json.loads((Path(__file__).parent / "data" / "statistics_1.json").read_text())

Score = float | None


def runs(*values: Score, episodes: int = 1) -> dict[tuple[str, int], Score]:
    """Scores in order, `episodes` a task."""
    return {(f"task-{i // episodes:03d}", i % episodes): value for i, value in enumerate(values)}


def test_all_failures_still_leave_room_above_zero_and_all_successes_below_one() -> None:
    none, every = mean_interval(runs(*[0.0] * 20)), mean_interval(runs(*[1.0] * 20))
    assert none.method == every.method == "Wilson"
    assert none.low == 0.0
    assert none.high == pytest.approx(0.1611, abs=1e-4)  # z^2 / (n + z^2)
    assert every.low == pytest.approx(1 - 0.1611, abs=1e-4)
    assert every.high == 1.0


def test_episodes_of_one_task_that_always_agree_add_no_certainty() -> None:
    once = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    many = mean_interval(runs(*[v for v in once for _ in range(10)], episodes=10))
    graded = mean_interval({(f"t{i}", 0): 0.999 * v for i, v in enumerate(once)})
    assert many.episodes == 80
    assert many.tasks == graded.tasks == 8
    assert many.low is not None
    assert graded.low is not None
    assert many.low == pytest.approx(graded.low, abs=2e-3)


def test_cluster_interval_equals_the_formula_worked_by_hand() -> None:
    # Task means .5 and 1 and 0, two episodes each: residual sums 0, 1, -1; se = sqrt(3/2 * 2) / 6; t(2) = 4.3027.
    got = mean_interval(runs(0.0, 1.0, 1.0, 1.0, 0.0, 0.0, episodes=2), reward_range=None)
    assert got.mean == 0.5
    assert got.high == pytest.approx(0.5 + 4.302653 * math.sqrt(3) / 6)


def test_clustered_wilson_interval_equals_the_formula_worked_by_hand() -> None:
    # The same tasks: error .2887, so .25 / .0833 = 3 trials; z^2 becomes 4.3027^2 = 18.513.
    got = mean_interval(runs(0.0, 1.0, 1.0, 1.0, 0.0, 0.0, episodes=2))
    assert got.method == "Wilson, clustered by task"
    half = math.sqrt(18.513 * (0.25 / 3 + 18.513 / 36)) / (1 + 18.513 / 3)
    assert got.low == pytest.approx(0.5 - half, abs=1e-4)
    assert got.high == pytest.approx(0.5 + half, abs=1e-4)
    shifted = mean_interval({k: v * 4 - 2 for k, v in runs(0.0, 1.0, 1.0, 1.0, 0.0, 0.0, episodes=2).items()},
                            reward_range=(-2.0, 2.0))  # fmt: skip
    assert shifted.low == pytest.approx(4 * got.low - 2)


def test_near_an_end_the_interval_leans_inwards_where_a_t_interval_is_cut_off() -> None:
    values = [0.0] * 57 + [1.0, 1.0, 0.0]
    got, t = mean_interval(runs(*values, episodes=3)), mean_interval(runs(*values, episodes=3), method="t")
    assert t.low == 0.0
    assert got.low is not None
    assert 0 < got.low < got.mean < got.high  # type: ignore[operator]
    assert got.high > t.high  # type: ignore[operator]


def test_tasks_with_equal_means_leave_room_for_others() -> None:
    got = mean_interval(runs(*[0.0, 1.0] * 12, episodes=2))
    assert got.low is not None
    assert got.low < 0.45
    drawn = mean_interval(runs(*[0.0, 1.0] * 12, episodes=2), method="bootstrap")
    assert (drawn.low, drawn.high) == (got.low, got.high)


def test_bootstrap_is_near_t_for_many_tasks_leans_with_skew_and_repeats_exactly() -> None:
    rng = random.Random(3)
    even = {(f"t{i}", e): rng.uniform(0.2, 0.8) for i in range(150) for e in range(2)}
    drawn, t = mean_interval(even, method="bootstrap"), mean_interval(even, method="t")
    assert drawn.method == "BCa bootstrap over tasks"
    assert drawn.low == pytest.approx(t.low, abs=0.003)
    assert drawn.high == pytest.approx(t.high, abs=0.003)
    assert drawn == mean_interval(dict(reversed(even.items())), method="bootstrap")
    skewed = mean_interval({(f"t{i}", 0): rng.random() ** 12 for i in range(40)}, method="bootstrap")
    assert skewed.high - skewed.mean > skewed.mean - skewed.low > 0  # type: ignore[operator]


def test_bootstrap_of_many_tasks_agrees_with_scipy() -> None:
    import numpy as np
    from scipy.stats import bootstrap as peer

    values = np.random.default_rng(4).beta(1, 6, size=200)
    theirs = peer((values,), np.mean, n_resamples=9999, method="BCa", rng=np.random.default_rng(1)).confidence_interval
    low, high = bootstrap([[float(v)] for v in values], 0.95, random.Random(0), 20_000)
    width = theirs.high - theirs.low
    assert low == pytest.approx(theirs.low, abs=0.04 * width)
    assert high == pytest.approx(theirs.high, abs=0.04 * width)


def test_a_gap_is_counted_and_bounded_but_never_becomes_a_zero() -> None:
    got = mean_interval(runs(1.0, 1.0, None, 0.0))
    assert got.mean == pytest.approx(2 / 3)
    assert (got.missing, got.worst, got.best) == (1, 0.5, 0.75)
    assert "1 missing (between 0.500 and 0.750)" in got.summary()
    assert mean_interval(runs(None, None)).mean is None


def test_a_mean_that_lost_too_much_says_undecided() -> None:
    lost = runs(*[1.0] * 7, *[None] * 3)
    assert not mean_interval(lost).decided
    assert mean_interval(lost).summary().startswith("undecided, too much is missing: 1.000 [")
    assert mean_interval(lost, max_missing=0.3).decided
    assert mean_interval(runs(*[1.0] * 8, *[None] * 2)).decided
    assert not mean_interval(runs(None)).decided
    assert not mean_interval({}).decided


def test_what_an_earlier_journal_holds_still_loads() -> None:
    loaded = {name: Mean.model_validate(BEFORE[name]) for name in ("mean", "mean_of_too_few", "mean_of_none")}
    assert {name: mean.decided for name, mean in loaded.items()} == {
        "mean": True, "mean_of_too_few": False, "mean_of_none": False,
    }  # fmt: skip
    assert PassRates.model_validate(BEFORE["rates"]).any_low is None
    compared = Comparison.model_validate(BEFORE["comparison"])
    assert compared.worst is None
    assert "2 missing; " in compared.summary()


def test_constant_graded_scores_get_an_interval_of_nonzero_width() -> None:
    got = mean_interval(runs(*[0.5] * 30))
    assert got.method == "constant scores"
    assert got.low is not None
    assert got.high is not None
    assert 0.4 < got.low < 0.5 < got.high < 0.6


def test_one_task_gives_no_interval_instead_of_a_narrow_one() -> None:
    got = mean_interval(runs(0.1, 0.9, episodes=2))
    assert (got.low, got.high) == (None, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.5])
def test_a_score_outside_the_range_is_refused_with_its_task(bad: float) -> None:
    with pytest.raises(ValueError, match="task-001"):
        mean_interval(runs(0.5, bad))


def test_interval_of_the_mean_covers_the_truth_as_often_as_it_says() -> None:
    rng, hits = random.Random(5), 0
    for _ in range(300):
        chances = [rng.betavariate(1, 1) for _ in range(30)]
        got = mean_interval({(str(t), e): float(rng.random() < p) for t, p in enumerate(chances) for e in range(3)})
        assert got.low is not None
        assert got.high is not None
        hits += got.low <= 0.5 <= got.high
    assert hits / 300 >= 0.92


def test_mcnemar_counts_only_discordant_pairs() -> None:
    # 8 won, 1 lost: 2 * (1 + 9) / 2^9.
    got = compare(runs(*[0.0] * 8, 1.0, *[1.0] * 11), runs(*[1.0] * 8, 0.0, *[1.0] * 11))
    assert (got.wins, got.losses, got.ties) == (8, 1, 11)
    assert got.p_value == pytest.approx(20 / 512)
    assert got.winner == "candidate"
    assert got.difference == pytest.approx(0.35)
    assert got.low is not None
    assert got.low > 0


def excludes_zero(got: Comparison) -> bool:
    assert got.low is not None
    assert got.high is not None
    assert got.low <= got.high
    return got.low > 0 or got.high < 0


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_on_every_small_table_the_interval_excludes_zero_exactly_if_the_test_rejects(level: float) -> None:
    rejected = 0
    for n in (*range(2, 16), 50):
        for wins in range(min(n, 15) + 1):
            for losses in range(min(n - wins, 15) + 1):
                before = runs(*[0.0] * wins, *[1.0] * (n - wins))
                after = runs(*[1.0] * wins, *[0.0] * losses, *[1.0] * (n - wins - losses))
                got = compare(before, after, level=level)
                assert got.p_value == mcnemar(wins, losses)
                assert excludes_zero(got) == (got.p_value <= 1 - level) == (got.winner is not None), (n, wins, losses)
                rejected += excludes_zero(got)
    assert rejected > 20


def test_five_wins_of_fifty_are_not_enough_for_test_and_interval_alike() -> None:
    # Clopper and Pearson: .025^(1/5) = .4782, so the end is (2 * .4782 - 1) * 5 / 50.
    got = compare(runs(*[0.0] * 50), runs(*[1.0] * 5, *[0.0] * 45))
    assert got.p_value == 0.0625
    assert got.low == pytest.approx((2 * 0.025 ** (1 / 5) - 1) / 10)
    assert got.high == pytest.approx(0.185, abs=1e-3)
    lost = compare(runs(*[1.0] * 5, *[0.0] * 45), runs(*[0.0] * 50))
    assert (lost.low, lost.high) == (pytest.approx(-(got.high or 0)), pytest.approx(-(got.low or 0)))


def test_graded_comparisons_agree_with_their_test_about_zero() -> None:
    rng, moved = random.Random(8), 0
    for trial in range(150):
        tasks, shift = 3 + trial % 9, rng.choice([0.0, 0.1, 0.2])
        base = {(str(t), e): 0.4 + 0.1 * rng.random() for t in range(tasks) for e in range(2)}
        spread = rng.choice([0.0, 0.1, 0.3])
        cand = {key: value + shift + spread * (rng.random() - 0.5) for key, value in base.items()}
        got = compare(base, cand)
        assert got.p_value is not None
        assert excludes_zero(got) == (got.p_value <= 0.05) == (got.winner is not None)
        moved += got.low == 0.0 or got.high == 0.0
    assert moved > 5
    # All eight are better, one by far: the t interval alone would hold 0, which the test refutes.
    outlier = compare(runs(*[0.0] * 8), runs(*[0.01] * 7, 0.9))
    assert outlier.p_value == pytest.approx(2 / 2**8)
    assert 0 < (outlier.low or 0) <= 0.12


def test_sign_flips_equal_brute_force_over_all_signs() -> None:
    rng = random.Random(2)
    for _ in range(5):
        sums = [rng.gauss(0.4, 1) for _ in range(9)]
        seen = abs(sum(sums)) - 1e-9
        flips = itertools.product((-1, 1), repeat=9)
        brute = sum(abs(sum(s * v for s, v in zip(f, sums, strict=True))) >= seen for f in flips)
        p, exact = sign_flip(sums, random.Random(0))
        assert exact
        assert p == pytest.approx(brute / 2**9)


def test_sign_flips_of_whole_numbers_stay_exact_for_hundreds_of_tasks_and_equal_mcnemar() -> None:
    p, exact = sign_flip([1.0] * 130 + [-1.0] * 100, random.Random(0))
    assert exact
    assert p == pytest.approx(mcnemar(130, 100))
    tenths = [random.Random(i).randint(-9, 10) / 10 for i in range(300)]
    p, exact = sign_flip(tenths, random.Random(0))
    assert exact
    assert p == pytest.approx(sign_flip([10 * v for v in tenths], random.Random(0))[0])


def test_sampled_sign_flips_are_never_zero_and_come_near_the_exact_value() -> None:
    rng = random.Random(4)
    sums = [rng.gauss(0.3, 1) for _ in range(60)]
    p, exact = sign_flip(sums, random.Random(1))
    assert not exact
    z = abs(sum(sums)) / math.sqrt(sum(s * s for s in sums))
    assert p == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.01)
    assert sign_flip([1.0 + i / 7e3 for i in range(99)], random.Random(1), 99)[0] == 0.01


def test_graded_comparison_flips_whole_tasks() -> None:
    # Three tasks, each better in all ten episodes: one sign a task gives p = 2/8, not 2/2^30.
    base = {(t, e): 0.1 + 0.01 * e for t in "abc" for e in range(10)}
    got = compare(base, {key: value + 0.2 for key, value in base.items()})
    assert got.p_value == pytest.approx(0.25)
    assert got.winner is None
    assert got.pairs == 30


def test_repeated_pass_fail_episodes_are_clustered_too() -> None:
    base = {(t, e): 0.0 for t in "abc" for e in range(10)}
    got = compare(base, dict.fromkeys(base, 1.0))
    assert got.p_value == pytest.approx(0.25)
    assert got.winner is None


def test_too_many_gaps_make_the_comparison_undecided_however_clear_it_looks() -> None:
    base, cand = runs(*[0.0] * 40), runs(*[1.0] * 30, *[None] * 10)
    got = compare(base, cand)
    assert (got.decided, got.winner, got.missing) == (False, None, 10)
    assert got.summary().startswith("undecided")
    assert "10 of 40 pairs are missing" in got.reason
    assert compare(base, cand, max_missing=0.3).winner == "candidate"


def test_the_bounds_of_a_comparison_are_what_the_worst_and_best_filling_of_its_gaps_give() -> None:
    base, cand = runs(0.2, None, 0.7, None, 0.1), runs(0.5, 0.4, None, None, 0.3)
    cand["alone", 0] = 1.0
    got = compare(base, cand, max_missing=1.0)
    gaps = [(side, key) for side in (base, cand) for key, value in side.items() if value is None]
    differences = []
    for filling in itertools.product((0.0, 1.0), repeat=len(gaps)):
        full = [dict(base), dict(cand)]
        for (side, key), value in zip(gaps, filling, strict=True):
            full[side is cand][key] = value
        differences.append(compare(full[0], full[1]).difference)
    assert (got.worst, got.best) == (pytest.approx(min(differences)), pytest.approx(max(differences)))  # type: ignore[type-var]
    assert f"3 missing (between {got.worst:+.3f} and {got.best:+.3f})" in got.summary()
    assert compare({("a", 0): None}, {("a", 0): 1.0}).best == 1.0


def test_runs_without_a_common_task_are_undecided_not_equal() -> None:
    got = compare({("a", 0): 1.0}, {("b", 0): 0.0})
    assert not got.decided
    assert got.unpaired == 2
    assert "no task and episode was run by both" in got.summary()


def test_no_difference_tells_how_many_pairs_would_show_it() -> None:
    rng = random.Random(1)
    base = runs(*[float(rng.random() < 0.5) for _ in range(50)])
    cand = runs(*[float(rng.random() < 0.55) for _ in range(50)])
    got = compare(base, cand)
    assert got.decided
    assert got.winner is None
    assert got.pairs_needed is not None
    assert got.pairs_needed > 50
    assert got.minimum_detectable is not None
    assert got.minimum_detectable > 0.15


def test_all_ties_are_no_difference_with_an_honest_width() -> None:
    for value in (1.0, 0.4):
        got = compare(runs(*[value] * 25), runs(*[value] * 25))
        assert (got.p_value, got.difference, got.ties) == (1.0, 0.0, 25)
        assert got.high is not None
        assert 0.02 < got.high < 0.3


def test_results_do_not_depend_on_the_order_of_the_scores_and_survive_json() -> None:
    rng = random.Random(6)
    base = {(f"t{i % 12}", i // 12): rng.random() for i in range(60)}
    cand = {key: min(1.0, value + 0.1 * rng.random()) for key, value in base.items()}
    got = compare(base, cand)
    assert got == compare(dict(reversed(base.items())), dict(reversed(cand.items())))
    assert Comparison.model_validate_json(got.model_dump_json()) == got
    mean = mean_interval(base)
    assert Mean.model_validate_json(mean.model_dump_json()) == mean


def test_comparing_a_run_with_its_own_noise_is_rarely_significant() -> None:
    rng, found = random.Random(9), 0
    for _ in range(200):
        chances = [rng.random() for _ in range(20)]
        a, b = (
            {(str(t), e): float(rng.random() < p) for t, p in enumerate(chances) for e in range(2)} for _ in range(2)
        )
        found += compare(a, b).winner is not None
    assert found / 200 <= 0.09


def test_pass_at_k_is_the_share_of_k_subsets() -> None:
    attempts = [1, 1, 0, 0, 0]
    subsets = list(itertools.combinations(attempts, 3))
    assert pass_at_k(5, 2, 3) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))
    assert pass_hat_k(5, 2, 2) == pytest.approx(1 / 10)
    with pytest.raises(ValueError, match="k=6"):
        pass_at_k(5, 2, 6)


def test_pass_rates_count_tasks_with_too_few_episodes_as_short() -> None:
    got = pass_rates({("a", 0): 1.0, ("a", 1): 0.0, ("b", 0): 1.0, ("b", 1): None}, 2)
    assert (got.tasks, got.short, got.any_of_k, got.all_of_k) == (1, 1, 1.0, 0.0)


def test_pass_rates_have_intervals_over_tasks_that_stay_open_when_all_agree() -> None:
    rng = random.Random(5)
    chances = [rng.betavariate(2, 2) for _ in range(60)]
    scores = {(f"t{i}", e): float(rng.random() < p) for i, p in enumerate(chances) for e in range(4)}
    got, drawn = pass_rates(scores, 2), pass_rates(scores, 2, method="bootstrap")
    assert got.any_low < got.any_of_k < got.any_high  # type: ignore[operator]
    assert got.all_low < got.all_of_k < got.all_high  # type: ignore[operator]
    assert got.any_low == pytest.approx(drawn.any_low, abs=0.02)
    assert got.all_high == pytest.approx(drawn.all_high, abs=0.02)
    assert f"pass@2 {got.any_of_k:.3f} [{got.any_low:.3f}, {got.any_high:.3f}]" in got.summary()
    never = pass_rates(runs(*[0.0] * 40, episodes=2), 2)
    assert (never.all_of_k, never.all_low) == (0.0, 0.0)
    assert 0.1 < never.all_high < 0.25  # type: ignore[operator]
    assert pass_rates(runs(1.0, 0.0, episodes=2), 3).any_low is None
    assert PassRates.model_validate_json(got.model_dump_json()) == got


def test_pass_rates_cover_the_truth_as_often_as_they_say() -> None:
    rng, hits = random.Random(6), 0
    for _ in range(300):
        chances = [rng.betavariate(4, 1) for _ in range(40)]  # pass@2 is 1 - 1/5 * 2/6
        scores = {(str(t), e): float(rng.random() < p) for t, p in enumerate(chances) for e in range(4)}
        got = pass_rates(scores, 2)
        hits += got.any_low <= 1 - 1 / 15 <= got.any_high  # type: ignore[operator]
    assert 0.92 <= hits / 300 <= 0.99


def test_holm_adjusts_as_in_the_published_steps() -> None:
    # .005 * 4, .01 * 3, .03 * 2, and .04 is held to the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]


def test_wilson_matches_a_published_value() -> None:
    low, high = wilson(0.1, 10)
    assert (round(low, 4), round(high, 4)) == (0.0179, 0.4042)


def test_gaps_of_pass_rates_are_bounded_over_all_tasks_and_many_of_them_leave_it_undecided() -> None:
    """Half of the tasks always pass; of the others, which always fail, each lost one episode."""
    scores: dict[tuple[str, int], float | None] = {}
    for number in range(20):
        for episode in range(4):
            good = number % 2 == 0
            scores[f"t{number}", episode] = 1.0 if good else None if episode == 0 else 0.0
    found = pass_rates(scores, 4)
    assert (found.any_of_k, found.tasks, found.short, found.missing) == (1.0, 10, 10, 10)
    assert (found.any_worst, found.any_best, found.all_worst, found.all_best) == (0.5, 1.0, 0.5, 0.5)
    assert not found.decided
    assert "undecided" in found.summary()
    assert "pass@4 1.000" in found.summary()
    assert "(between 0.500 and 1.000)" in found.summary()
