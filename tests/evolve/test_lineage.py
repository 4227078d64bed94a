"""The family of instars: who came from whom and who brought each line."""

from pathlib import Path

import pytest

from evolve.gate import Strict
from evolve.lineage import Instar, Lineage
from evolve.patch import AddFile, Patch, apply

SAMPLE = Path(__file__).parent / "data" / "lineage_1.json"


def child(version: str, *parents: str, keep: bool = True, why: str = "") -> Instar:
    verdict = Strict(pairs=1).look([0.1 if keep else -0.1])
    patch = Patch(edits=(AddFile(path=f"{version}.md", new="x"),), hypothesis=why)
    return Instar(id=version, parents=parents, step=1, patch=patch, verdict=verdict)


def family() -> Lineage:
    lineage = Lineage()
    lineage.add(Instar(id="root"))
    lineage.add(child("left", "root", why="be brief"))
    lineage.add(child("right", "root"))
    lineage.add(child("both", "left", "right"))
    lineage.add(child("bad", "left", keep=False))
    return lineage


def test_a_known_version_and_an_unknown_parent_are_refused() -> None:
    lineage = family()
    with pytest.raises(ValueError, match="known version"):
        lineage.add(child("left", "both"))
    with pytest.raises(ValueError, match="elsewhere"):
        lineage.add(child("new", "elsewhere"))
    with pytest.raises(KeyError, match="nobody"):
        lineage["nobody"]


def test_blame_finds_who_brought_each_line_through_a_merge() -> None:
    texts = {
        "root": "a\nb\nc\n",
        "left": "a\nLEFT\nb\nc\n",
        "right": "a\nb\nRIGHT\nc\n",
        "bad": "",
        "both": "a\nLEFT\nb\nRIGHT\nc\nBOTH",
    }
    got = family().blame("both", "p.md", lambda version: {"p.md": texts[version]})
    assert got == [
        ("a", "root"), ("LEFT", "left"), ("b", "root"), ("RIGHT", "right"), ("c", "root"), ("BOTH", "both"),
    ]  # fmt: skip


def test_blame_gives_a_line_that_was_deleted_and_came_back_to_the_one_who_brought_it_back() -> None:
    lineage = Lineage()
    lineage.add(Instar(id="0"))
    lineage.add(child("1", "0"))
    lineage.add(child("2", "1"))
    texts = {"0": {"p": "keep\nrule\n"}, "1": {"p": "keep\n"}, "2": {"p": "keep\nrule\n"}}
    assert lineage.blame("2", "p", texts.__getitem__) == [("keep", "0"), ("rule", "2")]
    with pytest.raises(ValueError, match="no file 'q'"):
        lineage.blame("2", "q", texts.__getitem__)


def test_the_log_is_a_tree_that_marks_the_last_accepted_and_the_rejected() -> None:
    rows = family().log().splitlines()
    assert [row.split(" step")[0] for row in rows] == ["o root", "  o left", "    * both", "    x bad", "  o right"]
    assert "step 1 be brief" in rows[1]
    assert "(merges right)" in rows[2]
    assert "[reject:" in rows[3]
    assert Lineage().log() == ""


def test_saving_and_loading_keeps_all_and_leaves_no_part_behind(tmp_path: Path) -> None:
    path, lineage = tmp_path / "lineage.json", family()
    lineage.save(path)
    lineage.add(child("more", "both"))
    lineage.save(path)
    assert Lineage.load(path).nodes() == lineage.nodes()
    assert [file.name for file in tmp_path.iterdir()] == ["lineage.json"]


def test_a_failed_save_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lineage = tmp_path / "lineage.json", family()
    lineage.save(path)
    old = path.read_text()

    def full(handle: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    lineage.add(child("more", "both"))
    with pytest.raises(OSError, match="no space"):
        lineage.save(path)
    assert path.read_text() == old
    assert [file.name for file in tmp_path.iterdir()] == ["lineage.json"]


def test_a_lineage_of_format_1_and_its_patches_are_read_and_applied() -> None:
    lineage = Lineage.load(SAMPLE)
    root, kept, dropped = lineage.nodes()
    assert (root.id, root.parents, root.patch, root.accepted) == ("1111111111111111", (), None, True)
    assert (kept.parents, kept.step, kept.accepted, dropped.accepted) == ((root.id,), 0, True, False)
    assert kept.patch is not None
    assert kept.patch.hypothesis == "say where to go"
    assert kept.patch.evidence == ("round-0/evolved/train-3/0", "round-0/evolved/train-5/0")
    assert [edit.kind for edit in kept.patch.edits] == ["replace_file", "add_file", "replace_text", "delete_file"]
    before = {"prompts/step.md": "{situation}\n", "prompts/old.md": "x", "prompts/rules.md": "Think.\n"}
    assert apply(before, kept.patch) == {
        "prompts/step.md": "GO RIGHT. {situation}\n",
        "prompts/rules.md": "Think twice.\n",
        "prompts/hint.md": "ü \U0001f41b\n",
    }
    assert kept.verdict is not None
    assert (kept.verdict.decision, kept.verdict.n, kept.verdict.e_value) == ("accept", 12, 127.5)
    assert kept.verdict.interval == (0.41, 1.0)
    assert lineage.log().splitlines()[1] == ("  * 2222222222 step 0 say where to go [accept: better: e = 128 >= 120]")


def test_a_newer_or_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "lineage.json"
    path.write_text(SAMPLE.read_text(encoding="utf-8").replace('"version": 1', '"version": 2'))
    with pytest.raises(ValueError, match=r"lineage\.json.*upgrade"):
        Lineage.load(path)
    path.write_text("{not json")
    with pytest.raises(ValueError, match=r"lineage\.json"):
        Lineage.load(path)
