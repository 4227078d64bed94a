"""A file of an enemy is refused with its line, and what an import does take, every reader can read."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
from reading import terminal

from evolve import compare_runs
from evolve.export import export, import_run
from evolve.page import write
from evolve.replay import replay
from evolve.report import read_report
from evolve.traces.trace import TraceFault
from harness.journal import Journal
from harness.settings import HarnessError

Lines = list[Any]


def plan(**more: Any) -> Callable[[Lines], int]:
    """Lines whose plan says this, and the line that is wrong."""

    def change(lines: Lines) -> int:
        lines[0]["plan"] |= more
        return 1

    return change


def head(**more: Any) -> Callable[[Lines], int]:
    def change(lines: Lines) -> int:
        lines[0] |= more
        return 1

    return change


def first(**more: Any) -> Callable[[Lines], int]:
    """Lines whose first trajectory says this."""

    def change(lines: Lines) -> int:
        lines[1]["trajectory"] |= more
        return 2

    return change


def usage(**more: Any) -> Callable[[Lines], int]:
    def change(lines: Lines) -> int:
        lines[1]["trajectory"]["turns"][0]["calls"][0]["usage"] |= more
        return 2

    return change


def event(kind: Any, body: Any, **more: Any) -> Callable[[Lines], int]:
    """Lines that end in this event."""

    def change(lines: Lines) -> int:
        lines.append({"event": kind, "body": body, **more})
        return len(lines)

    return change


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


HOSTILE = [
    (head(plan=[1]), "the plan is not an object"),
    (head(plan="x"), "the plan is not an object"),
    (head(plan={}), "no plan"),
    (head(plan=None), "no plan"),
    (head(plan={"command": "run"}), "harness: Field required"),
    (head(format=True), "neither a header"),
    (head(format=-1), "neither a header"),
    (head(at="now"), "at: not a number"),
    (plan(files=None), "files: "),
    (plan(tasks=[1]), "tasks: "),
    (plan(benchmark=1), "benchmark: "),
    (plan(benchmark={"name": "x", "reward_range": [0, 1, 2]}), "reward_range: "),
    (plan(benchmark={"name": "x", "reward_range": [1, 0]}), "no range of rewards"),
    (plan(benchmark={"name": "x", "reward_range": [0, 1], "evaluator": "GOD"}), "no evaluator"),
    (plan(address="http://127.0.0.1:99999999"), "address: "),
    (plan(address="http://[::1"), "address: "),
    (plan(seed=10**400), "more than 64 bits"),
    (plan(budget=float("nan")), "not finite"),
    (plan(env="\ud800"), "lone surrogate"),
    (plan(note=nested(900)), "nested deeper"),
    (first(id="run/agent/\ud800/0"), "lone surrogate"),
    (first(episode=-5), "episode: not within 0"),
    (first(started=float("inf")), "started: not within"),
    (first(started=1e300), "started: not within"),
    (first(started=-1), "started: not within"),
    (first(seconds=-1e300), "seconds: not within"),
    (first(seconds=float("nan")), "seconds: not within"),
    (first(score=float("nan")), "score: not within 0 and 1"),
    (first(score=1e308), "score: not within 0 and 1"),
    (first(score=1.5), "score: not within 0 and 1"),
    (first(score=1.0, status="gap"), "score: a gap has none"),
    (first(seed=10**400), "seed: not within"),
    (first(lost={"calls": -1}), "lost.calls: not within"),
    (usage(prompt_tokens=10**400), "prompt_tokens: "),
    (usage(output_tokens=-1), "output_tokens: "),
    (usage(dollars=-1.0), "dollars: "),
    (usage(dollars=float("inf")), "dollars: "),
    (usage(seconds=-1.0), "usage.*seconds: "),
    (event("plan", runs.PLAN | {"model": "another"}), "neither a trajectory nor an event"),
    (event("outcome", {}), r"no outcome \(recipe: Field required"),
    (event("evaluation", {"mean": 1}), "no evaluation"),
    (event("round", {"round": "x"}), "no round"),
    (event("round", {"round": -1, "evolved": {}, "control": {}}), "no round"),
    (event("verdict", {"decision": "accept"}, key="memory"), "no verdict"),
    (event("proposal", {"step": 0}, key="0"), "no proposal"),
    (event("ask", {"usage": {}}), "no ask"),
    (event("ask", {"prompt": "", "output": "", "usage": {"prompt_tokens": -1}}), "prompt_tokens: "),
    (event("remembered", {"added": [1]}), "no remembered"),
    (event("credited", {"rewards": [["i1"]]}), "no credited"),
    (event("forgotten", {}), "no forgotten"),
    (event("anything", {"deep": nested(900)}), "nested deeper"),
    (event("anything", {"number": float("inf")}), "not finite"),
    (event("anything", {}, key="\ud800"), "lone surrogate"),
    (event("anything", {}, at=1e400), "at: not within"),
    (event("anything", {}, at=True), "at: not a number"),
]  # fmt: skip


def written(folder: Path) -> Lines:
    """The lines of a run that is well."""
    run = runs.written(folder / "run", [runs.trajectory(f"t{i}", score=float(i % 2)) for i in range(3)])
    export(run, "jsonl", folder / "run.jsonl")
    return [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("change", "said"), HOSTILE)
def test_what_no_reader_could_read_is_refused_with_its_line(
    change: Callable[[Lines], int], said: str, tmp_path: Path
) -> None:
    lines = written(tmp_path)
    number = change(lines)
    (tmp_path / "bad.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(TraceFault, match=rf"bad\.jsonl, line {number}: .*{said}.* Cure: "):
        import_run(tmp_path / "bad.jsonl", tmp_path / "back")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run.jsonl", "bad.jsonl"}


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a":' * 1_000_000, '{"instar": 1}\n' + "[" * 1_000_000])
def test_a_line_nested_without_end_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    lines = written(tmp_path)
    file = tmp_path / "deep.jsonl"
    for whole in (text, f"{json.dumps(lines[0])}\n{text}", f'{{"resourceSpans": []}}\n{text}'):
        file.write_text(whole)
        with pytest.raises(TraceFault, match=r"deep\.jsonl, line \d: .* Cure: "):
            import_run(file, tmp_path / "back")


def test_a_number_too_long_to_read_is_refused_with_its_line(tmp_path: Path) -> None:
    lines = written(tmp_path)
    text = json.dumps(lines[1]).replace('"episode": 0', f'"episode": {"9" * 5000}')
    (tmp_path / "bad.jsonl").write_text(f"{json.dumps(lines[0])}\n{text}\n")
    with pytest.raises(TraceFault, match=r"bad\.jsonl, line 2: not JSON that can be read"):
        import_run(tmp_path / "bad.jsonl", tmp_path / "back")


def test_what_only_a_report_stumbles_over_is_refused_as_well(tmp_path: Path) -> None:
    lines = written(tmp_path)
    lines[1]["trajectory"]["id"] = f"round-{'9' * 5000}/evolved/t0/0"
    (tmp_path / "bad.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(TraceFault, match="the file makes a run that cannot be read"):
        import_run(tmp_path / "bad.jsonl", tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("name", ["bom.jsonl", "bom.jsonl.gz"])
def test_a_file_that_windows_marked_comes_in(name: str, tmp_path: Path) -> None:
    written(tmp_path)
    data = b"\xef\xbb\xbf" + (tmp_path / "run.jsonl").read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert import_run(tmp_path / name, tmp_path / "back").trajectories == 3


def test_what_came_in_has_the_times_at_which_it_happened(tmp_path: Path) -> None:
    lines = written(tmp_path)
    begun = 1_700_000_000.0
    lines[0]["at"] = begun
    for number, line in enumerate(lines[1:], 1):
        line |= {"at": begun + 10 * number, "turned": [begun + 10 * number - 1]}
    (tmp_path / "then.jsonl").write_text("\n".join(map(json.dumps, lines)))
    import_run(tmp_path / "then.jsonl", tmp_path / "back")
    data = read_report(tmp_path / "back")
    assert (data.started, data.ended) == (begun, begun + 30)
    with Journal(tmp_path / "back", readonly=True) as journal:
        assert [event.at for event in journal.events("step")] == [begun + 9, begun + 19, begun + 29]
    export(tmp_path / "back", "jsonl", tmp_path / "again.jsonl")
    assert [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()] == lines


def test_an_older_file_whose_first_line_tells_no_time_comes_in_with_the_times_that_it_tells(tmp_path: Path) -> None:
    lines = written(tmp_path)
    del lines[0]["at"]
    (tmp_path / "old.jsonl").write_text("\n".join(map(json.dumps, lines)))
    import_run(tmp_path / "old.jsonl", tmp_path / "back")
    data = read_report(tmp_path / "back")
    assert (data.started, data.ended) == (lines[1]["trajectory"]["started"], lines[-1]["at"])


def test_odd_texts_come_in_and_every_reader_reads_them(tmp_path: Path) -> None:
    odd = "\ud800 \x00 <script> \u202e {{ x }}"
    turn = runs.turn(runs.call(output=odd), observation=odd, action=odd)
    one = runs.trajectory(goal=odd, final=odd, turns=(turn,), seed=-(2**63), reason=odd)
    other = runs.trajectory("t1", started=0.0, seconds=0.0, score=None, turns=())
    run = runs.written(tmp_path / "run", [one, other])
    export(run, "jsonl", tmp_path / "run.jsonl")
    import_run(tmp_path / "run.jsonl", tmp_path / "back")
    assert runs.told(tmp_path / "back") == runs.told(run)
    write(read_report(tmp_path / "back"), tmp_path / "report.html")
    assert "run:" in terminal(tmp_path / "back")
    for to in ("jsonl", "rows", "otlp"):
        export(tmp_path / "back", to, tmp_path / f"again.{to}")
    assert compare_runs(str(tmp_path / "back"), str(run)).pairs == 1


def span(operation: str = "chat", **told: Any) -> dict[str, Any]:
    attributes = [{"key": "gen_ai.operation.name", "value": {"stringValue": operation}}]
    for name, value in ({"gen_ai.input.messages": "[]", "gen_ai.output.messages": "[]"} | told).items():
        kind = "stringValue" if isinstance(value, str) else "intValue" if isinstance(value, int) else "doubleValue"
        attributes.append({"key": name, "value": {kind: value}})
    return {
        "traceId": "ab" * 16, "spanId": "cd" * 8, "name": operation, "startTimeUnixNano": "1", "endTimeUnixNano": "2",
        "attributes": attributes,
    }  # fmt: skip


def spans(path: Path, *told: dict[str, Any], **resource: str) -> Path:
    attributes = [{"key": f"instar.{name}", "value": {"stringValue": value}} for name, value in resource.items()]
    batch = {"resource": {"attributes": attributes}, "scopeSpans": [{"spans": list(told)}]}
    path.write_text(json.dumps({"resourceSpans": [batch]}))
    return path


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (span(**{"gen_ai.usage.input_tokens": 10**400}), "prompt_tokens"),
        (span(**{"gen_ai.usage.output_tokens": -1}), "output_tokens"),
        (span(**{"gen_ai.usage.output_tokens": float("inf")}), "makes no trajectory"),
        (span(**{"gen_ai.input.messages": "[" * 1_000_000}), "none with its messages"),
        (span("invoke_agent", **{"gen_ai.evaluation.score.value": 7.5}), "score: not within 0 and 1"),
        (span() | {"endTimeUnixNano": str(10**40)}, "seconds: not within"),
        (span() | {"startTimeUnixNano": "-5"}, "started: not within"),
        (span() | {"traceId": "\ud800"}, "lone surrogate"),
    ],
)  # fmt: skip
def test_spans_that_no_reader_could_read_are_refused(told: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(TraceFault, match=rf"spans\.json.*{said}.*Cure: "):
        import_run(spans(tmp_path / "spans.json", told), tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("benchmark", ["[1]", '{"name": "x"}', '{"name": "x", "reward_range": [NaN, 1]}'])
def test_spans_of_a_benchmark_that_cannot_be_are_refused(benchmark: str, tmp_path: Path) -> None:
    with pytest.raises(TraceFault, match=r"tells no run \(.*benchmark|tells no run \(.*finite"):
        import_run(spans(tmp_path / "spans.json", span(), benchmark=benchmark), tmp_path / "back")


def test_spans_come_in_with_the_times_at_which_they_happened(tmp_path: Path) -> None:
    told = span() | {"startTimeUnixNano": str(1_700_000_000 * 10**9), "endTimeUnixNano": str(1_700_000_009 * 10**9)}
    import_run(spans(tmp_path / "spans.json", told), tmp_path / "back")
    data = read_report(tmp_path / "back")
    assert (data.started, data.ended) == (1_700_000_000.0, 1_700_000_009.0)


def test_a_replay_of_spans_is_one_clear_error(tmp_path: Path) -> None:
    import_run(spans(tmp_path / "spans.json", span()), tmp_path / "back")
    with pytest.raises(HarnessError, match=r"harness\.toml: missing"):
        replay(str(tmp_path / "back"), out=str(tmp_path / "again"))
