"""Credit is plain arithmetic."""

import pytest

from memory import QRule, Stats, credited, q_update


def test_the_q_update_is_the_published_one() -> None:
    assert q_update(0.0, 1.0) == pytest.approx(0.3)
    assert q_update(0.5, -1.0, alpha=0.5) == pytest.approx(0.25 - 0.5)


def test_repeated_success_leads_the_utility_to_the_reward() -> None:
    stats = Stats()
    for _ in range(40):
        stats = QRule()(stats, 1.0)
    assert stats.utility == pytest.approx(1.0, abs=1e-5)
    assert (stats.visits, stats.successes) == (40, 40)


def test_a_failure_is_no_success() -> None:
    got = QRule()(Stats(utility=0.1), -1.0)
    assert (pytest.approx(got.utility), got.visits, got.successes) == (0.7 * 0.1 - 0.3, 1, 0)
    with pytest.raises(ValueError, match="alpha"):
        QRule(alpha=0.0)


def test_credit_of_unknown_ids_is_left_out_and_of_known_ones_in_order() -> None:
    new = credited({"a": Stats()}, [("a", 1.0), ("gone", 1.0), ("a", -1.0)], QRule(alpha=0.5))
    assert new == {"a": Stats(utility=-0.25, visits=2, successes=1)}
