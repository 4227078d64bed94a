"""A harness folder is valid as a whole or refused with an error that names the file and what is wrong with it."""

import os
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.folder import MAX_FILE, Harness
from harness.settings import HarnessError
from harness.starter import starter, starters

GOOD = {"harness.toml": 'name = "a"\n', "prompts/step.md": "{memories}{situation}\nAction:"}


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(HarnessError) as caught:
        Harness.load(folder)
    return str(caught.value)


FAULTS: dict[str, tuple[dict[str, str | bytes | None], list[str]]] = {
    "no settings": ({"harness.toml": None}, ["harness.toml", "missing", "instar init"]),
    "no TOML": ({"harness.toml": "name = = 1"}, ["harness.toml", "not valid TOML", "line 1"]),
    "wrong type": ({"harness.toml": "[model]\nmax_tokens = '9'\n"}, ["harness.toml", "[model] max_tokens", "'9'"]),
    "a table that is none": ({"harness.toml": "model = 3\n"}, ["harness.toml", "model", "3"]),
    "out of range": ({"harness.toml": "[memory]\nepsilon = 1.5\n"}, ["[memory] epsilon", "1.5"]),
    "unknown loop": ({"harness.toml": "[control]\nloop = 'dance'\n"}, ["[control] loop", "'choice'", "'dance'"]),
    "unknown key": ({"harness.toml": "[model]\nnmae = 'x'\n"}, ["harness.toml", "[model] nmae", "no such setting"]),
    "unknown table": ({"harness.toml": "[modle]\nname = 'x'\n"}, ["harness.toml", "modle", "no such setting"]),
    "newer format": ({"harness.toml": "format = 2\n"}, ["harness.toml", "format 2", "newer", "update instar"]),
    "format of a wrong type": ({"harness.toml": "format = '1'\n"}, ["harness.toml", "format", "'1'"]),
    **{
        f"a name that is no part of a folder's: {name!a}": (
            {"harness.toml": f'name = "{name}"\n'},
            ["name", "at most 64"],
        )
        for name in ("", "../../x", "a/b", ".hidden", "a\\u0000b", "a\\nb", "a\\n", "a b", "x" * 65, "ä")
    },
    "a key instead of its variable": (
        {"harness.toml": "[model.options]\napi_key_env = 'sk-abc'\n"},
        ["[model.options]: api_key_env is no name of an environment variable"],
    ),
    "a password in an address": (
        {"harness.toml": "[model.options]\napi_base = 'https://me:pw@models.example'\n"},
        ["[model.options]: api_base holds a password or a key"],
    ),
    "a key": ({"harness.toml": "[model.options]\napi_key = 'sk-abc'\n"}, ["[model.options]: never write a key here"]),
    "missing prompt": ({"prompts/step.md": None}, ["prompts/step.md", "missing", "choice loop"]),
    "unknown placeholder": ({"prompts/step.md": "{gaol}"}, ["prompts/step.md", "{gaol}", "goal", "{{gaol}}"]),
    "a prompt that needs itself": ({"prompts/step.md": "{step}"}, ["prompts/step.md", "{step}"]),
    "unknown placeholder in memory": ({"prompts/memory.md": "{goal}"}, ["prompts/memory.md", "{goal}", "body, key"]),
    "a prompt named as what is filled in": ({"prompts/goal.md": "x"}, ["prompts/goal.md", "filled in by the loop"]),
    "a placeholder in an included file": (
        {"prompts/step.md": "{rules}{situation}", "prompts/rules.md": "Reach {goal}."},
        ["prompts/rules.md", "{goal} is not filled in", "prompts/step.md includes", "move it", "{{goal}}"],
    ),
    "an unknown placeholder in an included file": (
        {"prompts/step.md": "{rules}", "prompts/rules.md": "{gaol}"},
        ["prompts/rules.md", "{gaol} is not filled in"],
    ),
    "an included file that includes another": (
        {"prompts/step.md": "{rules}", "prompts/rules.md": "{more}", "prompts/more.md": "x"},
        ["prompts/rules.md", "{more} is not filled in"],
    ),
    "a prompt that includes the step": (
        {"prompts/system.md": "{step}", "prompts/step.md": "{situation}"},
        ["prompts/step.md", "{situation} is not filled in", "prompts/system.md includes"],
    ),
    "a conversation in the completion form": (
        {"harness.toml": "[control]\nloop = 'react'\nform = 'completion'\n", "prompts/system.md": "x"},
        ["harness.toml", "[control] form", "the react loop is a conversation", 'form = "chat"'],
    ),
    "no control.py": ({"harness.toml": "[control]\nloop = 'control'\n"}, ["control.py", "missing"]),
    "no UTF-8": ({"notes.txt": b"caf\xe9"}, ["notes.txt", "not UTF-8", "byte 3"]),
    "too large": ({"data.txt": "x" * (MAX_FILE + 1)}, ["data.txt", "1,000,001 bytes"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_one_error_that_names_file_and_key(fault: str, tmp_path: Path) -> None:
    change, words = FAULTS[fault]
    files = {path: content for path, content in {**GOOD, **change}.items() if content is not None}
    message = refusal(write(tmp_path, files))
    assert str(tmp_path) in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_two_wrong_settings_are_both_named(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, {**GOOD, "harness.toml": "[model]\nx = 1\n[limits]\nsteps = -1\n"}))
    assert "[model] x" in message
    assert "[limits] steps" in message


def test_braces_that_are_doubled_are_printed_single_also_in_an_included_file() -> None:
    files = {**GOOD, "prompts/step.md": "{rules} {{goal}}", "prompts/rules.md": 'Write {{goal}} or {"a": 1}.'}
    assert Harness.from_files(files).render("step", {}) == 'Write {goal} or {"a": 1}. {goal}'


def test_prompts_that_nothing_includes_may_hold_what_a_control_py_fills_in() -> None:
    files = {"harness.toml": "[control]\nloop = 'control'\n", "control.py": "", "prompts/plan.md": "{goal} {rules}",
             "prompts/rules.md": "Be brief."}  # fmt: skip
    assert Harness.from_files(files).render("plan", {"goal": "Win."}) == "Win. Be brief."


def test_an_absent_folder_is_named_with_the_cure(tmp_path: Path) -> None:
    assert f"{tmp_path}/none: there is no such folder. Cure: instar init" in refusal(tmp_path / "none")


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    write(tmp_path / "h", GOOD)
    (tmp_path / "h/notes.md").symlink_to("../secret")
    assert "h/notes.md: a link that leads out of the folder" in refusal(tmp_path / "h")


def test_a_link_to_a_folder_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", {"a.md": "x"})
    write(tmp_path / "h", GOOD)
    (tmp_path / "h/skills").symlink_to("../elsewhere")
    assert "h/skills: a link to a folder" in refusal(tmp_path / "h")


def test_a_link_inside_the_folder_is_read_and_a_dangling_one_refused(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    (tmp_path / "same.md").symlink_to("prompts/step.md")
    assert Harness.load(tmp_path).files["same.md"] == GOOD["prompts/step.md"]
    (tmp_path / "none.md").symlink_to("prompts/none.md")
    assert "none.md: cannot be read" in refusal(tmp_path)


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    os.mkfifo(tmp_path / "pipe")
    assert "pipe: not a regular file" in refusal(tmp_path)


def test_a_name_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff.md", os.O_CREAT | os.O_WRONLY))
    assert "no valid Unicode" in refusal(tmp_path)


def test_a_proposal_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(HarnessError, match=r"prompts/x\.md.*no valid Unicode"):
        Harness.from_files({**GOOD, "prompts/x.md": "\ud800"})


def test_hidden_and_compiled_files_are_no_part_of_a_harness(tmp_path: Path) -> None:
    version = Harness.load(write(tmp_path, GOOD)).version
    write(tmp_path, {".git/config": "x", "__pycache__/a.pyc": b"\xff", "prompts/step.md~": "old"})
    assert Harness.load(tmp_path).version == version


def test_versions_are_equal_for_equal_content_and_differ_for_any_change(tmp_path: Path) -> None:
    first = Harness.load(write(tmp_path / "a", GOOD))
    second = Harness.load(write(tmp_path / "b", dict(reversed(GOOD.items()))))
    assert first.version == second.version
    others = [
        {**GOOD, "prompts/step.md": GOOD["prompts/step.md"] + " "},
        {**GOOD, "prompts/step.md": GOOD["prompts/step.md"].replace("\n", "\r\n")},
        {**GOOD, "notes.md": ""},
        {**GOOD, "notes.m": "d"},
        {**GOOD, "notes.": "md"},
    ]
    versions = {Harness.from_files(files).version for files in others}
    assert len(versions) == len(others)
    assert first.version not in versions


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
ODD = "\r\n\ttab \u2028 \x00 \N{COMBINING DIAERESIS} \U0001f98b {not} a }{ hole\r\rend"


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(string.ascii_lowercase, min_size=1, max_size=6), TEXT, max_size=4), TEXT)
def test_saving_and_loading_keeps_every_character(tmp_path_factory: pytest.TempPathFactory, more, text) -> None:
    files = {
        **GOOD,
        "notes/odd.md": ODD,
        "notes/text.md": text,
        **{f"x/{name}.md": body for name, body in more.items()},
    }
    harness = Harness.from_files(files)
    folder = tmp_path_factory.mktemp("h") / "h"
    harness.save(folder)
    loaded = Harness.load(folder)
    assert dict(loaded.files) == files
    assert loaded.version == harness.version


def test_a_folder_with_something_in_it_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(HarnessError, match="not empty"):
        Harness.from_files(GOOD).save(tmp_path)
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_a_loaded_harness_cannot_be_changed() -> None:
    harness = Harness.from_files(GOOD)
    with pytest.raises(TypeError):
        harness.files["prompts/step.md"] = "other"  # type: ignore[index]


def test_every_starter_loads_and_saves_to_an_equal_one(tmp_path: Path) -> None:
    assert starters() == ["react", "small", "tools"]
    for name in starters():
        starter(name).save(tmp_path / name)
        assert Harness.load(tmp_path / name).version == starter(name).version
    with pytest.raises(HarnessError, match="Known: react, small, tools"):
        starter("large")
