"""What was tried, and how many edits the next patch may make."""

import pytest

from evolve.ledger import Ledger, Volatility, cosine, fixed
from evolve.patch import AddFile, Patch


def patch(text: str, why: str = "because") -> Patch:
    return Patch(edits=(AddFile(path="a.md", new=text),), hypothesis=why)


def test_the_same_edits_on_the_same_parent_are_recognised_whatever_the_reason() -> None:
    ledger = Ledger()
    ledger.add(patch("x"), parent="v0", step=1, decision="reject", reason="no gain", gain=-0.02)
    again = ledger.seen(patch("x", why="another idea"), "v0")
    assert again is not None
    assert (again.decision, again.step) == ("reject", 1)
    assert ledger.seen(patch("y"), "v0") is None
    assert ledger.seen(patch("x"), "v1") is None


def test_the_last_outcome_of_a_repeated_try_counts() -> None:
    ledger = Ledger()
    ledger.add(patch("x"), parent="v0", step=1, decision="undecided", reason="gaps")
    ledger.add(patch("x"), parent="v0", step=2, decision="accept", reason="better")
    seen = ledger.seen(patch("x"), "v0")
    assert seen is not None
    assert seen.decision == "accept"
    assert len(ledger.entries) == 2


def test_the_summary_is_newest_first_and_no_longer_than_asked() -> None:
    ledger = Ledger()
    for i in range(5):
        ledger.add(patch(str(i), why=f"idea\n{i}"), parent="v", step=i, decision="reject", reason="no", gain=0.01 * i)
    rows = ledger.summary_for_proposer(2).splitlines()
    assert rows == [
        "- reject (+0.040), a.md: idea 4. Outcome: no",
        "- reject (+0.030), a.md: idea 3. Outcome: no",
    ]
    assert ledger.summary_for_proposer(0) == ""
    assert len(ledger.summary_for_proposer(99).splitlines()) == 5


def test_the_ledger_survives_json_and_a_newer_version_is_refused() -> None:
    ledger = Ledger()
    ledger.add(patch("x"), parent="v0", step=1, decision="failed", reason="does not import")
    back = Ledger.from_json(ledger.to_json())
    assert back.entries == ledger.entries
    assert back.seen(patch("x"), "v0") == ledger.entries[0]
    with pytest.raises(ValueError, match="upgrade"):
        Ledger.from_json(ledger.to_json().replace('"version": 1', '"version": 9'))


def test_cosine_falls_from_four_to_two_and_fixed_stays() -> None:
    schedule = [cosine(step, 9) for step in range(9)]
    assert schedule[0] == 4
    assert schedule[-1] == 2
    assert schedule == sorted(schedule, reverse=True)
    assert cosine(0, 1) == 4
    assert cosine(20, 9) == 2
    assert {fixed(step, 9) for step in range(9)} == {4}


def test_scattered_gains_shrink_the_edit_budget_and_calm_restores_it() -> None:
    budget = Volatility()
    assert budget.edits() == 4
    for _ in range(30):
        budget.observe([1.0, -1.0, 0.0, 1.0, -1.0])
    assert budget.edits() == 1
    for _ in range(60):
        budget.observe([0.1, 0.1, 0.1])
    assert budget.edits() == 4
