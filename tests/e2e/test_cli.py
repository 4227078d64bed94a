"""The command line as a person uses it: the real `instar`, real folders, models that are Python functions."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shell import BABBLE, IMITATE, INSTAR, ROOT, SLOWLY, SMALL, STUB, failed, found, furnish, instar, ok


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return furnish(tmp_path)


@pytest.fixture(scope="module")
def evolved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place where `runs/evolved` holds a finished evolution; tests only read there."""
    home = furnish(tmp_path_factory.mktemp("evolved"))
    answer = found(home, "evolve", "agent", "--model", IMITATE, *SMALL, "--out", "runs/evolved")
    (home / "outcome.json").write_text(json.dumps(answer))
    return home


def outcome(place: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((place / "outcome.json").read_text())
    return answer


def asked(place: Path) -> int:
    """How many questions the scripted model was asked."""
    log = place / "asked.log"
    return log.stat().st_size if log.exists() else 0


def timeless(value: Any) -> Any:
    """`value` without what depends on the clock, on where it lies, or on what was cached."""
    if isinstance(value, dict):
        return {
            key: timeless(part) for key, part in value.items() if key not in ("seconds", "folder", "page", "cached")
        }
    return value


# ------------------------------------------------------------------------------------------------ what works


def test_init_makes_files_to_read_and_never_overwrites_them(place: Path) -> None:
    assert (place / "agent/harness.toml").is_file()
    assert (place / "agent/prompts/step.md").is_file()
    again = instar(place, "init", "agent")
    assert again.returncode == 1
    assert "not empty" in again.stderr


def test_init_names_the_harness_after_its_folder(place: Path) -> None:
    for folder, name in (("runs/my-agent", "my-agent"), ("my agent!", "my-agent"), ("...", "react")):
        ok(place, "init", folder, "--starter", "react")
        text = (place / folder / "harness.toml").read_text(encoding="utf-8")
        assert re.findall(r'^name = "(.*)"$', text, re.M)[0] == name
        shutil.rmtree(place / folder)


def test_a_run_is_scored_and_the_same_command_again_asks_nothing(place: Path) -> None:
    command = ("run", "agent", "--env", "household", "--n", "6", "--model", IMITATE)
    first = found(place, *command)
    assert first["mean"]["episodes"] == 6
    assert first["mean"]["missing"] == 0
    assert (place / first["folder"] / "journal.db").is_file()
    before = asked(place)
    assert before > 0
    assert found(place, *command) == first
    assert asked(place) == before


def test_a_run_without_json_says_its_score_and_its_folder(place: Path) -> None:
    text = ok(place, "run", "agent", "--n", "3", "--model", IMITATE, "--out", "runs/mine")
    assert "runs/mine" in text
    assert "0.0" in text


def test_how_many_play_at_once_changes_nothing(place: Path) -> None:
    runs = [
        found(place, "run", "agent", "--n", "12", "--model", IMITATE, "-c", at_once, "--out", f"runs/{at_once}")
        for at_once in ("1", "8")
    ]
    assert timeless(runs[0]) == timeless(runs[1])


def test_a_budget_ends_a_run_before_its_limit(place: Path) -> None:
    answer = found(place, "run", "agent", "--n", "10", "--model", IMITATE, "--budget", "50calls")
    assert 0 < answer["mean"]["episodes"] < 10
    assert answer["cost"]["calls"] <= 50


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(place: Path) -> None:
    command = ("run", "agent", "--n", "30", "--model", SLOWLY, "--out", "runs/cut")
    cut = subprocess.Popen(
        [str(INSTAR), *command], cwd=place, env={**os.environ, "WAIT": "0.05"}, stderr=subprocess.PIPE, text=True
    )
    _wait_until(lambda: asked(place) >= 20)
    cut.send_signal(signal.SIGINT)
    _, said = cut.communicate(timeout=20)
    assert cut.returncode == 130
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
    cut_at = asked(place)
    whole = found(place, "run", "agent", "--n", "30", "--model", SLOWLY, "--out", "runs/whole")
    in_whole = asked(place) - cut_at
    resumed = found(place, *command)
    assert timeless(resumed) == timeless(whole)
    in_resumed = asked(place) - cut_at - in_whole
    assert cut_at + in_resumed <= in_whole + 2  # at most the questions that were open at the cut, one an episode


def test_evolving_a_memory_beats_its_control_on_tasks_that_taught_neither(evolved: Path) -> None:
    answer = outcome(evolved)
    assert answer["evolved"]["mean"] > answer["control"]["mean"]
    assert answer["comparison"]["winner"] == "candidate"
    assert answer["comparison"]["p_value"] < 0.05
    assert answer["overlap"]["examined"] == 20
    assert answer["overlap"]["shared"] == 0
    assert (answer["folder"], answer["page"]) == ("runs/evolved", "runs/evolved/report.html")
    assert (evolved / answer["page"]).is_file()
    assert answer["cost"]["evolving"]["calls"] > 0
    assert (evolved / "runs/evolved/best/harness.toml").read_text() == (evolved / "agent/harness.toml").read_text()


def test_the_same_evolution_again_prints_the_same_at_once(evolved: Path) -> None:
    before = asked(evolved)
    again = found(evolved, "evolve", "agent", "--model", IMITATE, *SMALL, "--out", "runs/evolved")
    assert again == outcome(evolved)
    assert asked(evolved) == before


def test_an_evolution_killed_outright_goes_on_to_the_same_end(evolved: Path, tmp_path: Path) -> None:
    place = furnish(tmp_path)
    command = ("evolve", "agent", "--model", SLOWLY, *SMALL, "--out", "runs/cut")
    cut = subprocess.Popen(
        [str(INSTAR), *command], cwd=place, env={**os.environ, "WAIT": "0.01"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _wait_until(lambda: asked(place) >= 120)
    cut.kill()
    cut.wait(timeout=20)
    assert timeless(found(place, *command)) == timeless(outcome(evolved))


def test_evolving_prompts_without_a_proposer_proposes_and_judges(place: Path) -> None:
    small = (
        "--set",
        "explore=120",
        "--set",
        "rounds=2",
        "--set",
        "batch=4",
        "--set",
        "max_pairs=12",
    )
    command = ("evolve", "agent", "--recipe", "reflect", "--model", IMITATE, *small, "--n", "8", "--out", "runs/r")
    answer = found(place, *command)
    assert answer["recipe"] == "reflect"
    assert answer["comparison"]["pairs"] == 8
    lineage = json.loads((place / "runs/r/lineage.json").read_text())
    children = [node for node in lineage["nodes"] if node["parents"]]
    assert len(children) == 2
    assert all(node["verdict"]["decision"] in ("accept", "reject", "undecided") for node in children)
    assert all(node["patch"]["evidence"] for node in children)
    assert found(place, *command) == answer


def test_an_evolution_within_a_budget_spends_no_more(place: Path) -> None:
    answer = found(place, "evolve", "agent", "--model", IMITATE, *SMALL, "--budget", "100calls")
    assert 0 < answer["cost"]["evolving"]["calls"] <= 100


def test_what_an_evolution_remembered_helps_a_later_run(evolved: Path, tmp_path: Path) -> None:
    place = furnish(tmp_path)
    bare = found(place, "run", "agent", "--n", "20", "--split", "test", "--model", IMITATE)
    memory = str(evolved / "runs/evolved")
    helped = found(place, "run", "agent", "--n", "20", "--split", "test", "--model", IMITATE, "--memory", memory)
    assert helped["mean"]["mean"] > bare["mean"]["mean"]
    verdict = found(place, "compare", bare["folder"], helped["folder"])
    assert verdict["winner"] == "candidate"
    assert verdict["pairs"] == 20
    text = ok(place, "compare", bare["folder"], helped["folder"])
    assert "candidate better" in text
    assert text.splitlines()[-1] == "differs in: memory"


def test_a_report_is_one_page_of_its_own(evolved: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    said = ok(evolved, "report", "runs/evolved", "--out", str(page))
    assert str(page) in said
    assert said.count("page: ") == 1
    text = page.read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html")
    for outside in ('src="http', "src='http", 'href="http', '<link rel="stylesheet" href'):
        assert outside not in text


def test_environments_are_listed_and_checked(tmp_path: Path) -> None:
    assert "household" in ok(tmp_path, "envs", "list")
    good = shutil.copy(ROOT / "examples/my_env.py", tmp_path / "my_env.py")
    assert found(tmp_path, "envs", "check", str(good))["results"]
    (tmp_path / "bad_env.py").write_text((tmp_path / "my_env.py").read_text().replace("Random(seed)", "Random()"))
    bad = instar(tmp_path, "envs", "check", "bad_env.py")
    assert bad.returncode == 1
    assert "failed" in bad.stdout
    assert "Traceback" not in bad.stderr


def test_an_environment_of_ones_own_is_run_and_evolved_in(place: Path) -> None:
    shutil.copy(ROOT / "examples/my_env.py", place / "my_env.py")
    assert found(place, "run", "agent", "--env", "my_env.py", "--n", "5", "--model", IMITATE)["mean"]["episodes"] == 5
    small = ("--set", "explore=40", "--set", "rounds=1", "--set", "batch=4", "--n", "8")
    answer = found(place, "evolve", "agent", "--env", "my_env.py", "--model", IMITATE, *small)
    assert answer["comparison"]["pairs"] == 8


def test_a_memory_is_listed_searched_shown_and_forgotten(evolved: Path, tmp_path: Path) -> None:
    shutil.copytree(evolved / "runs/evolved", tmp_path / "runs/evolved")
    listed = ok(tmp_path, "memory", "list", "--n", "3")  # the newest run in runs/ when none is named
    first = listed.split()[0]
    assert listed.count("utility") == 3
    near = ok(tmp_path, "memory", "search", "put an apple in the fridge", "--n", "2", "--in", "runs/evolved")
    assert near.count("sim ") == 2
    item = json.loads(ok(tmp_path, "memory", "show", first, "--in", "runs/evolved"))
    assert item["id"] == first
    assert item["provenance"]
    assert ok(tmp_path, "memory", "forget", first, "--in", "runs/evolved/memory.db").split() == ["forgot", "1"]
    assert first not in ok(tmp_path, "memory", "list", "--n", "999", "--in", "runs/evolved")
    assert instar(tmp_path, "memory", "show", first, "--in", "runs/evolved").returncode == 1


# ------------------------------------------------------------------------------------------------ what fails


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("run", "nowhere"), "nowhere"),
        (("run", "models.py"), "models.py"),
        (("evolve", "nowhere"), "instar init nowhere"),
        (("run", "agent", "--env", "nowhere"), "nowhere"),
        (("run", "agent", "--env", "household:level=9"), "level"),
        (("run", "agent", "--env", "nowhere.py"), "nowhere.py"),
        (("run", "agent", "--split", "dev"), "train, valid"),
        (("run", "agent", "--budget", "lots"), "600calls"),
        (("evolve", "agent", "--budget", "5bananas"), "600calls"),
        (("evolve", "agent", "--recipe", "magic"), "memrl, reflect"),
        (("evolve", "agent", "--set", "speed=5"), "explore"),
        (("evolve", "agent", "--set", "rounds=many"), "rounds is 'many'"),
        (("evolve", "agent", "--set", "rounds=-1"), "greater than or equal to 0"),
        (("evolve", "agent", "--set", "rounds"), "key=value"),
        (("evolve", "agent", "--recipe", "reflect", "--set", "proposer=rewrite"), "--proposer MODEL"),
        (("run", "agent", "--memory", "nowhere"), "nowhere"),
        (("run", "agent", "--model", "scripted:nowhere.py:f"), "nowhere.py"),
        (("run", "agent", "--gguf", "nowhere.gguf"), "nowhere.gguf"),
        (("run", "agent", "--gguf", "models.py"), "not a GGUF file"),
        (("run", "agent", "--gguf", "a.gguf", "--model", "embedded"), "give one of them"),
        (("run", "agent", "--model", "openai/x", "--api-base", "https://a.invalid", "--api-key-env", "NONE"), "NONE"),
        (("compare", "agent", "agent"), "no run here"),
        (("report", "agent"), "no run here"),
        (("memory", "list", "--in", "agent"), "memory.db"),
        (("memory", "list"), "--in RUN"),
        (("memory", "list", "--in", "agent"), "the folder of an `instar evolve` run"),
        (("run", "agent", "--split", "dev"), "Cure: name one of these"),
        (("envs", "check", "nowhere"), "nowhere"),
        (("init", "other", "--starter", "huge"), "react, small, tools"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line_that_names_it_or_the_cure(
    place: Path, words: tuple[str, ...], names: str
) -> None:
    if words[0] in ("run", "evolve") and not {"--model", "--gguf"} & set(words):
        words = (*words, "--model", IMITATE)
    assert names in failed(place, *words, *(("--json",) if words[0] in ("run", "evolve") else ()))


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("run", "agent", "--n", "0"),
        ("run", "agent", "--speed", "9"),
        ("fly",),
        ("run", "agent", "--n", "many"),
    ],
)
def test_wrong_usage_ends_with_status_2(place: Path, words: tuple[str, ...]) -> None:
    done = instar(place, *words)
    assert done.returncode == 2
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "names"),
    [
        ("harness.toml", "steps = 0 ", 'steps = "many" ', "[limits] steps"),
        ("harness.toml", "k1 = 5", "k1 = 0", "[memory] k1"),
        ("harness.toml", "k1 = 5", "k9 = 5", "[memory] k9"),
        ("harness.toml", 'loop = "choice"', 'loop = "dance"', "[control] loop"),
        ("harness.toml", 'loop = "choice"', 'loop = "control"', "control.py"),
        ("harness.toml", "[limits]", "[limits", "not valid TOML"),
        ("harness.toml", "format = 1", "format = 99", "format 99 is newer"),
        ("prompts/step.md", "{situation}", "{sitaution}", "{sitaution}"),
        ("prompts/memory.md", "{body}", "{goal}", "{goal}"),
    ],
)
def test_a_faulty_harness_is_one_line_that_names_file_and_key(
    place: Path, file: str, old: str, new: str, names: str
) -> None:
    path = place / "agent" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    line = failed(place, "run", "agent", "--model", IMITATE, "--json")
    assert "agent/" in line
    assert names in line
    assert not (place / "runs").exists()


@pytest.mark.parametrize("out", ["taken", "taken/below"])
def test_a_run_folder_that_cannot_be_written_is_said_before_any_work(place: Path, out: str) -> None:
    (place / "taken").write_text("a file, not a folder")
    assert "--out" in failed(place, "run", "agent", "--model", IMITATE, "--out", out, "--json")
    assert asked(place) == 0


def test_a_folder_of_another_run_is_never_mixed_into(place: Path) -> None:
    found(place, "run", "agent", "--n", "2", "--model", IMITATE, "--out", "runs/one")
    line = failed(place, "run", "agent", "--n", "2", "--seed", "5", "--model", IMITATE, "--out", "runs/one", "--json")
    assert "seed" in line


def test_a_run_that_another_process_is_writing_is_refused(place: Path) -> None:
    command = [str(INSTAR), "run", "agent", "--n", "30", "--model", SLOWLY, "--out", "runs/busy"]
    busy = subprocess.Popen(command, cwd=place, env={**os.environ, "WAIT": "0.2"}, stderr=subprocess.DEVNULL)
    try:
        _wait_until(lambda: asked(place) >= 2)
        assert "another process" in failed(place, *command[1:], "--json")
    finally:
        busy.kill()
        busy.wait(timeout=20)


def test_a_model_that_babbles_for_ever_is_counted_and_the_run_ends(tmp_path: Path) -> None:
    place = furnish(tmp_path, "react")
    answer = found(place, "run", "agent", "--n", "4", "--model", BABBLE)
    assert answer["mean"] | {"low": 0, "high": 0} == answer["mean"] | {
        "mean": 0.0, "episodes": 4, "missing": 0, "low": 0, "high": 0,
    }  # fmt: skip
    assert answer["cost"]["calls"] == 4 * 5  # five useless answers in a row end an episode


def test_a_server_that_cannot_be_reached_ends_the_run_soon(place: Path) -> None:
    start = time.monotonic()
    line = failed(place, "run", "agent", "--model", "openai/x", "--api-base", "http://127.0.0.1:9/v1", "--json")
    assert "http://127.0.0.1:9/v1 cannot be reached" in line
    assert "same command again" in line
    assert time.monotonic() - start < 30


@pytest.fixture
def server() -> Iterator[str]:
    """Address of a server that wants the key `open-sesame-1234`."""
    command = [sys.executable, str(STUB), "--key", "open-sesame-1234"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def test_a_wrong_key_stops_at_once_and_stays_secret(place: Path, server: str) -> None:
    command = ("run", "agent", "--model", "openai/x", "--api-base", server, "--api-key-env", "MY_KEY", "--json")
    line = failed(place, *command, MY_KEY="wrong-key-987654321")
    assert "MY_KEY" in line
    assert "wrong-key-987654321" not in line


def test_a_server_is_played_with_and_its_key_is_nowhere_in_the_run(place: Path, server: str) -> None:
    key = "open-sesame-1234"
    connection = ("--model", "openai/x", "--api-base", server, "--api-key-env", "MY_KEY")
    answer = found(place, "run", "agent", "--n", "3", *connection, MY_KEY=key)
    assert answer["mean"]["episodes"] == 3
    assert answer["cost"]["calls"] > 0
    for file in (place / answer["folder"]).rglob("*"):
        assert file.is_dir() or key.encode() not in file.read_bytes()


@pytest.mark.parametrize("command", [[str(INSTAR), "--help"], [sys.executable, "-c", "import harness"]])
def test_help_and_import_take_less_than_a_third_of_a_second(command: list[str]) -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.3


def _wait_until(true: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_what_a_world_says_in_an_error_cannot_act_on_the_terminal(place: Path) -> None:
    (place / "rude.py").write_text("raise ValueError('\\x1b[2J\\x1b]0;owned\\x07 no')\n")
    line = failed(place, "run", "agent", "--env", "rude.py", "--model", IMITATE)
    assert "\x1b" not in line
    assert "⟨U+001B⟩[2J" in line
