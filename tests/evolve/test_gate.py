"""Gates on streams of paired differences, and the error budget of a run."""

import random

import pytest

from evolve.alpha import AlphaLedger
from evolve.gate import Gate, SequentialPaired, Strict, Verdict


def pair(rng: random.Random, better: float, worse: float) -> float:
    """One pass/fail difference."""
    roll = rng.random()
    return 1.0 if roll < better else -1.0 if roll < better + worse else 0.0


def play(gate: Gate, rng: random.Random, better: float, worse: float, batch: int = 5) -> Verdict:
    """Feed pairs until the verdict is final."""
    while True:
        verdict = gate.look([pair(rng, better, worse) for _ in range(batch)])
        if verdict.final:
            return verdict


def test_evidence_equals_the_mixture_worked_by_hand() -> None:
    # Two wins, a tie, a loss: mean over l in .2 .4 .6 .8 1 of (1+l)^2 (1-l) = (1.152+1.176+1.024+.648+0)/5.
    got = SequentialPaired().look([1.0, 1.0, 0.0, -1.0])
    assert got.e_value == pytest.approx(0.8)
    assert (got.decision, got.final, got.n, got.mean_difference) == ("undecided", False, 4, 0.25)


def test_six_straight_wins_are_enough_at_five_percent_and_five_are_not() -> None:
    gate = SequentialPaired()
    assert not gate.look([1.0] * 5).final
    got = gate.look([1.0])
    assert (got.decision, got.final, got.n) == ("accept", True, 6)
    assert got.e_value == pytest.approx(25.06, abs=0.01)
    assert got.interval is not None
    assert 0 < got.interval[0] < 1


def test_evidence_does_not_depend_on_the_order_of_the_pairs() -> None:
    rng = random.Random(0)
    pairs: list[float | None] = [rng.choice([0.5, 0.2, 0.0, -0.3]) for _ in range(30)]
    one = SequentialPaired(margin=0.01).look(pairs)
    other = SequentialPaired(margin=0.01)
    rng.shuffle(pairs)
    other.look(pairs[:11])
    assert other.look(pairs[11:]).e_value == pytest.approx(one.e_value)


def test_useless_edits_pass_at_most_alpha_of_the_time_when_looked_at_after_every_pair() -> None:
    rng, accepted = random.Random(1), 0
    for run in range(400):
        rate = (0.05, 0.2, 0.45)[run % 3]
        accepted += play(SequentialPaired(), rng, rate, rate, batch=1).decision == "accept"
    assert accepted / 400 <= 0.05


def test_harmful_edits_are_turned_down_early() -> None:
    rng = random.Random(2)
    verdicts = [play(SequentialPaired(), rng, 0.1, 0.3) for _ in range(50)]
    assert all(v.decision == "reject" for v in verdicts)
    assert sum(v.n for v in verdicts) / 50 < 60


def test_a_real_gain_is_found_and_a_bigger_one_sooner() -> None:
    rng = random.Random(3)
    small = [play(SequentialPaired(), rng, 0.35, 0.1) for _ in range(100)]
    large = [play(SequentialPaired(), rng, 0.5, 0.05) for _ in range(100)]
    assert sum(v.decision == "accept" for v in small) >= 90
    assert sum(v.decision == "accept" for v in large) >= 98
    assert sum(v.n for v in large) / 100 < 30 < sum(v.n for v in small) / 100 < 80


def test_an_edit_that_changes_nothing_is_dropped_before_the_last_pair() -> None:
    got = play(SequentialPaired(), random.Random(0), 0.0, 0.0)
    assert got.decision == "reject"
    assert got.n <= 30
    assert "futile" in got.reason


def test_a_gain_of_the_margin_is_called_futile_at_most_beta_of_the_time() -> None:
    rng = random.Random(4)
    verdicts = [play(SequentialPaired(margin=0.15, max_pairs=400), rng, 0.3, 0.15) for _ in range(150)]
    assert sum("futile" in v.reason for v in verdicts) / 150 <= 0.2


def test_the_test_ends_at_max_pairs_with_a_rejection() -> None:
    gate = SequentialPaired(max_pairs=10, margin=0.5)
    assert not gate.look([1.0, -0.1] * 2).final
    got = gate.look([0.4, 0.0, 0.3, 0.3, 0.3, 0.3])
    assert (got.decision, got.final) == ("reject", True)
    assert "not shown to be better in 10 pairs" in got.reason


def test_the_interval_holds_the_truth_at_every_look_at_once() -> None:
    rng, failures = random.Random(5), 0
    for _ in range(80):
        gate, escaped = SequentialPaired(alpha=1e-9, beta=1e-9, max_pairs=1000, level=0.9), False
        for _ in range(8):
            gate.look([pair(rng, 0.3, 0.1) for _ in range(12)])
            low, high = gate.interval()
            escaped |= not low <= 0.2 <= high
        failures += escaped
    assert failures / 80 <= 0.1


def test_the_interval_narrows_and_starts_at_everything() -> None:
    gate = SequentialPaired(alpha=1e-9, beta=1e-9, max_pairs=10_000)
    assert gate.interval() == (-1.0, 1.0)
    widths = []
    for _ in range(3):
        gate.look([1.0, 0.0, 0.0, -1.0] * 50)
        low, high = gate.interval()
        assert low < 0 < high
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.4


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_the_interval_reaches_the_edge_when_every_pair_lies_there(value: float) -> None:
    gate = SequentialPaired(alpha=1e-9, beta=1e-9)
    gate.look([value] * 20)
    low, high = gate.interval()
    assert (high if value > 0 else low) == pytest.approx(value, abs=1e-5)
    assert 0.4 < (low if value > 0 else -high) < 1


def test_a_difference_beyond_the_bound_is_an_error_that_names_the_cure() -> None:
    with pytest.raises(ValueError, match="bound"):
        SequentialPaired().look([0.5, 1.4])
    wide = SequentialPaired(bound=2.0).look([2.0])
    assert wide.e_value == SequentialPaired().look([1.0]).e_value


def test_gaps_are_not_fed_and_too_many_of_them_leave_it_undecided() -> None:
    gate = SequentialPaired(max_pairs=40)
    got = gate.look([1.0] * 12 + [None] * 4)
    assert (got.decision, got.final, got.n, got.missing) == ("undecided", False, 12, 4)
    assert "otherwise: accept" in got.reason
    assert gate.look([1.0] * 8).decision == "accept"
    lost = SequentialPaired(max_pairs=10).look([1.0, None] * 5)
    assert (lost.decision, lost.final) == ("undecided", True)


def test_a_gate_takes_nothing_after_its_final_verdict_and_start_gives_a_fresh_one() -> None:
    gate = SequentialPaired(margin=0.2)
    gate.look([1.0] * 9)
    with pytest.raises(ValueError, match="final verdict"):
        gate.look([1.0])
    fresh = gate.start(alpha=0.01)
    assert (fresh.alpha, fresh.margin) == (0.01, 0.2)
    assert not fresh.look([1.0] * 6).final


def test_a_value_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Strict(pairs=2).look([float("nan")])


def test_strict_accepts_only_a_higher_mean() -> None:
    assert Strict(pairs=3).look([0.2, -0.1, -0.1]).decision == "reject"
    assert Strict(pairs=3).look([0.2, -0.1, 0.0]).decision == "accept"
    assert Strict(pairs=2).look([0.5, -0.5]).decision == "reject"
    assert Strict(pairs=3).look([1.0, 1.0]).decision == "undecided"
    assert Strict(pairs=4).look([1.0, 1.0, None, None]).decision == "undecided"


def test_a_verdict_survives_json() -> None:
    got = SequentialPaired().look([1.0] * 8)
    assert Verdict.model_validate_json(got.model_dump_json()) == got


def test_an_accepted_edit_gives_its_share_back() -> None:
    ledger = AlphaLedger(0.05, planned=2)
    for accepted in (True, False, True):
        assert ledger.next() == pytest.approx(0.025)
        ledger.settle(accepted)
    assert ledger.failures == 1
    assert ledger.next() == pytest.approx(0.025)


def test_planned_levels_are_equal_and_run_out() -> None:
    ledger = AlphaLedger(0.05, planned=2)
    for _ in range(2):
        assert ledger.next() == pytest.approx(0.025)
        ledger.settle(accepted=False)
    with pytest.raises(RuntimeError, match="planned"):
        ledger.next()


def test_next_and_settle_must_alternate() -> None:
    ledger = AlphaLedger(0.05, planned=2)
    with pytest.raises(RuntimeError, match="next"):
        ledger.settle(accepted=True)
    ledger.next()
    with pytest.raises(RuntimeError, match="settle"):
        ledger.next()


def test_a_whole_run_rarely_keeps_any_useless_edit_while_naive_looking_often_does() -> None:
    rng = random.Random(7)
    guarded = naive = useful = 0
    for _ in range(60):
        ledger, wrong_guarded, wrong_naive = AlphaLedger(0.05, planned=20), False, False
        for candidate in range(20):
            better = 0.35 if candidate % 5 == 0 else 0.1
            accepted = play(SequentialPaired(ledger.next()), rng, better, 0.1).decision == "accept"
            ledger.settle(accepted)
            useful += accepted and better > 0.1
            wrong_guarded |= accepted and better == 0.1
            wrong_naive |= better == 0.1 and play(Strict(30), rng, 0.1, 0.1).decision == "accept"
        guarded += wrong_guarded
        naive += wrong_naive
    assert guarded / 60 <= 0.05
    assert useful / 240 >= 0.8
    assert naive / 60 >= 0.9
