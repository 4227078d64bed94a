"""What a report says of a run: the verdict, its limits, the evidence, the cost, and what is missing."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from reading import Reader, older, outcome_of, read, replayed, terminal, trajectory

from evolve import evolve, run, transcripts, wording
from evolve.page import page
from evolve.report import Ending, ReportData, endings, read_report
from evolve.stats import Mean, compare, mean_interval
from harness.finished import Finished
from harness.journal import Journal, JournalError
from harness.model import Usage
from harness.starter import starter
from harness.trajectory import Call, Trajectory, Turn


def test_the_verdict_is_one_sentence_with_the_numbers_that_the_run_wrote_down(reflected: Path) -> None:
    found, text = outcome_of(reflected), wording.sentence(read_report(reflected))
    assert text.startswith("Better: ")
    for mean in (found.evolved, found.control):
        assert f"{mean.mean:.3f} [{mean.low:.3f}, {mean.high:.3f}]" in text
    pairs = found.comparison
    assert f"{pairs.difference:+.3f} [{pairs.low:+.3f}, {pairs.high:+.3f}], p = {pairs.p_value:.2g}" in text
    assert f"{pairs.wins} won, {pairs.losses} lost, {pairs.ties} tied of {pairs.pairs} pairs" in text
    assert text in read(reflected).text


def judged(data: ReportData, control: list[float | None], evolved: list[float | None]) -> ReportData:
    """`data` with another exam."""
    assert data.outcome is not None
    a, b = ({(str(i), 0): score for i, score in enumerate(side)} for side in (control, evolved))
    new = {"comparison": compare(a, b), "evolved": mean_interval(b), "control": mean_interval(a)}
    return dataclasses.replace(data, outcome=data.outcome.model_copy(update=new))


def test_without_a_significant_difference_none_is_claimed_and_the_power_is_told(reflected: Path) -> None:
    data = judged(read_report(reflected), [0.0] * 8, [1.0] + [0.0] * 7)
    assert wording.headline(data) == "No difference shown"
    assert re.search(r"a true difference of 0\.\d+ would have been shown with 80 % power", wording.sentence(data))


def test_too_many_gaps_are_undecided_and_each_arm_is_bounded(reflected: Path) -> None:
    data = judged(read_report(reflected), [0.0] * 8, [1.0] * 5 + [None] * 3)
    assert wording.headline(data) == "Undecided"
    assert "3 evolved episodes are missing, with which its mean could be from 0.625 (all lost) to 1.000 (all won)" in (
        wording.sentence(data)
    )


def test_a_worse_evolution_is_called_worse(reflected: Path) -> None:
    data = judged(read_report(reflected), [1.0] * 8, [0.0] * 8)
    assert wording.headline(data) == "Evolved is worse"
    assert wording.sentence(data).startswith("Worse: ")


def test_a_dirty_exam_and_an_unchanged_harness_are_said_next_to_the_verdict(reflected: Path) -> None:
    data = read_report(reflected)
    assert data.outcome is not None
    dirty = {"overlap": {"taught": 9, "examined": 12, "shared": 4}, "chosen": data.plan["harness"]}
    limits = " ".join(wording.caveats(dataclasses.replace(data, outcome=data.outcome.model_copy(update=dirty))))
    assert "4 exam tasks are the same as tasks that taught" in limits
    assert "Nothing was kept" in limits
    assert "Nothing was kept" not in " ".join(wording.caveats(data))


def test_a_control_below_random_moves_is_pointed_out(reflected: Path) -> None:
    data = read_report(reflected)
    assert data.explored is not None
    assert data.outcome is not None
    assert data.outcome.wander is not None
    high = data.explored.model_copy(update={"mean": 0.9})

    def said(explored: Mean | None, wander: Mean | None) -> str:
        assert data.outcome is not None
        outcome = data.outcome.model_copy(update={"wander": wander})
        return " ".join(wording.caveats(dataclasses.replace(data, explored=explored, outcome=outcome)))

    assert "andom moves" not in said(None, None)
    assert "andom moves" not in said(high, data.outcome.wander)  # the exam's own tasks tell, where they were wandered
    assert "than random moves did on training tasks (0.900)" in said(high, None)
    assert "than random moves did on the same tasks (0.900)" in said(None, high)
    assert "Random moves scored no less (0.900) than the evolved agent" in said(None, high)


def test_random_moves_sit_the_exam_and_are_shown_beside_both_arms(reflected: Path) -> None:
    data = read_report(reflected)
    wander = outcome_of(reflected).wander
    assert wander is not None
    assert data.exam["wander"] == wander
    found = read(reflected)
    cells = wording.number(wander.mean)
    assert f"random moves{cells}" in found.text
    assert [attrs["class"] for tag, attrs in found.tags if tag == "polygon"] == ["mark wander"] * 2  # exam and legend
    assert not [attrs for tag, attrs in found.tags if attrs.get("class") == "reference"]
    assert re.search(rf"exam, random moves +{cells}", terminal(reflected))
    assert [part.calls for part in data.spending.parts if part.purpose == "exam, wander"] == [0]


def test_a_memory_that_does_as_well_without_the_model_is_said_to(remembering: Path) -> None:
    data = read_report(remembering)
    assert data.outcome is not None
    evolved = data.outcome.evolved

    def told(recalled: Mean | None, forgotten: int = 0) -> ReportData:
        assert data.outcome is not None
        outcome = data.outcome.model_copy(update={"recalled": recalled, "forgotten": forgotten})
        exam = {**data.exam, "recalled": recalled} if recalled else data.exam
        return dataclasses.replace(data, outcome=outcome, exam=exam)

    worse = evolved.model_copy(update={"mean": (evolved.mean or 0.0) - 0.01})
    assert "memory alone" not in " ".join(wording.caveats(told(None)))
    assert "memory alone" not in " ".join(wording.caveats(told(worse)))
    assert "does not show that the model adds to it" in " ".join(wording.caveats(told(evolved)))
    assert "3 items were taken out of the memory by hand" in " ".join(wording.caveats(told(None, 3)))
    found = Reader(page(told(evolved)))
    assert f"memory alone{wording.number(evolved.mean)}" in found.text
    assert "mark recalled" in found.all("class")


def test_tasks_that_a_gate_decided_on_are_counted_beside_those_that_taught(reflected: Path) -> None:
    data = read_report(reflected)
    assert data.outcome is not None
    overlap = data.outcome.overlap | {"judged": 7}
    data = dataclasses.replace(data, outcome=data.outcome.model_copy(update={"overlap": overlap}))
    assert "or the 7 that were decided on" in Reader(page(data)).text
    assert f"taught or decided: 0 of {overlap['examined']}" in terminal(reflected)


def test_the_calls_of_both_sides_are_told_with_their_ratio(reflected: Path) -> None:
    data, cost = read_report(reflected), outcome_of(reflected).cost
    evolving, control = cost["evolving"]["calls"], cost["control"]["calls"]
    text = read(reflected).text
    assert evolving is not None
    assert control is not None
    assert data.spending.arms == (evolving, control)
    assert f"made {evolving:,.0f} calls, its control {control:,.0f}, {evolving / control:.1f} to 1" in text


def test_several_episodes_of_a_task_are_told_as_pass_rates(home: Path, tmp_path: Path) -> None:
    model, out = f"scripted:{home}/models.py:answer", str(tmp_path / "run")
    rates = run(starter("small"), "household", model=model, n=3, episodes=2, out=out).rates
    assert rates is not None
    some, every = (
        f"{rate:.3f} [{low:.3f}, {high:.3f}]"
        for rate, low, high in (
            (rates.any_of_k, rates.any_low, rates.any_high), (rates.all_of_k, rates.all_low, rates.all_high),
        )
    )  # fmt: skip
    expected = f"pass@2 {some} (some of 2 episodes solved), pass^2 {every} (all of them)"
    assert f"{expected}, over 3 tasks" in read(tmp_path / "run").text
    assert f"{expected}, over 3 tasks" in " ".join(terminal(tmp_path / "run", width=200).split())
    data = read_report(tmp_path / "run")
    assert "--episodes 2" in wording.command_line(data)
    assert "episodes=2," in wording.python_lines(data)


def test_a_run_that_recalled_shows_the_memory_it_was_given(remembering: Path, home: Path, tmp_path: Path) -> None:
    store = shutil.copytree(remembering, tmp_path / "store")
    model, out = f"scripted:{home}/models.py:answer", tmp_path / "run"
    run(starter("small"), "household", model=model, n=3, memory=str(store), out=str(out))
    data = read_report(out)
    assert data.memory is not None
    assert (data.memory.source, data.memory.note) == (str(store / "memory.db"), "")
    assert any(item.recalled and item.utility is not None for item in data.memory.items.values())
    used = sum(item.recalled > 0 for item in data.memory.items.values())
    assert wording.remembered(data.memory) == f"recalled {used} of {len(data.memory.items)} items of {store}"
    assert 0 < used < len(data.memory.items)
    assert f"--memory {store}" in wording.command_line(data)
    assert f"memory={str(store)!r}," in wording.python_lines(data)

    from memory import Store

    with Store.open(store / "memory.db") as opened:
        opened.forget(data.memory.best[0].id)
    changed = read_report(out).memory
    assert changed is not None
    assert "It has changed since" in changed.note
    shutil.rmtree(store)
    gone = read_report(out).memory
    assert gone is not None
    assert f"There is no {store}" in gone.note


def test_tasks_that_taught_the_recalled_memory_are_said_next_to_the_score(played: Path) -> None:
    data = read_report(played)
    told = dataclasses.replace(data, taught=2, plan=data.plan | {"memory": "runs/x"})
    assert "2 of these tasks taught the memory" in " ".join(wording.caveats(told))
    assert "is not known" in " ".join(wording.caveats(dataclasses.replace(told, taught=None)))
    assert "taught the memory" not in " ".join(wording.caveats(dataclasses.replace(told, taught=0)))


def test_a_report_runs_no_code_that_a_journal_names(attacked: Path, tmp_path: Path) -> None:
    marker, trap = tmp_path / "ran", tmp_path / "trap.py"
    trap.write_text(f"open({str(marker)!r}, 'w')\nbenchmark = None\n")
    with Journal(attacked, readonly=True) as old, Journal(tmp_path / "stranger") as new:
        for event in old.events():
            body = event.body | {"env": str(trap), "benchmark": None} if event.kind == "plan" else event.body
            new.append(event.kind, body, event.key)
    found = read(tmp_path / "stranger")
    assert not marker.exists()
    assert "What kind of evaluator gave the scores is not recorded." in found.text


def test_the_plan_may_tell_what_the_benchmark_is(attacked: Path, tmp_path: Path) -> None:
    told = {"name": "mine", "evaluator": "JUDGE", "licence": "MIT", "reward_range": [0, 2], "success_at": 1.0}
    with Journal(attacked, readonly=True) as old, Journal(tmp_path / "told") as new:
        for event in old.events():
            new.append(event.kind, event.body | ({"benchmark": told} if event.kind == "plan" else {}), event.key)
    data = read_report(tmp_path / "told")
    assert data.facts.reward_range == (0.0, 2.0)
    assert "judge (rank 2 of 5): weak evidence" in " ".join(wording.caveats(data))


def test_exam_tasks_are_paired_and_counted(reflected: Path) -> None:
    data, found = read_report(reflected), outcome_of(reflected)
    assert [data.count(word) for word in ("won", "lost", "tied")] == [  # type: ignore[arg-type]
        found.comparison.wins, found.comparison.losses, found.comparison.ties,
    ]  # fmt: skip
    for pair in data.pairs:
        assert pair.evolved is not None
        assert pair.control is not None
        assert (pair.evolved.task, pair.evolved.episode) == (pair.control.task, pair.control.episode)
    tasks = [int(pair.task.split("-")[3]) for pair in data.pairs]
    assert tasks == sorted(tasks)
    text = read(reflected).text
    assert f"None of the {found.overlap['examined']} exam tasks is among the {found.overlap['taught']} tasks" in text


def test_the_control_of_a_pair_that_evolved_won_is_not_titled_won(remembering: Path) -> None:
    data, found = read_report(remembering), read(remembering, everything=True)
    assert data.count("won") > 0
    assert found.text.count("(evolved won) exam, control") == data.count("won")
    assert "won (evolved won)" not in found.text


def test_each_change_shows_its_diff_its_verdict_and_its_evidence(reflected: Path) -> None:
    data = read_report(reflected)
    assert data.changes is not None
    kept = next(change for change in data.changes.changes if change.state == "kept")
    assert "+++ b/prompts/examples.md" in kept.diff
    assert kept.verdict is not None
    assert kept.patch is not None
    found = read(reflected)
    assert kept.verdict.reason in found.text
    assert kept.patch.hypothesis in found.text
    assert f"{kept.verdict.e_value:.3g}; {1 / (kept.verdict.alpha or 1):.3g} needed" in found.text
    assert set(kept.patch.evidence) <= {trajectory.id for trajectory in transcripts.choose(data).chosen}
    added = [attrs for tag, attrs in found.tags if tag == "span" and attrs.get("class") == "add"]
    assert len(added) >= kept.diff.count("\n+") - 1
    chosen = [node for node in data.changes.tree if node.chosen]
    assert [node.version for node in chosen] == [outcome_of(reflected).chosen]


def test_unusable_proposals_and_an_early_stop_are_shown(home: Path, tmp_path: Path) -> None:
    models = f"scripted:{home}/models.py"
    settings = {"rounds": 3, "batch": 4, "proposer": "rewrite", "patience": 2}
    evolve(
        starter("small"), "household", recipe="reflect", settings=settings, model=f"{models}:answer",
        proposer=f"{models}:nonsense", n=4, out=str(tmp_path / "run"),
    )  # fmt: skip
    data = read_report(tmp_path / "run")
    assert data.changes is not None
    assert data.changes.count("unusable") == 2
    assert any(caveat.startswith("The evolution stopped early") for caveat in wording.caveats(data))
    assert [part.calls for part in data.spending.parts if part.purpose == "proposer"] == [2]
    assert "unusable" in terminal(tmp_path / "run")


def test_memory_is_ranked_by_utility_and_says_how_often_each_item_was_recalled(remembering: Path) -> None:
    data = read_report(remembering)
    memory = data.memory
    assert memory is not None
    utilities = [item.utility for item in memory.best if item.utility is not None]
    assert len(utilities) == len(memory.best) > 0
    assert utilities == sorted(utilities, reverse=True)
    turns = [t for id in data.episodes.rows for t in trajectory(remembering, id).turns]
    assert memory.best[0].recalled == sum(memory.best[0].id in turn.retrieved for turn in turns) > 0
    assert sum(one.added for one in memory.taught) == len(memory.items)
    text = read(remembering).text
    assert all(" ".join(item.key.split()) in text for item in memory.best)


def test_without_a_memory_file_the_journal_tells_what_it_can(remembering: Path, tmp_path: Path) -> None:
    shutil.copytree(remembering, tmp_path / "copy", ignore=shutil.ignore_patterns("memory.db*"))
    memory = read_report(tmp_path / "copy").memory
    assert memory is not None
    assert memory.source == "the journal"
    assert all(item.utility is None and item.mean_reward is not None for item in memory.best)
    assert "There is no memory.db" in read(tmp_path / "copy").text


def test_what_was_forgotten_is_not_shown_again(remembering: Path, tmp_path: Path) -> None:
    from memory import Store

    shutil.copytree(remembering, tmp_path / "copy")
    before = read_report(tmp_path / "copy").memory
    assert before is not None
    with Store.open(tmp_path / "copy" / "memory.db") as store:
        store.forget(before.best[0].id)
    after = read_report(tmp_path / "copy").memory
    assert after is not None
    assert after.items[before.best[0].id].forgotten
    assert after.items[before.best[0].id].key == ""
    assert (after.held, after.forgotten) == (before.held - 1, 1)
    assert before.best[0].id not in {item.id for item in (*after.best, *after.worst)}
    assert wording.remembered(after).startswith(f"{after.held} items, 1 forgotten by hand, ")


def test_a_run_that_its_budget_ended_says_so(home: Path, tmp_path: Path) -> None:
    model, out = f"scripted:{home}/models.py:answer", tmp_path / "run"
    found = run(starter("small"), "household", model=model, n=10, budget="50calls", out=str(out))
    played = found.mean.episodes
    assert 0 < played < 10
    wanted = f"The budget (50calls) ended first: {played} of 10 episodes were played."
    assert wording.caveats(read_report(out))[0] == wanted
    whole = run(starter("small"), "household", model=model, n=2, budget="5000calls", out=str(tmp_path / "whole"))
    assert not any("budget" in note for note in wording.caveats(read_report(whole.folder)))


def test_an_evolution_that_its_budget_ended_says_so(home: Path, tmp_path: Path) -> None:
    settings = {"explore": 40, "rounds": 3, "batch": 2}
    model, out = f"scripted:{home}/models.py:answer", tmp_path / "run"
    evolve(starter("small"), "household", settings=settings, model=model, n=2, budget="30calls", out=str(out))
    data = read_report(out)
    assert 0 < len(data.rounds) < 3
    note = wording.caveats(data)[0]
    assert note.startswith(f"The budget (30calls) ended first: {len(data.rounds)} of 3 rounds were played")
    assert note.endswith("The control and the exam are outside of the budget.")


def test_gaps_are_counted_with_their_reasons_and_never_shown_as_a_score(attacked: Path) -> None:
    data = read_report(attacked)
    assert len(data.gaps) == 1
    assert data.evaluation is not None
    assert data.evaluation.missing == 1
    text = read(attacked).text
    assert "environment: the <b>container</b> died" in text
    assert "1 episode is missing, with which its mean could be from 0.833 (all lost) to 1.000 (all won)" in text
    assert "gaps: 1" in terminal(attacked)


def test_an_unknown_price_stays_unknown_and_a_known_one_is_shown(played: Path, reflected: Path) -> None:
    assert read_report(played).spending.total.dollars is None
    assert "money unknown" in terminal(played)
    assert read_report(reflected).spending.total.dollars == 0
    assert (wording.dollars(None), wording.dollars(0.0), wording.dollars(12.5)) == ("unknown", "$0", "$12.50")


def test_cost_is_told_by_purpose_and_agrees_with_what_the_run_counted(reflected: Path) -> None:
    data, found = read_report(reflected), outcome_of(reflected)
    calls = {part.purpose: part.calls for part in data.spending.parts}
    assert calls["exam, evolved"] + calls["exam, control"] == found.cost["exam"]["calls"]
    assert calls["control"] == found.cost["control"]["calls"]
    assert calls["evolving"] + calls["gate"] == found.cost["evolving"]["calls"]
    assert sum(calls.values()) == data.spending.total.calls


def test_calls_that_an_interrupted_try_paid_for_are_counted_apart(played: Path, tmp_path: Path) -> None:
    with Journal(played, readonly=True) as journal:
        plan = journal.last("plan")
    assert plan is not None

    def turn(*digests: str) -> dict[str, Any]:
        calls = tuple(Call(prompt="p", output="o", digest=digest, usage=Usage(dollars=0.0)) for digest in digests)
        return Turn(observation="o", action="a", calls=calls).model_dump(mode="json")

    with Journal(tmp_path / "run") as journal:
        journal.append("plan", plan.body)
        for attempt, digests in enumerate((("kept", "lost"), ("kept", "new"))):
            journal.append("start", {"attempt": attempt}, "run/agent/t/0")
            journal.append("step", {"attempt": attempt, "turn": turn(*digests)}, "run/agent/t/0")
        ended = Trajectory(
            id="run/agent/t/0", task="t", split="valid", goal="g", episode=0, seed=1, harness="h", model="m", score=1.0,
            status="done", arm="agent",
        )  # fmt: skip
        journal.finish(ended, 1)
        journal.append("start", {"attempt": 0}, "run/agent/u/0")
        journal.append("step", {"attempt": 0, "turn": turn("dead")}, "run/agent/u/0")
    data = read_report(tmp_path / "run")
    assert (data.spending.total.calls, data.spending.lost_calls, data.episodes.unfinished) == (2, 2, 1)
    assert "2 further calls were paid by tries that were interrupted" in read(tmp_path / "run").text


def test_a_report_says_the_same_whether_rows_were_kept_or_all_turns_must_be_read(
    reflected: Path, remembering: Path, played: Path, attacked: Path, tmp_path: Path
) -> None:
    for folder in (reflected, remembering, played, attacked):
        data, again = read_report(folder), read_report(older(folder, tmp_path / folder.name))
        assert data.episodes.rows
        assert dataclasses.replace(again, folder=data.folder) == data
        assert dataclasses.replace(again.spending) == data.spending


def test_rows_that_are_kept_agree_with_the_trajectories(remembering: Path) -> None:
    rows = read_report(remembering).episodes.rows
    with Journal(remembering, readonly=True) as journal:
        for t in journal.trajectories():
            row = rows[t.id]
            assert (row.score, row.status, row.turns, row.calls, row.cached) == (
                t.score, t.status, len(t.turns), t.calls, t.cached,
            )  # fmt: skip
            assert (row.tokens, row.dollars) == (t.tokens, t.dollars)


def test_reasons_are_counted_by_part_of_the_run_with_the_most_frequent_first() -> None:
    def row(n: int, phase: str, arm: str, reason: str) -> Finished:
        return Finished(f"{phase}/{arm}/t{n}/0", f"t{n}", "s", "g", 0, "h", "m", "gap", reason=reason, arm=arm)

    rows = [row(0, "round-10", "b", "x"), row(1, "round-9", "b", "x"), row(2, "run", "a", "y"), row(3, "run", "b", "y")]
    assert endings(rows) == [
        Ending(2, "run", ("a", "b"), "y"), Ending(1, "round-9", ("b",), "x"), Ending(1, "round-10", ("b",), "x"),
    ]  # fmt: skip


@pytest.mark.parametrize("until", ["plan", "explore/wander", "round-0/evolved", "round-1/control", "exam/evolved"])
def test_an_unfinished_run_says_so_and_shows_what_there_is(reflected: Path, tmp_path: Path, until: str) -> None:
    going = True

    def keep(kind: str, key: str) -> bool:
        nonlocal going
        going = going and not key.startswith("exam/control/")  # the exam is no batch: its gaps may be filled later
        kept = going
        going = going and not (kind == until or (kind == "batch" and key == until))
        return kept and kind != "outcome"

    folder = replayed(reflected, tmp_path / "run", keep)
    data = read_report(folder)
    assert not data.finished
    assert wording.headline(data) == "Unfinished: no verdict yet"
    assert "The run is unfinished" in wording.sentence(data)
    assert "unfinished" in read(folder).text.lower()
    assert "Unfinished" in terminal(folder)
    rounds = {"plan": 0, "explore/wander": 0, "round-0/evolved": 1, "round-1/control": 2, "exam/evolved": 2}
    assert len(data.rounds) == rounds[until]
    assert [pair.result for pair in data.pairs] == (["alone"] * 12 if until == "exam/evolved" else [])


def test_a_folder_without_a_run_is_refused_with_a_cure(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no run here"):
        read_report(tmp_path)
    Journal(tmp_path / "empty").close()
    with pytest.raises(JournalError, match=r"never began.*Cure"):
        read_report(tmp_path / "empty")
