"""Options that reach the right model, JSON that says its version, and errors that are told apart from bugs."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shell import IMITATE, STUB, failed, found, furnish, instar, ok

from harness.journal import Journal

KEY = "open-sesame-1234"
TINY = ("--set", "rounds=1", "--set", "batch=2", "--n", "2")
REWRITE = ("--recipe", "reflect", "--set", "proposer=rewrite")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return furnish(tmp_path)


@pytest.fixture
def server() -> Iterator[str]:
    """Address of a server that wants the key."""
    with subprocess.Popen([sys.executable, str(STUB), "--key", KEY], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def plan(folder: Path) -> dict[str, object]:
    with Journal(folder, readonly=True) as journal:
        event = journal.last("plan")
    assert event is not None
    return event.body


def test_a_proposer_has_an_address_and_a_key_of_its_own(place: Path, server: str) -> None:
    own = ("--proposer", "openai/big", "--proposer-api-base", server, "--proposer-api-key-env", "BIG_KEY")
    answer = found(place, "evolve", "agent", *REWRITE, *TINY, "--model", IMITATE, *own, BIG_KEY=KEY)
    folder = place / answer["folder"]
    assert plan(folder)["options"] == {}
    assert plan(folder)["proposer_options"] == {"api_base": server, "api_key_env": "BIG_KEY"}
    with Journal(folder, readonly=True) as journal:
        assert journal.last("ask", "propose/0") is not None


def test_a_proposer_uses_the_agents_server_if_none_is_named(place: Path, server: str) -> None:
    both = ("--model", "openai/x", "--proposer", "openai/big", "--api-base", server, "--api-key-env", "MY_KEY")
    answer = found(place, "evolve", "agent", *REWRITE, *TINY, *both, MY_KEY=KEY)
    settings = plan(place / answer["folder"])
    assert settings["options"] == settings["proposer_options"] == {"api_base": server, "api_key_env": "MY_KEY"}


def test_a_local_proposer_gets_no_address(place: Path, server: str) -> None:
    both = ("--model", "openai/x", "--proposer", IMITATE, "--api-base", server, "--api-key-env", "MY_KEY")
    answer = found(place, "evolve", "agent", *TINY, "--set", "explore=2", *both, MY_KEY=KEY)
    assert plan(place / answer["folder"])["proposer_options"] == {}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("run", "agent", "--api-base", "http://127.0.0.1:9/v1"), "--api-base is for a model on a server"),
        (("run", "agent", "--model", "gguf:x.gguf", "--api-key-env", "K"), "--api-key-env is for a model on a server"),
        (("run", "agent", "--model", IMITATE, "--api-base", "http://127.0.0.1:9/v1"), "runs in this process"),
        (("evolve", "agent", "--api-base", "http://127.0.0.1:9/v1"), "--proposer-api-base"),
        (("evolve", "agent", "--proposer", "openai/b", "--api-base", "http://127.0.0.1:9/v1"), "--proposer-api-base"),
        (("evolve", "agent", "--proposer-api-base", "http://127.0.0.1:9/v1"), "--proposer openai/NAME"),
        (("evolve", "agent", "--proposer", IMITATE, "--proposer-api-key-env", "K"), "--proposer-api-key-env is for"),
    ],
)
def test_an_address_for_a_model_without_one_is_named(place: Path, words: tuple[str, ...], names: str) -> None:
    assert names in failed(place, *words)
    assert not (place / "runs").exists()


def test_every_json_says_its_version(place: Path) -> None:
    a = found(place, "run", "agent", "--n", "2", "--model", IMITATE, "--out", "runs/a")
    b = found(place, "run", "agent", "--n", "2", "--model", IMITATE, "--out", "runs/b")
    evolved = found(place, "evolve", "agent", *TINY, "--set", "explore=30", "--model", IMITATE, "--out", "runs/e")
    verdict = found(place, "compare", "runs/a", "runs/b")
    checked = found(place, "envs", "check", "household")
    item = json.loads(
        ok(place, "memory", "show", ok(place, "memory", "list", "--in", "runs/e").split()[0], "--in", "runs/e")
    )
    assert [one["format"] for one in (a, b, evolved, verdict, checked, item)] == [1] * 6
    assert evolved["folder"] == "runs/e"


def test_several_episodes_of_each_task_give_pass_rates(place: Path) -> None:
    command = ("run", "agent", "--n", "3", "--episodes", "2", "--model", IMITATE, "--out", "runs/twice")
    answer = found(place, *command)
    assert answer["mean"]["episodes"] == 6
    assert answer["rates"]["k"] == 2
    said = ok(place, *command)
    assert "pass@2" in said
    assert "pass^2" in said


def test_a_bug_keeps_its_traceback_and_an_expected_error_shows_its_own_when_asked(place: Path) -> None:
    assert "Traceback" not in instar(place, "run", "nowhere").stderr
    asked_for = instar(place, "run", "nowhere", INSTAR_DEBUG="1")
    assert asked_for.returncode == 1
    assert "Traceback" in asked_for.stderr


@pytest.mark.parametrize("error", ["pydantic.TypeAdapter(int).validate_python('x')", "1 / 0"])
def test_what_is_not_expected_is_shown_whole_and_says_that_it_is(tmp_path: Path, error: str) -> None:
    script = f"import sys, pydantic, evolve.cli as cli\ncli.app = lambda **_: {error}\ncli.main()"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "This was not expected" in done.stderr
    assert "INSTAR_DEBUG=1" in done.stderr
