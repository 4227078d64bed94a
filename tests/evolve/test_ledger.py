"""What was tried, and what a proposer is told of it."""

from evolve.ledger import Ledger
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


def test_nothing_that_a_proposer_said_makes_a_later_prompt_long_or_breaks_its_lines() -> None:
    ledger = Ledger()
    long = Patch(
        edits=(AddFile(path="p/" + "x" * 5000 + ".md", new="x"),), hypothesis="a\x1b[31m\u202eb\n\n" + "y" * 5000
    )
    assert long.hypothesis.startswith("a [31m b yyy")
    assert len(long.hypothesis) == 300
    ledger.add(long, parent="v", step=0, decision="failed", reason="no\x00\nroom " + "z" * 5000)
    (row,) = ledger.summary_for_proposer().splitlines()
    assert row.isprintable()
    assert len(row) < 1000
    assert Patch.model_validate_json(long.model_dump_json()) == long
