"""A skill is read as the standard says, and every fault is named with its file and key."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skills import Skill, SkillFault
from skills.skill import MAX_SKILL_BYTES

GOOD = """---
name: open-drawers
description: Use when a goal names a thing in a closed drawer.
license: Apache-2.0
compatibility: any household
metadata:
  version: 1.0
  checked: yes
allowed-tools: go open take
---
# Steps

1. Open it.
---
2. Take it.
"""


def write(folder: Path, text: str | bytes, name: str = "open-drawers") -> Path:
    skill = folder / name
    skill.mkdir(exist_ok=True)
    (skill / "SKILL.md").write_bytes(text if isinstance(text, bytes) else text.encode())
    return skill


def fault(folder: Path) -> str:
    with pytest.raises(SkillFault) as caught:
        Skill.load(folder)
    return str(caught.value)


def test_a_full_skill_is_read_and_its_values_stay_text(tmp_path: Path) -> None:
    skill = Skill.load(write(tmp_path, GOOD))
    assert (skill.name, skill.license, skill.compatibility) == ("open-drawers", "Apache-2.0", "any household")
    assert skill.metadata == {"version": "1.0", "checked": "yes"}
    assert skill.allowed_tools == ("go", "open", "take")
    assert skill.body == "# Steps\n\n1. Open it.\n---\n2. Take it."


def test_windows_line_ends_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert Skill.load(write(tmp_path, data)) == Skill.load(write(tmp_path, GOOD))


def test_a_name_may_use_any_lowercase_letters(tmp_path: Path) -> None:
    assert Skill.load(write(tmp_path, "---\nname: données-2\ndescription: d\n---\n", "données-2")).name == "données-2"


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("description: d", "'name' is missing"),
        ("name: open-drawers", "'description' is missing"),
        ("name: open-drawers\ndescription:", "'description' must have 1 to 1024 characters, not 0"),
        ("name: open-drawers\ndescription: " + "d" * 1025, "'description' must have 1 to 1024 characters, not 1025"),
        ("name: open-drawers\ndescription: [a, b]", "'description' must be text"),
        ("name: Open-Drawers\ndescription: d", "'name' may hold lowercase letters"),
        ("name: open_drawers\ndescription: d", "'name' may hold lowercase letters"),
        ("name: -open\ndescription: d", "'name' must not begin or end with '-'"),
        ("name: open--drawers\ndescription: d", "'name' must not begin or end with '-' or hold '--'"),
        ("name: " + "a" * 65 + "\ndescription: d", "'name' must have 1 to 64 characters, not 65"),
        ("name: shut-drawers\ndescription: d", "'name' is 'shut-drawers', but the folder is 'open-drawers'"),
        ("name: open-drawers\ndescription: d\nversion: 1", "'version' is not a key of the standard"),
        ("name: open-drawers\ndescription: d\ncompatibility: " + "c" * 501, "'compatibility' must have 1 to 500"),
        ("name: open-drawers\ndescription: d\nmetadata: m", "'metadata' must be"),
        ("name: open-drawers\ndescription: d\nmetadata: {a: [1]}", "'metadata.a' must be text"),
        (
            "name: open-drawers\ndescription: d\nname: open-drawers",
            "line 4: the frontmatter is not plain YAML: key 'name'",
        ),
        ("name: open-drawers\ndescription: Note: this", "line 3: the frontmatter is not plain YAML"),
        ("name: open-drawers\ndescription: &a d\nlicense: *a", "aliases are not allowed"),
        ("- a\n- b", "not 'key: value' lines"),
        ("", "not 'key: value' lines"),
        ("a: " + "[" * 100_000, "nested too deeply"),
        ("? [a]\n: b", "a key must be text"),
    ],
)
def test_a_fault_names_the_file_and_the_key(tmp_path: Path, head: str, said: str) -> None:
    text = fault(write(tmp_path, f"---\n{head}\n---\nbody\n"))
    assert said in text
    assert "SKILL.md" in text


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    lines = fault(write(tmp_path, "---\nname: A\nauthor: me\n---\n")).splitlines()
    assert [line.split("'")[1] for line in lines] == ["author", "description", "name", "name"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"# no frontmatter", "does not begin with '---'"),
        (b"", "does not begin with '---'"),
        (b"---\nname: open-drawers\n", "has no end"),
        (b"---\nname: \xff\n---\n", "is not UTF-8 text (byte 10)"),
        (b"---\n---\n" + b"x" * MAX_SKILL_BYTES, f"is longer than {MAX_SKILL_BYTES} bytes"),
    ],
)
def test_a_file_that_cannot_be_a_skill_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    assert said in fault(write(tmp_path, data))


def test_a_missing_or_misnamed_skill_file_is_named(tmp_path: Path) -> None:
    assert "SKILL.md: is missing" in fault(tmp_path)
    (tmp_path / "skill.md").write_text(GOOD)
    if not (tmp_path / "SKILL.md").exists():  # a disk that tells upper from lower case
        assert "rename" in fault(tmp_path)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_refused_in_words(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = write(tmp_path_factory.mktemp("s"), f"---\n{text}\n---\n".encode("utf-8", "replace"))
    assert str(folder) in fault(folder)  # no such text is a skill: it would have to hold the folder's name


def test_links_out_of_the_skill_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.txt").write_text("s3cret")
    skill = write(tmp_path, GOOD)
    for link, target in (("a.txt", "secret/key.txt"), ("b", "secret"), ("c", "nowhere")):
        os.symlink(tmp_path / target, skill / link)
        assert f"{skill / link}: is a link out of the skill" in fault(skill)
        (skill / link).unlink()
    (tmp_path / "real.md").write_text(GOOD)
    (skill / "SKILL.md").unlink()
    os.symlink(tmp_path / "real.md", skill / "SKILL.md")
    assert "SKILL.md: is a link out of the skill" in fault(skill)
