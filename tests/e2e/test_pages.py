"""README and docs are true: each Python block runs, each shell line is one that the programs take, tables are whole."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evolve.recipes.memrl import MemRL
from evolve.recipes.reflect import Reflect
from harness.model import Request
from harness.models.scripted import ScriptedModel
from harness.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = {"python", "sh", "toml", "text"}
#: Pages whose blocks need something beside them, and which a test of their own runs (test_docs_...).
ELSEWHERE = {"foreign.md", "environments.md", "journal.md", "scaling.md"}


def blocks(page: Path, language: str | None = None) -> list[tuple[str, str]]:
    """(language, text) of the fenced blocks of a page."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)
    return [(name, text) for name, text in found if language in (None, name)]


def commands(page: Path) -> list[list[str]]:
    """The words of each shell line."""
    lines = (line for _, text in blocks(page, "sh") for line in text.splitlines() if line.strip())
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def parse(words: list[str]) -> None:
    """Let the real command line read `words` without doing anything; raises what it raises."""
    from typer.main import get_command

    from evolve.cli import app

    def disarm(command: Any) -> Any:
        for name, sub in getattr(command, "commands", {}).items():
            command.commands[name] = disarm(sub)
        if not hasattr(command, "commands"):
            command.callback = lambda **_: None
        return command

    disarm(get_command(app)).main(words, prog_name="instar", standalone_mode=False)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function stands for the embedded model, whose many answers would take minutes."""
    import evolve.session
    import evolve.setup

    real = evolve.session.connect

    def connect(spec: str, options: Mapping[str, Any] | None = None) -> Any:
        return ScriptedModel(_imitate) if spec == "embedded" else real(spec, options)

    for module in (evolve.session, evolve.setup):
        monkeypatch.setattr(module, "connect", connect)


def _imitate(request: Request) -> str:
    choices = request.choices or ("Action: look",)
    moves = re.findall(r"^Action: (.+)$", request.prompt or "", re.M)
    return next((move for move in reversed(moves) if move in choices), choices[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {language for language, _ in blocks(page)} <= LANGUAGES


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page.name not in ELSEWHERE],
    ids=lambda page: page.name,
)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: None
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, (_, block) in enumerate(blocks(page, "python"), 1):
        exec(compile(block, f"{page.name}, Python block {number}", "exec"), {"__name__": "page"})


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "sh") and page.name not in ELSEWHERE], ids=lambda page: page.name
)
def test_each_shell_line_of_a_page_is_one_that_the_program_takes(page: Path) -> None:
    for words in commands(page):
        match words[0]:
            case "instar":
                parse(words[1:])
            case "make":
                subprocess.run([*words[:1], "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)
            case "pip":
                assert words[1] == "install"
            case "export":
                assert words[1].startswith("PATH=")
            case other:
                pytest.fail(f"{page.name}: {other} is not checked by this test")


def test_a_wrong_option_would_be_noticed() -> None:
    for wrong in (["run", "agent", "--tasks", "3"], ["evolve", "agent", "--n", "few"], ["memory", "dream"], ["run"]):
        with pytest.raises(Exception, match=r"(?i)no such|missing|valid"):
            parse(wrong)


def test_the_session_of_the_readme_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: None, capsys: pytest.CaptureFixture[str]
) -> None:
    from evolve.cli import app

    monkeypatch.chdir(tmp_path)
    lines = [words for words in commands(ROOT / "README.md") if words[0] == "instar"]
    assert len(lines) >= 6
    for words in lines:
        assert app(words[1:], standalone_mode=False) in (None, 0), capsys.readouterr().err
    assert (tmp_path / "runs/first/report.html").is_file()
    assert "runs/first" in capsys.readouterr().out


def test_the_first_shell_block_of_the_readme_is_the_two_commands() -> None:
    assert commands(ROOT / "README.md")[:2] == [["make", "evolve"], ["make", "test"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.split("#")[0]).exists(), target


def rows(page: str, after: str) -> dict[str, str]:
    """First and second cell of the first table behind the text `after`."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(after, 1)[1]
    table = re.search(r"^\|.*?(?=^[^|]|\Z)", text, re.S | re.M)
    assert table is not None
    return dict(re.findall(r"^\| `([^`]+)` \| `([^`]*)` \|", table[0], re.M))


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value:.0e}".replace("+0", "") if value == -1e9 else str(value)


def test_the_table_of_settings_names_each_one_with_its_default() -> None:
    expected = {}
    for name, field in Settings.model_fields.items():
        default = field.default
        if hasattr(default, "model_dump"):
            expected |= {f"[{name}] {key}": _toml(value) for key, value in default.model_dump().items()}
        else:
            expected[name] = _toml(default)
    assert rows("harness.md", "## Settings") == expected


@pytest.mark.parametrize(("recipe", "heading"), [(MemRL(), "## `memrl`"), (Reflect(), "## `reflect`")])
def test_the_table_of_a_recipe_names_each_setting_with_its_default(recipe: Any, heading: str) -> None:
    fields = type(recipe).__dataclass_fields__
    expected = {name: _toml(getattr(recipe, name)) for name, field in fields.items() if field.init}
    assert rows("evolving.md", heading) == expected


def test_the_readme_names_every_command() -> None:
    from typer.main import get_command

    from evolve.cli import app

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands: Any = get_command(app)
    for name in commands.commands:
        assert f"`instar {name}" in text


def test_make_clean_setup_test_lint_and_bench_are_there() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for target in ("evolve", "test", "lint", "bench", "setup", "clean"):
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)
