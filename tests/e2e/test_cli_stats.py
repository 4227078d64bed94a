"""`instar compare` with several candidates, and `instar power`."""

import json
from pathlib import Path

import pytest
from shell import IMITATE, SLOWLY, failed, found, furnish, instar, ok


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of eight tasks, three episodes each: two alike, one of a model that never helps."""
    where = furnish(tmp_path_factory.mktemp("stats") / "place")
    with (where / "models.py").open("a") as file:
        file.write("\n\ndef stubborn(request):\n    return request.choices[0]\n")
    stubborn = "scripted:models.py:stubborn"
    for name, model in (("base", stubborn), ("one", IMITATE), ("two", SLOWLY)):
        ok(where, "run", "agent", "--n", "8", "--episodes", "3", "--model", model, "--out", f"runs/{name}", "--json")
    return where


def test_several_candidates_are_a_table_for_people_and_one_object_for_programs(place: Path) -> None:
    text = ok(place, "compare", "runs/base", "runs/one", "runs/two")
    assert "Holm's p" in text.splitlines()[0]
    assert all(len(line) <= 80 for line in text.splitlines()[:5])
    assert "2 candidates, Holm's correction" in text
    answer = found(place, "compare", "runs/base", "runs/one", "runs/two")
    assert answer["format"] == 1
    assert answer["correction"] == "Holm"
    assert answer["differs_in"] == {"runs/one": ["model"], "runs/two": ["model"]}
    assert [one["name"] for one in answer["candidates"]] == ["runs/one", "runs/two"]
    for one in answer["candidates"]:
        assert one["p_adjusted"] >= one["comparison"]["p_value"]
        assert one["name"] in text
    assert set(answer["better"]) == {
        one["name"] for one in answer["candidates"] if one["comparison"]["winner"] == "candidate"
    }


def test_one_candidate_is_told_as_ever(place: Path) -> None:
    answer = found(place, "compare", "runs/base", "runs/one")
    assert {"format", "differs_in", "difference", "low", "high", "p_value", "winner", "worst", "best"} <= answer.keys()
    assert "candidates" not in answer
    text = ok(place, "compare", "runs/base", "runs/one")
    assert text.startswith("runs/one (candidate) against runs/base (baseline): ")
    assert text.splitlines()[-1] == "differs in: model"


def test_power_tells_sizes_from_one_run_and_measures_them_from_two(place: Path) -> None:
    text = ok(place, "power", "runs/one")
    assert "correlation 0.5" in text
    assert "tasks that show a difference with 80 % power" in text
    assert all(len(line) <= 80 for line in text.split("80 % power:\n")[1].splitlines()[:5])
    one = found(place, "power", "runs/one", "--effect", "0.2", "-k", "1", "-k", "3", "--correlation", "0.9")
    assert (one["format"], one["tasks"], one["episodes"], one["correlation"]) == (1, 8, 3, 0.9)
    assert [(size["effect"], size["episodes"]) for size in one["sizes"]] == [(0.2, 1), (0.2, 3)]
    two = found(place, "power", "runs/base", "runs/one", "--power", "0.9")
    assert two["paired"] is True
    assert two["power"] == 0.9


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("power", "runs/none"), "no run here"),
        (("power", "runs/one", "--effect", "3"), "effect 3.0 cannot be"),
        (("power", "runs/base", "runs/one", "--correlation", "0.1"), "give either a second run or the option"),
        (("compare", "runs/base", "runs/one", "runs/one"), "named twice"),
        (("compare", "runs/base", "runs/one", "runs/none"), "no run here"),
    ],
)
def test_what_is_wrong_is_one_line(place: Path, words: tuple[str, ...], says: str) -> None:
    assert says in failed(place, *words)


def test_a_candidate_must_be_named(place: Path) -> None:
    assert instar(place, "compare", "runs/base").returncode == 2
    assert json.loads(ok(place, "compare", "runs/one", "runs/one", "--json"))["difference"] == 0
