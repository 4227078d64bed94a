"""`instar proxy` as a user has it: a process with an address, that any client may ask, and that may be killed."""

import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from shell import INSTAR, failed, ok

from harness.journal import Journal
from harness.trajectory import Trajectory

MODELS = '''
import time


def count(request):
    """Says how many messages it was shown; one that asks it to be slow waits until there is a file named go."""
    with open("asked.log", "a") as log:
        log.write(".")
    if request.messages[-1].content == "slow":
        with open("slow.log", "a"):
            pass
        import pathlib
        end = time.monotonic() + 60
        while not pathlib.Path("go").exists() and time.monotonic() < end:
            time.sleep(0.01)
    return str(len(request.messages))
'''
MODEL = ("--model", "scripted:models.py:count")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with models.py."""
    (tmp_path / "models.py").write_text(MODELS)
    return tmp_path


@contextmanager
def proxy(place: Path, *words: str, json_: bool = True, **env: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """(url, process) of a proxy in `place`; killed at the end, if it has not ended."""
    words = (*words, "--json") if json_ else words
    process = subprocess.Popen(
        [str(INSTAR), "proxy", "--out", "run", *MODEL, *words], cwd=place, env={**os.environ, **env},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield json.loads(line)["url"] if json_ else line.split(" answers at ")[1].split(";")[0], process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def ask(url: str, key: str, *words: str, **rest: Any) -> str:
    """The answer to a conversation."""
    with openai.OpenAI(base_url=url, api_key=key, max_retries=rest.pop("retries", 0)) as client:
        messages: list[Any] = [{"role": "user", "content": word} for word in words]
        answer = client.chat.completions.create(model="m", messages=messages, temperature=0, **rest)
    return str(answer.choices[0].message.content)


def written(place: Path) -> list[Trajectory]:
    with Journal(place / "run", readonly=True) as journal:
        return list(journal.trajectories())


def test_ctrl_c_ends_the_episodes_and_the_report_shows_them(place: Path) -> None:
    with proxy(place) as (url, process):
        assert ask(url, "sk-instar-seven", "Hi", "there") == "2"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    [said] = [json.loads(line)["said"] for line in out.splitlines()]
    assert said == "run/agent/seven/0: truncated, no score (the proxy was stopped)"
    [trajectory] = written(place)
    assert (trajectory.task, trajectory.goal) == ("seven", "Hi\n\nthere")
    ok(place, "report", "run")
    assert "seven" in (place / "run" / "report.html").read_text()


def test_a_proxy_that_is_killed_in_a_call_goes_on_with_the_episode_where_it_was(place: Path) -> None:
    with proxy(place) as (url, process):
        assert ask(url, "sk-instar-a", "one") == "1"
        lost: list[Exception] = []

        def slowly() -> None:
            try:
                ask(url, "sk-instar-a", "one", "slow")
            except openai.APIConnectionError as error:
                lost.append(error)

        thread = threading.Thread(target=slowly)
        thread.start()
        end = time.monotonic() + 30
        while not (place / "slow.log").exists() and time.monotonic() < end:
            time.sleep(0.01)
        process.kill()
        thread.join(30)
        assert len(lost) == 1
    assert written(place) == []
    (place / "go").touch()
    port = url.rpartition(":")[2].removesuffix("/v1")
    with proxy(place, "--port", port) as (again, process):
        assert again == url
        assert ask(url, "sk-instar-a", "one", "slow") == "2"
        assert ask(url, "sk-instar-b", "other") == "1"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    found = {trajectory.id: trajectory for trajectory in written(place)}
    assert set(found) == {"run/agent/a/0", "run/agent/b/0"}
    assert [turn.observation for turn in found["run/agent/a/0"].turns] == ["one", "one\n\nslow"]
    assert len((place / "asked.log").read_text()) == 4


def test_a_budget_is_the_runs_and_not_a_processs(place: Path) -> None:
    with proxy(place, "--budget", "2calls") as (url, _):
        assert ask(url, "sk-instar-a", "x") == "1"
    with proxy(place, "--budget", "2calls") as (url, _):
        assert ask(url, "sk-instar-a", "y") == "1"
        with pytest.raises(openai.RateLimitError, match="2 of 2 calls") as stopped:
            ask(url, "sk-instar-b", "z", retries=2)
        assert stopped.value.code == "insufficient_quota"
    with proxy(place, "--budget", "3calls") as (url, _):
        assert ask(url, "sk-instar-b", "z") == "1"
    assert len((place / "asked.log").read_text()) == 3


def test_a_folder_is_one_models(place: Path) -> None:
    with proxy(place) as (url, _):
        ask(url, "sk-instar-a", "x")
    (place / "other.py").write_text(MODELS)
    line = failed(place, "proxy", "--out", "run", "--model", "scripted:other.py:count")
    assert "holds another run (it differs in model" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "Cure: --token-env NAME"),
        (["--host", "0.0.0.0", "--token-env", "SHORT"], "at least 16 letters"),
        (["--token-env", "sk-12345678"], "no name of a variable"),
        (["--option", "nonsense"], "not of the form key=value"),
        (["--option", "api_key=sk-12345678"], "never give a key"),
        (["--option", "top=1"], "has no option top"),
        (["--budget", "2 apples"], "is not understood"),
    ],
)
def test_a_mistake_is_one_line_and_no_folder_is_made(place: Path, words: list[str], said: str) -> None:
    line = failed(place, "proxy", *MODEL, "--out", "new", *words, SHORT="too-short")
    assert said in line
    assert "sk-12345678" not in line
    assert not (place / "new").exists()


def test_a_port_that_is_taken_is_one_line(place: Path) -> None:
    with proxy(place) as (url, _):
        port = url.rpartition(":")[2].removesuffix("/v1")
        line = failed(place, "proxy", *MODEL, "--out", "new", "--port", port)
    assert "cannot listen there" in line


def test_a_token_lets_others_in(place: Path) -> None:
    token = "0123456789abcdef"
    with proxy(place, "--host", "0.0.0.0", "--token-env", "T", T=token) as (url, _):
        here = url.replace("0.0.0.0", "127.0.0.1")
        assert ask(here, f"sk-instar-a.{token}", "x") == "1"
        with pytest.raises(openai.AuthenticationError):
            ask(here, "sk-instar-a", "x")
    assert token.encode() not in b"".join(file.read_bytes() for file in (place / "run").iterdir())


def test_the_money_of_an_unpriced_model_cannot_be_limited(place: Path) -> None:
    line = failed(
        place, "proxy", "--model", "openai/x", "--api-base", "http://127.0.0.1:9/v1", "--budget", "1usd", "--out", "new"
    )
    assert "price_in" in line


def finish(url: str, key: str, **told: Any) -> int:
    """Status of the end of an episode."""
    where = f"{url.removesuffix('/v1')}/s/{key}/instar/finish"
    with urllib.request.urlopen(urllib.request.Request(where, json.dumps(told).encode())) as answer:
        return int(answer.status)


def test_output_that_nobody_reads_any_more_costs_one_notice_and_no_recording(place: Path) -> None:
    with proxy(place, "--idle", "0.2") as (url, process):
        assert process.stdout is not None
        process.stdout.close()
        assert ask(url, "sk-instar-idle", "x") == "1"
        end = time.monotonic() + 30
        while not written(place) and time.monotonic() < end:
            time.sleep(0.01)
        assert ask(url, "sk-instar-b", "x") == "1"
        assert finish(url, "sk-instar-b", score=1, reason="\ud800") == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        err = process.stderr.read()
    assert err.count("nothing more is printed (Broken pipe); the recording goes on") == 1
    assert "Traceback" not in err
    assert [(t.task, t.score) for t in written(place)] == [("idle", None), ("b", 1.0)]


def test_output_that_takes_nothing_more_holds_nothing_up(place: Path) -> None:
    """As of a terminal that was stopped with Ctrl-S: the pipe is full, and nobody reads it."""
    reason = "x" * 250
    with proxy(place) as (url, process):
        for number in range(250):  # more than the 64 KiB that a pipe holds
            assert ask(url, f"sk-instar-{number}", "x") == "1"
            assert finish(url, f"sk-instar-{number}", score=1, reason=reason) == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert len(written(place)) == 250


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_what_a_client_says_is_printed_as_text_whatever_it_is(place: Path, encoding: str) -> None:
    with proxy(place, json_=False, PYTHONIOENCODING=encoding) as (url, process):
        assert ask(url, "sk-instar-a", "x") == "1"
        assert finish(url, "sk-instar-a", score=1, reason="\ud800\x1b[2J\n\u00e9") == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert "Traceback" not in err
    assert "\x1b" not in out
    told = {"utf-8": "\u00e9", "ascii": "\\xe9"}[encoding]
    assert out.splitlines()[-1] == f"run/agent/a/0: done, score 1 (\\ud800\\x1b[2J {told})"


def test_the_report_of_a_recording_is_unfinished_only_while_an_episode_is_open(place: Path) -> None:
    with proxy(place) as (url, process):
        for key in ("sk-instar-a", "sk-instar-b"):
            ask(url, key, "x")
            finish(url, key, score=0.5)
        assert "Mean score 0.500" in ok(place, "report", "run")
        ask(url, "sk-instar-c", "x")
        assert "nfinished" in ok(place, "report", "run")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    told = ok(place, "report", "run")
    assert "nfinished" not in told + (place / "run" / "report.html").read_text()
    assert "The agent scored 0.500" in told
    assert "missing" in told
