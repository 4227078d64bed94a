"""The page, the curve and the terminal summary: nothing in them can act, lie or be lost."""

import dataclasses
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from reading import Reader, read, terminal
from rich.console import Console

from evolve import chart, transcripts, wording
from evolve import page as page_module
from evolve.page import page, visible, write
from evolve.report import read_report
from evolve.stats import mean_interval
from evolve.terminal import show, spark
from harness.journal import JournalError


def test_the_page_stands_alone_and_all_its_links_arrive(reflected: Path, remembering: Path, played: Path) -> None:
    for folder in (reflected, remembering, played):
        found = read(folder)
        ids, links = found.all("id"), found.all("href")
        assert len(ids) == len(set(ids))
        assert links
        assert {link[1:] for link in links} <= set(ids)
        assert all(link.startswith("#") for link in links)
        assert not found.all("src")
        style = (Path(chart.__file__).parent / "templates" / "style.css").read_text()
        assert "url(" not in style
        assert "@import" not in style


def test_nothing_that_a_model_or_a_world_said_becomes_markup(attacked: Path) -> None:
    found = read(attacked)
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert not {"img", "i"} & {tag for tag, _ in found.tags}
    assert not [attrs for _, attrs in found.tags if any(name.startswith("on") for name in attrs)]
    assert "<img src=x onerror=alert(1)>" in found.text
    assert "<script>alert(2)</script>" in found.text


def test_characters_that_hide_or_reorder_text_are_shown_by_name(attacked: Path) -> None:
    text = page(read_report(attacked))
    assert "⟨U+202E⟩" in text
    assert "⟨U+0000⟩⟨U+D800⟩nothing" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", text)
    assert visible("a\ud800b\tc\n\u200b") == "a⟨U+D800⟩b\tc\n⟨U+200B⟩"


def test_a_lone_surrogate_does_not_stop_the_page(played: Path, tmp_path: Path) -> None:
    data = read_report(played)
    odd = dataclasses.replace(data, plan=data.plan | {"name": "odd \udcff name"})
    (tmp_path / "page.html").write_text(page(odd), encoding="utf-8")
    assert "odd ⟨U+DCFF⟩ name" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_long_run_is_cut_to_what_a_browser_opens_unless_all_is_asked_for(
    reflected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "MOST", 5)
    data = read_report(reflected)
    some, every = read(reflected), read(reflected, everything=True)
    assert [row.split("/")[0] for row in (t.id for t in transcripts.choose(data).chosen)] == ["exam"] * 5
    episodes = len(data.episodes.rows)
    assert f"5 of {episodes} episodes are here in full; {episodes - 5} were left out" in some.text
    assert "--all" in some.text
    assert sum(attrs.get("class") == "episode" for _, attrs in every.tags) == episodes


def test_a_long_table_is_cut_with_how_much_is_shown_and_where_the_rest_is(
    reflected: Path, played: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, what, all_of_them in ((played, "episodes", 6), (reflected, "pairs", 12)):
        whole = read(folder)
        monkeypatch.setattr(page_module, "LISTED", 4)
        cut, every = read(folder), read(folder, everything=True)
        monkeypatch.undo()
        said = f"The first 4 of {all_of_them} {what} are listed. See all with instar report {folder} --all"
        assert said in cut.text
        assert "are listed" not in whole.text + every.text
        assert [tag for tag, _ in whole.tags].count("tr") - [tag for tag, _ in cut.tags].count("tr") == all_of_them - 4
        assert {link[1:] for link in cut.all("href")} <= set(cut.all("id"))


def test_a_normal_page_is_small(reflected: Path, remembering: Path) -> None:
    for folder in (reflected, remembering):
        assert len(page(read_report(folder)).encode()) < 3_000_000


def test_the_page_is_written_whole_and_a_bad_place_is_named(played: Path, tmp_path: Path) -> None:
    path = write(played, tmp_path / "deep" / "page.html")
    assert path == tmp_path / "deep" / "page.html"
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"cannot be written.*Cure"):
        write(played, tmp_path / "file" / "page.html")


def test_the_python_shown_repeats_the_run(played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(wording.python_lines(read_report(played)), "page", "exec"), {})
    again, first = read_report(tmp_path / "again"), read_report(played)
    assert again.evaluation == first.evaluation
    assert {id: row.score for id, row in again.episodes.rows.items()} == {
        id: row.score for id, row in first.episodes.rows.items()
    }


def test_the_command_shown_is_one_that_the_command_line_takes(reflected: Path, played: Path) -> None:
    import typer

    from evolve.cli import app

    commands: Any = typer.main.get_command(app)
    for folder in (reflected, played):
        data = read_report(folder)
        name, *args = shlex.split(wording.command_line(data))[1:]
        params = commands.commands[name].make_context(name, args).params
        for key in ("env", "split", "n", "seed", "model"):
            assert params[key] == data.plan[key]


def test_the_curve_has_a_title_axes_a_legend_and_a_point_for_every_mean() -> None:
    mean = mean_interval({("a", 0): 1.0, ("b", 0): 0.0})
    lost = mean_interval({("a", 0): None})
    series = [
        chart.Series("evolved", "evolved", [(0, mean), (1, lost), (2, mean)], mean),
        chart.Series("con<trol", "control", [(0, mean)], None),
    ]
    found = Reader(chart.learning_curve(series, (0.0, 1.0)))
    tags = [tag for tag, _ in found.tags]
    assert "title" in tags
    assert [word for word in ("mean score", "round", "exam", "con<trol", "no score") if word not in found.text] == []
    marks = [str(attrs["class"]) for _, attrs in found.tags if str(attrs.get("class", "")).startswith("mark")]
    assert marks.count("mark evolved") == 2 + 1 + 1  # two rounds, the exam, the legend
    assert marks.count("mark control") == 1 + 1
    assert chart.learning_curve([], (0.0, 1.0)) == ""


def test_the_terminal_summary_fits_80_columns_and_a_pipe(
    reflected: Path, remembering: Path, played: Path, attacked: Path
) -> None:
    for folder in (reflected, remembering, played, attacked):
        text = terminal(folder)
        assert "\x1b" not in text
        long = [line for line in text.splitlines() if len(line) > 80]
        assert all(line.startswith(("run: ", "page: ", "cost: ", "memory: ")) for line in long), long
    assert "changes: 1 kept" in terminal(reflected)
    assert re.search(r"memory: (kept|not kept), \d+ items, \d+ credited", terminal(remembering))


def test_the_terminal_summary_can_be_written_in_ascii(remembering: Path) -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii", write_through=True) as stream:
        show(remembering, Console(file=stream, width=80, force_terminal=False))
        text = raw.getvalue().decode("ascii")
    assert "rounds, evolved: " in text


def test_a_sparkline_shows_gaps_as_gaps() -> None:
    assert spark([0.0, None, 1.0], 0.0, 1.0) == "▁?█"
