"""The family of instars: who came from whom and who brought each line."""

from pathlib import Path

import pytest

from evolve.gate import Strict
from evolve.lineage import Instar, Lineage
from evolve.patch import AddFile, Patch
from evolve.stats import Mean, mean_interval


def mean(value: float) -> Mean:
    return mean_interval({(str(i), 0): value for i in range(4)})


def child(version: str, *parents: str, score: float, keep: bool = True, why: str = "") -> Instar:
    verdict = Strict(pairs=1).look([0.1 if keep else -0.1])
    patch = Patch(edits=(AddFile(path=f"{version}.md", new="x"),), hypothesis=why)
    return Instar(id=version, parents=parents, step=1, patch=patch, verdict=verdict, scores={"validation": mean(score)})


def family() -> Lineage:
    lineage = Lineage()
    lineage.add(Instar(id="root", scores={"validation": mean(0.4)}))
    lineage.add(child("left", "root", score=0.6, why="be brief"))
    lineage.add(child("right", "root", score=0.5))
    lineage.add(child("bad", "left", score=0.9, keep=False))
    lineage.add(child("both", "left", "right", score=0.6))
    return lineage


def test_the_best_is_the_highest_accepted_and_the_oldest_of_equals() -> None:
    assert family().best().id == "left"
    with pytest.raises(ValueError, match="split 'test'"):
        family().best("test")


def test_a_later_score_goes_on_record_beside_the_old_ones() -> None:
    lineage = family()
    lineage.record("right", "validation", mean(0.8))
    lineage.record("right", "test", mean(0.7))
    assert lineage.best().id == "right"
    assert set(lineage["right"].scores) == {"validation", "test"}


def test_the_path_leads_over_first_parents_to_the_root() -> None:
    assert [node.id for node in family().path_to_root("both")] == ["both", "left", "root"]


def test_a_known_version_and_an_unknown_parent_are_refused() -> None:
    lineage = family()
    with pytest.raises(ValueError, match="known version"):
        lineage.add(child("left", "both", score=0.1))
    with pytest.raises(ValueError, match="elsewhere"):
        lineage.add(child("new", "elsewhere", score=0.1))
    with pytest.raises(KeyError, match="nobody"):
        lineage["nobody"]


def test_the_graph_holds_every_edge_and_no_cycle() -> None:
    import networkx

    graph = family().graph()
    assert set(graph.edges) == {
        ("root", "left"),
        ("root", "right"),
        ("left", "bad"),
        ("left", "both"),
        ("right", "both"),
    }
    assert networkx.is_directed_acyclic_graph(graph)


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
    lineage.add(child("1", "0", score=0.5))
    lineage.add(child("2", "1", score=0.5))
    texts = {"0": {"p": "keep\nrule\n"}, "1": {"p": "keep\n"}, "2": {"p": "keep\nrule\n"}}
    assert lineage.blame("2", "p", texts.__getitem__) == [("keep", "0"), ("rule", "2")]
    with pytest.raises(ValueError, match="no file 'q'"):
        lineage.blame("2", "q", texts.__getitem__)


def test_the_log_is_a_tree_that_marks_best_and_rejected() -> None:
    rows = family().log().splitlines()
    assert [row.split(" step")[0] for row in rows] == ["o root", "  * left", "    x bad", "    o both", "  o right"]
    assert "0.600 be brief" in rows[1]
    assert "[reject:" in rows[2]
    assert "(merges right)" in rows[3]
    assert Lineage().log() == ""


def test_saving_and_loading_keeps_all_and_leaves_no_part_behind(tmp_path: Path) -> None:
    path, lineage = tmp_path / "lineage.json", family()
    lineage.save(path)
    lineage.record("root", "test", mean(0.3))
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
    lineage.record("root", "test", mean(0.3))
    with pytest.raises(OSError, match="no space"):
        lineage.save(path)
    assert path.read_text() == old
    assert [file.name for file in tmp_path.iterdir()] == ["lineage.json"]


def test_a_newer_or_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "lineage.json"
    path.write_text(family().to_json().replace('"version": 1', '"version": 2'))
    with pytest.raises(ValueError, match=r"lineage\.json.*upgrade"):
        Lineage.load(path)
    path.write_text("{not json")
    with pytest.raises(ValueError, match=r"lineage\.json"):
        Lineage.load(path)
