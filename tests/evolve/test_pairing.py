"""Finished runs side by side: compared, corrected, planned from, and what they differ in, said by name."""

from pathlib import Path

import pytest
from doors import agent, doors, player

from evolve import compare_runs, run
from evolve.pairing import contest_runs, differences, plan_run
from harness.folder import Harness
from harness.journal import Journal, JournalError
from harness.starter import starter

MODEL = """
def first(request):
    return request.choices[0]
"""


def test_a_comparison_names_the_files_settings_and_seeds_that_differ(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODEL)
    files = dict(starter("small").files)
    other = files | {
        "harness.toml": files["harness.toml"].replace("k2 = 1", "k2 = 2").replace('name = "small"', 'name = "mine"'),
        "prompts/step.md": "Think.\n" + files["prompts/step.md"],
    }
    assert "k2 = 2" in other["harness.toml"]
    folders = []
    for number, some in enumerate((files, files, other)):
        found = run(
            Harness.from_files(some), "household", n=2, seed=number // 2, model=f"scripted:{tmp_path}/models.py:first",
            out=str(tmp_path / str(number)),
        )  # fmt: skip
        folders.append(found.folder)
    assert differences(folders[0], folders[1]) == []
    assert differences(folders[0], folders[2]) == ["harness prompts/step.md", "[memory] k2", "seed"]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Runs of three agents, of which the best is twice as good, over 24 tasks, two episodes each."""
    place = tmp_path_factory.mktemp("runs")
    how = {"n": 24, "episodes": 2}
    return {
        name: run(agent(), doors(), model=player(right), out=str(place / name), **how).folder  # type: ignore[arg-type]
        for name, right in (("plain", 0.0), ("some", 0.2), ("all", 1.0))
    }


def test_several_candidates_are_compared_with_one_baseline_by_their_folders(played: dict[str, str]) -> None:
    found = contest_runs(played["plain"], [played["some"], played["all"]])
    assert found.baseline == played["plain"]
    assert found.better == (played["all"],)
    some, every = found.candidates
    assert some.comparison.pairs == every.comparison.pairs == 48
    alone = compare_runs(played["plain"], played["all"]).p_value
    assert alone is not None
    assert every.p_adjusted == pytest.approx(2 * alone)
    assert every.comparison.candidate == 1.0


def test_each_candidate_has_its_own_notes_and_none_is_named_twice(played: dict[str, str], tmp_path: Path) -> None:
    other = run(agent(), doors(), n=24, episodes=2, seed=5, model=player(1.0), out=str(tmp_path / "b")).folder
    first, second = contest_runs(played["plain"], [played["all"], other]).candidates
    assert "seeds differ" not in first.comparison.reason
    assert "seeds differ" in second.comparison.reason
    with pytest.raises(ValueError, match="named twice"):
        contest_runs(played["plain"], [other, other])
    with pytest.raises(JournalError, match="no run here"):
        contest_runs(played["plain"], [str(tmp_path / "nowhere")])


def test_gaps_of_both_runs_are_bounded_in_their_comparison(played: dict[str, str], tmp_path: Path) -> None:
    world, model = doors(broken=(3, 5)), player(1.0)
    lossy = run(agent(), world, n=24, episodes=2, model=model, out=str(tmp_path / "lossy")).folder
    with pytest.raises(JournalError, match=r"is not the same in both \(2 differ\)"):
        compare_runs(played["plain"], lossy)
    again = run(agent(), world, n=24, episodes=2, model=player(0.0), out=str(tmp_path / "again")).folder
    found = compare_runs(again, lossy)
    assert found.missing == 4
    assert found.difference == pytest.approx(20 / 44)
    assert found.worst == pytest.approx((20 - 4) / 48)
    assert found.best == pytest.approx((20 + 4) / 48)


def test_a_size_is_planned_from_one_run_or_measured_from_two(played: dict[str, str]) -> None:
    one = plan_run(played["plain"], effects=(0.3,), episodes=(1, 2))
    two = plan_run(played["plain"], played["all"], effects=(0.3,), episodes=(1, 2))
    assert (one.tasks, one.episodes, one.paired, one.within) == (24, 2, False, 0.0)
    assert one.correlation == 0.5
    assert two.paired
    assert two.correlation is None
    assert two.between == pytest.approx(24 / 23 / 4)  # half of the tasks gain 1, the others nothing
    assert [size.episodes for size in two.sizes] == [1, 2]


def test_what_a_killed_run_had_begun_is_missing_and_not_absent(played: dict[str, str], tmp_path: Path) -> None:
    """Short episodes end first: to leave the others out would compare something else."""
    short = run(agent(), doors(), model=player(1.0), n=4, episodes=2, out=str(tmp_path / "short")).folder
    with Journal(played["plain"], readonly=True) as journal:
        ended = {row.id for row in journal.finished()}
    with Journal(short) as journal:
        known = {row.id for row in journal.finished()}
        for key in sorted(ended - known):
            journal.append("start", {"attempt": 0}, key)
    found = compare_runs(played["plain"], short)
    assert (found.pairs, found.missing, found.unpaired, found.decided) == (8, 40, 0, False)
