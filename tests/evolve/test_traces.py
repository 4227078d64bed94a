"""A run goes out as JSONL and comes back the same; what is broken, newer or in the way brings nothing in."""

import gzip
import json
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import runs
from reading import terminal

from evolve import compare_runs
from evolve.export import export, import_run
from evolve.report import read_report
from evolve.traces.trace import Reader, Trace, TraceFault
from harness.journal import Journal
from harness.trajectory import Trajectory


def lines(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["played", "attacked", "remembering", "reflected"])
@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_a_run_that_went_out_and_came_back_has_the_same_digest_and_the_same_report(
    request: pytest.FixtureRequest, kind: str, name: str, tmp_path: Path
) -> None:
    run: Path = request.getfixturevalue(kind)
    found = export(run, "jsonl", tmp_path / name)
    back = import_run(tmp_path / name, tmp_path / "back")
    assert back.trajectories == found.trajectories == len(runs.told(run))
    assert runs.digest(tmp_path / "back") == runs.digest(run)
    assert runs.told(tmp_path / "back") == runs.told(run)  # the digest leaves times out, and they came back as well
    ours, theirs = read_report(run), read_report(tmp_path / "back")
    assert (ours.outcome, ours.evaluation, ours.exam, ours.rounds) == (
        theirs.outcome, theirs.evaluation, theirs.exam, theirs.rounds
    )  # fmt: skip
    assert ours.spending.total == theirs.spending.total
    assert "run:" in terminal(tmp_path / "back")


def test_an_imported_run_compares_and_is_exported_again(tmp_path: Path) -> None:
    run = runs.written(tmp_path / "run", [runs.trajectory(f"t{i}", score=float(i % 2)) for i in range(6)])
    export(run, "jsonl", tmp_path / "run.jsonl")
    import_run(tmp_path / "run.jsonl", tmp_path / "back")
    compared = compare_runs(str(run), str(tmp_path / "back"))
    assert (compared.pairs, compared.ties) == (6, 6)
    export(tmp_path / "back", "jsonl", tmp_path / "again.jsonl")
    first, again = lines(tmp_path / "run.jsonl"), lines(tmp_path / "again.jsonl")
    assert [line.get("trajectory") for line in first] == [line.get("trajectory") for line in again]


def test_the_first_line_says_what_the_file_is_and_each_other_one_is_a_trajectory_in_full(tmp_path: Path) -> None:
    run = runs.written(tmp_path / "run", [runs.talk()])
    export(run, "jsonl", tmp_path / "run.jsonl")
    header, line = lines(tmp_path / "run.jsonl")
    assert (header["instar"], header["format"], header["plan"]) == ("trajectories", 1, runs.PLAN)
    assert Trajectory.model_validate(line["trajectory"]) == runs.talk()
    assert len(line["turned"]) == len(runs.talk().turns)


def test_an_export_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    run = runs.written(tmp_path / "run", [runs.talk()])
    before = (run / "journal.db").read_bytes()
    export(run, "jsonl", tmp_path / "run.jsonl")
    export(run, "rows", tmp_path / "rows.jsonl")
    assert (run / "journal.db").read_bytes() == before
    assert left(run) <= {"journal.db", "lock", "journal.db-wal", "journal.db-shm"}  # SQLite's own, for any reader


def test_of_a_gap_that_was_filled_and_of_tries_that_broke_only_what_stood_goes_out(tmp_path: Path) -> None:
    whole = runs.trajectory(turns=(runs.turn(runs.call(), action="second try"),))
    with Journal(tmp_path / "run") as journal:
        runs.put(journal, runs.gap(turns=(runs.turn(action="first try"),)))
        runs.put(journal, runs.trajectory("t1"))
        journal.append("start", {"attempt": 1}, whole.id)  # killed after one turn
        lost = runs.turn(action="killed").model_dump(mode="json", exclude_defaults=True)
        journal.append("step", {"attempt": 1, "turn": lost}, whole.id)
        runs.put(journal, whole, attempt=2)
    export(tmp_path / "run", "jsonl", tmp_path / "run.jsonl")
    out = [Trajectory.model_validate(line["trajectory"]) for line in lines(tmp_path / "run.jsonl")[1:]]
    assert out == [runs.trajectory("t1"), whole]


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text('{"instar": "trajectories", "format": 2, "plan": {}}\n')
    with pytest.raises(TraceFault, match=r"run\.jsonl: format 2 is newer .* Cure: update instar"):
        import_run(file, tmp_path / "back")
    assert left(tmp_path) == {"run.jsonl"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line[: len(line) // 2], "not JSON"),
        (lambda line: "[1]", "not a JSON object"),
        (lambda line: '{"something": 1}', "neither a trajectory nor an event"),
        (lambda line: '{"event": "episode", "key": "run/agent/t0/0", "body": {}}', "neither a trajectory nor an event"),
        (lambda line: line.replace('"status": "done"', '"status": "fine"'), r"no trajectory \(status: Input should be"),
        (lambda line: line.replace('"goal"', '"aim"'), r"no trajectory \(goal: Field required"),
    ],
)  # fmt: skip
def test_a_broken_line_is_named_and_nothing_comes_in(change: Any, said: str, tmp_path: Path) -> None:
    run = runs.written(tmp_path / "run", [runs.trajectory(f"t{i}") for i in range(3)])
    export(run, "jsonl", tmp_path / "run.jsonl")
    text = (tmp_path / "run.jsonl").read_text().splitlines()
    text[2] = change(text[2])
    (tmp_path / "run.jsonl").write_text("\n".join(text))
    with pytest.raises(TraceFault, match=rf"run\.jsonl, line 3: {said}.* Nothing was imported\. Cure: "):
        import_run(tmp_path / "run.jsonl", tmp_path / "back")
    assert left(tmp_path) == {"run", "run.jsonl"}


def test_a_compressed_file_that_was_cut_off_is_named_and_nothing_comes_in(tmp_path: Path) -> None:
    run = runs.written(tmp_path / "run", [runs.trajectory(f"t{i}") for i in range(200)])
    export(run, "jsonl", tmp_path / "run.jsonl.gz")
    data = (tmp_path / "run.jsonl.gz").read_bytes()
    (tmp_path / "run.jsonl.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(TraceFault, match=r"run\.jsonl\.gz, line \d+: "):
        import_run(tmp_path / "run.jsonl.gz", tmp_path / "back")
    assert left(tmp_path) == {"run", "run.jsonl.gz"}


def test_what_is_neither_ours_nor_spans_is_refused(tmp_path: Path) -> None:
    for text in ("", "{}\n", '{"instar": "something"}\n', "hello\n", '{"resourceSpans": []}\n'):
        (tmp_path / "file").write_text(text)
        with pytest.raises(TraceFault, match="Cure: "):
            import_run(tmp_path / "file", tmp_path / "back")
        assert left(tmp_path) == {"file"}


def test_an_import_never_touches_a_folder_that_is_there(tmp_path: Path) -> None:
    run = runs.written(tmp_path / "run", [runs.trajectory()])
    export(run, "jsonl", tmp_path / "run.jsonl")
    before = runs.digest(run)
    with pytest.raises(TraceFault, match="is there already"):
        import_run(tmp_path / "run.jsonl", run)
    assert runs.digest(run) == before


def test_an_export_that_breaks_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, file = runs.written(tmp_path / "run", [runs.trajectory(), runs.trajectory("t1")]), tmp_path / "run.jsonl"
    file.write_text("an earlier export")
    real = Reader.news

    def breaking(self: Reader) -> Any:
        yield from real(self)
        raise OSError("the disk broke")

    monkeypatch.setattr(Reader, "news", breaking)
    with pytest.raises(OSError, match="the disk broke"):
        export(run, "jsonl", file)
    assert file.read_text() == "an earlier export"
    assert left(tmp_path) == {"run", "run.jsonl"}


def test_following_gives_each_episode_as_it_ends_until_the_run_ends(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal, Journal(tmp_path / "run", readonly=True) as reading:
        journal.append("plan", runs.PLAN)
        runs.put(journal, runs.trajectory("t0"))
        journal.append("start", {"attempt": 0}, runs.trajectory("t1").id)
        seen: list[str] = []
        looks: list[list[str]] = []

        class Waiting(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                looks.append(list(seen))
                if len(looks) == 1:  # the episode that was being played ends; its start came before this look
                    runs.put(journal, runs.trajectory("t1"))
                elif len(looks) == 2:
                    runs.put(journal, runs.trajectory("t2"))
                    journal.append("evaluation", {"over": True})
                else:
                    raise AssertionError("the run is over, and is still followed")
                return False

        for one in Reader(reading).following(Waiting()):
            seen.append(one.trajectory.task if isinstance(one, Trace) else one.kind)
    assert looks == [["plan", "t0"], ["plan", "t0", "t1"]]
    assert seen == ["plan", "t0", "t1", "t2", "evaluation"]


def test_an_episode_whose_steps_and_end_come_in_different_looks_is_whole(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal, Journal(tmp_path / "run", readonly=True) as reading:
        whole = runs.talk()
        journal.append("start", {"attempt": 0}, whole.id)
        for step in whole.turns[:2]:
            journal.append("step", {"attempt": 0, "turn": step.model_dump(mode="json")}, whole.id)
        reader = Reader(reading)
        assert list(reader.news()) == []
        journal.append("step", {"attempt": 0, "turn": whole.turns[2].model_dump(mode="json")}, whole.id)
        journal.finish(whole, 0)
        assert [one.trajectory for one in reader.news() if isinstance(one, Trace)] == [whole]


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    peaks = []
    for count in (40, 400):
        run = runs.written(
            tmp_path / f"run{count}", (runs.talk().model_copy(update={"id": f"run/agent/t{i}/0"}) for i in range(count))
        )
        export(run, "jsonl", tmp_path / "warm.jsonl")
        tracemalloc.start()
        export(run, "jsonl", tmp_path / f"{count}.jsonl")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (tmp_path / "400.jsonl").stat().st_size > 9 * (tmp_path / "40.jsonl").stat().st_size
    assert peaks[1] < 2 * peaks[0]


def test_what_makes_no_sense_together_is_one_clear_error(tmp_path: Path) -> None:
    run = runs.written(tmp_path / "run", [runs.trajectory()])
    for to, options in [
        ("csv", {}), ("rows", {"endpoint": "http://127.0.0.1:1"}), ("mlflow", {"out": tmp_path / "f"}),
        ("otlp", {"out": tmp_path / "f", "endpoint": "http://127.0.0.1:1"}), ("jsonl", {"content": True}),
        ("jsonl", {"split": "train"}), ("jsonl", {"follow": True, "out": tmp_path / "f.gz"}), ("otlp", {}),
    ]:  # fmt: skip
        with pytest.raises(TraceFault, match="Cure: "):
            export(run, to, **options)
    assert left(tmp_path) == {"run"}
