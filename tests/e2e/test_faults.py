"""Whatever goes wrong with a provider, a run ends, scores what the model did and nothing else, and says what happened.

INSTAR_FAULTS=500 plays as many episodes of each kind; the suite is content with fewer.
"""

import asyncio
import hashlib
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from evolve import run
from evolve.cli import app
from evolve.page import page
from evolve.report import ReportData, read_report
from evolve.terminal import show
from harness.folder import Harness
from harness.journal import Journal
from harness.model import Completion, ModelFault, Request, Usage
from harness.runner import Progress, RunStopped
from harness.starter import starter
from harness.trajectory import Trajectory

HERE = Path(__file__).parents[1] / "harness"
MANY = int(os.environ.get("INSTAR_FAULTS", "64"))
AT_ONCE = 64


@dataclass
class Serving:
    """A stub at work."""

    url: str
    process: subprocess.Popen[str]

    def counts(self) -> dict[str, int]:
        with urllib.request.urlopen(self.url) as answer:
            found: dict[str, int] = json.load(answer)
        return found


@contextmanager
def serving(*words: str, port: int = 0) -> Iterator[Serving]:
    """A fault stub in a process of its own."""
    asked = [sys.executable, str(HERE / "fault_stub.py"), "--port", str(port), *words]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Serving(process.stdout.readline().strip(), process)
        finally:
            process.kill()


def agent(loop: str = "tools", *, timeout: float = 20.0, temperature: float = 0.0) -> Harness:
    """The starter for `loop` with a model on the stub."""
    files = dict(starter(loop).files)
    files["harness.toml"] = (
        f'name = "counts"\n[model]\nname = "openai/stub"\ntemperature = {temperature}\n'
        f'options = {{ timeout = {timeout} }}\n[control]\nloop = "{loop}"\n'
    )
    return Harness.from_files(files)


@dataclass
class Outcome:
    """A run that has ended: its trajectories by task, its report and what a terminal shows of it."""

    trajectories: dict[str, Trajectory]
    data: ReportData
    shown: str

    @property
    def scores(self) -> dict[str, float | None]:
        return {task: t.score for task, t in self.trajectories.items()}

    @property
    def moves(self) -> dict[str, list[str]]:
        return {task: [turn.action for turn in t.turns] for task, t in self.trajectories.items()}


def play(
    folder: Path, url: str, harness: Harness, *, n: int = MANY, at_once: int = AT_ONCE,
    watch: Callable[[Progress], None] | None = None,
) -> Outcome:  # fmt: skip
    """Run `n` episodes against the stub at `url`."""
    run(
        harness, str(HERE / "counting.py"), n=n, concurrency=at_once, out=str(folder), watch=watch,
        options={"api_base": url, **harness.settings.model.options},
    )  # fmt: skip
    return outcome(folder)


def outcome(folder: Path) -> Outcome:
    with Journal(folder, readonly=True) as journal:
        assert not journal.unfinished()
        found = {t.task: t for t in journal.trajectories()}
    data, out = read_report(folder), io.StringIO()
    show(folder, Console(file=out, width=200))
    return Outcome(found, data, out.getvalue())


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    with serving() as stub:
        return play(tmp_path_factory.mktemp("faultless"), stub.url, agent())


KINDS: dict[str, tuple[list[str], set[str]]] = {
    "30 % 503": (["--error", "0.3"], {"503"}),
    "dropped sockets": (["--drop", "0.1"], {"unreachable"}),
    "hangs": (["--hang", "0.02"], {"time-out"}),
    "storms of 429": (["--storm", "3", "0.3", "--after", "1"], {"429"}),
    "all of them": (
        ["--error", "0.1", "--drop", "0.05", "--hang", "0.005", "--storm", "3", "0.2", "--after", "1"],
        {"503", "unreachable", "429"},
    ),
}


SEEN = (("503", "503"), ("429", "429"), ("unreachable", "drop"))  # our names and the stub's


@pytest.mark.parametrize("kind", KINDS)
def test_faults_of_the_infrastructure_change_no_score_and_are_told(
    tmp_path: Path, faultless: Outcome, kind: str
) -> None:
    words, kinds = KINDS[kind]
    with serving(*words) as stub:
        found = play(tmp_path, stub.url, agent(timeout=1.0 if "--hang" in words else 20.0))
        counts = stub.counts()
    assert len(found.scores) == MANY
    unharmed(found, faultless)
    retried = found.data.faults.retried
    assert kinds <= set(retried)
    # On a busy machine an answer, or a refusal, may come too late: then it was a time-out for us.
    late = retried["time-out"] - counts.get("hang", 0)
    unseen = [counts.get(theirs, 0) - retried[ours] for ours, theirs in SEEN]
    unseen.append(counts["answered"] - sum(len(moves) for moves in faultless.moves.values()))
    assert min(unseen) >= 0
    assert sum(unseen) <= late
    said = f"retried: {retried.total():,} tries of model calls in {found.data.faults.concerned:,} episodes"
    assert said in found.shown
    assert said[1:] in page(found.data)
    assert "missing" not in found.shown


def test_faults_change_no_score_of_another_loop(tmp_path: Path) -> None:
    with serving() as stub:
        expected = play(tmp_path / "whole", stub.url, agent("react"), n=MANY // 2)
    with serving("--error", "0.3") as stub:
        found = play(tmp_path / "faults", stub.url, agent("react"), n=MANY // 2)
    unharmed(found, expected)
    assert found.data.faults.retried["503"] > MANY


def unharmed(found: Outcome, expected: Outcome) -> None:
    assert found.scores == expected.scores
    assert found.moves == expected.moves
    assert {t.status for t in found.trajectories.values()} == {"done"}


def test_malformed_arguments_are_the_models_own_and_never_run(tmp_path: Path) -> None:
    with serving("--malformed", "0.2") as stub:
        found = play(tmp_path, stub.url, agent())
        counts = stub.counts()
    turns = [turn for t in found.trajectories.values() for turn in t.turns]
    invalid = [turn for turn in turns if turn.invalid]
    assert len(invalid) == counts["malformed"] > MANY
    assert {turn.action for turn in turns if not turn.invalid} == {"inc", "skip"}
    for trajectory in found.trajectories.values():
        assert trajectory.score is not None
        asked = sum(not turn.invalid for turn in trajectory.turns)
        assert (trajectory.status, asked) == ("done", 10) or trajectory.fault in ("output", "limit")
        for turn, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            messages = after.calls[0].messages or ()
            assert turn.invalid == ("not valid JSON" in messages[-1].content)  # it is told, and goes on
    assert not found.data.faults.retried
    assert not found.data.faults.missing


def test_a_prompt_that_does_not_fit_is_scored_as_far_as_it_came(tmp_path: Path) -> None:
    with serving("--overflow", "2000") as stub:
        found = play(tmp_path, stub.url, agent())
    assert {(t.status, t.fault) for t in found.trajectories.values()} == {("truncated", "overflow")}
    assert all(t.turns and t.score is not None and t.score > 0 for t in found.trajectories.values())
    for t in found.trajectories.values():
        assert t.score == pytest.approx(sum(turn.reward or 0 for turn in t.turns))
    assert f"truncated, {MANY} times: the prompt did not fit the model" in found.shown
    assert not found.data.faults.missing


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_server_that_is_killed_and_comes_back_costs_no_episode(tmp_path: Path, faultless: Outcome) -> None:
    port, waits = free_port(), threading.Event()
    with serving(port=port) as first:

        def watch(progress: Progress) -> None:
            if progress.done >= MANY // 8:
                first.process.kill()
            if "seems to be gone" in progress.waiting:
                waits.set()

        def come_back(started: list[subprocess.Popen[str]]) -> None:
            assert waits.wait(60)
            asked = [sys.executable, str(HERE / "fault_stub.py"), "--port", str(port)]
            started.append(subprocess.Popen(asked, stdout=subprocess.DEVNULL, text=True))

        started: list[subprocess.Popen[str]] = []
        helper = threading.Thread(target=come_back, args=(started,))
        helper.start()
        try:
            found = play(tmp_path, first.url, agent(), at_once=8, watch=watch)
        finally:
            helper.join()
            for process in started:
                process.kill()
                process.wait()
    assert found.scores == faultless.scores
    assert found.data.faults.retried["unreachable"] >= 8


def test_a_provider_that_is_gone_stops_the_run_which_then_goes_on_where_it_was(
    tmp_path: Path, faultless: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.throttle.OUTAGE", 1.0)
    port = free_port()
    with serving(port=port) as stub:

        def watch(progress: Progress) -> None:
            if progress.done >= MANY // 2:
                stub.process.send_signal(signal.SIGKILL)

        with pytest.raises(RunStopped, match=r"nobody was answered for .*the same command again"):
            play(tmp_path, stub.url, agent(), at_once=8, watch=watch)
    part = read_report(tmp_path)
    assert part.faults.missing["provider"] >= 1
    assert MANY // 2 <= len(part.episodes.rows) < MANY
    with serving(port=port) as stub:
        found = play(tmp_path, stub.url, agent())
        counts = stub.counts()
    assert found.scores == faultless.scores
    assert counts["asked"] <= 10 * (MANY - MANY // 2)  # nothing that was answered is asked again
    assert not found.data.faults.missing


def test_nothing_at_the_address_is_found_out_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.throttle.UNSEEN", 0.5)
    with pytest.raises(RunStopped, match=r"cannot be reached .*nobody has ever reached it"):
        play(tmp_path, f"http://127.0.0.1:{free_port()}/v1", agent())


def test_a_call_that_always_fails_loses_its_own_episode_and_the_report_says_whose_fault_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.episode.RETRIES", 2)
    with serving("--error", "0.25") as stub:
        found = play(tmp_path, stub.url, agent())
    missing = found.data.faults.missing["provider"]
    assert 0 < missing < MANY
    assert missing == sum(score is None for score in found.scores.values())
    assert f"missing: {missing} of {MANY} episodes (provider: {missing})" in found.shown
    mean = found.data.evaluation
    assert mean is not None
    assert mean.worst is not None
    assert mean.best is not None
    assert mean.worst < (mean.mean or 0) < mean.best
    assert f"from {mean.worst:.3f} (all lost) to {mean.best:.3f} (all won)" in " ".join(found.shown.split())
    assert any("the last of 3 tries" in t.reason for t in found.trajectories.values())


class Sampling:
    """A model in this process whose answers depend on the request and its seed, and of whose calls some fail."""

    name, address = "sampling", "http://sampling"

    def __init__(self, failing: float) -> None:
        self.failing, self.rng = failing, random.Random(0)

    async def complete(self, request: Request) -> Completion:
        await asyncio.sleep(0)
        if self.rng.random() < self.failing:
            raise ModelFault("not now", kind="503")
        said = [(message.role, message.content) for message in request.messages]
        chance = hashlib.sha256(json.dumps([said, request.seed]).encode()).digest()[0]
        return Completion(text=f"Action: {'inc' if chance < 200 else 'skip'}", usage=Usage(dollars=0.0))

    async def close(self) -> None:
        """Nothing to free."""


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_has_the_same_digest_at_any_concurrency_and_whatever_fails(tmp_path: Path, temperature: float) -> None:
    digests = set()
    for at_once, failing in ((1, 0.0), (16, 0.3), (256, 0.0)):
        folder = tmp_path / f"{at_once}-{failing}"
        player = agent("react", temperature=temperature)
        run(player, str(HERE / "counting.py"), n=MANY, model=Sampling(failing), concurrency=at_once, out=str(folder))
        digests.add(CliRunner().invoke(app, ["digest", str(folder)]).stdout)
    (digest,) = digests
    assert re.fullmatch("[0-9a-f]{64}\n", digest)


BREAKS = """
from envs import Benchmark, Env, EnvFault, fixed
from envs.env import SandboxFault

begun = set()


class Breaking(plain.Counter):
    async def reset(self, task, seed):
        self.number, self.first = int(task.id[1:]), task.id not in begun
        begun.add(task.id)
        if self.first and self.number % 5 == 0:
            raise SandboxFault("the container is gone")
        return await super().reset(task, seed)

    async def step(self, action):
        if self.first and self.number % 5 == 1 and self.steps == 3:
            raise EnvFault("the world fell over")
        if self.number % 16 == 2 and self.steps == 5:
            raise EnvFault("the world always falls over")
        return await super().step(action)


benchmark = Benchmark("counting", Breaking, fixed(plain.tasks), max_steps=30)
"""


def test_worlds_that_break_are_played_again_and_what_stays_broken_is_missing(tmp_path: Path) -> None:
    world = tmp_path / "breaking.py"
    path = str(HERE / "counting.py")
    world.write_text(f"import runpy, types\nplain = types.SimpleNamespace(**runpy.run_path({path!r}))\n{BREAKS}")
    player, whole, folder = agent("react"), tmp_path / "whole", tmp_path / "broken"
    run(player, path, n=MANY, model=Sampling(0.0), concurrency=AT_ONCE, out=str(whole))
    run(player, str(world), n=MANY, model=Sampling(0.0), concurrency=AT_ONCE, out=str(folder))
    expected, found = outcome(whole), outcome(folder)
    numbers = {int(task[1:]) for task in expected.scores}
    lost = {f"t{n}" for n in numbers if n % 16 == 2}
    assert lost
    assert {task for task, score in found.scores.items() if score is None} == lost
    assert all(found.scores[task] == score for task, score in expected.scores.items() if task not in lost)
    faults = found.data.faults
    sandboxes, falls = (sum(n % 5 == k for n in numbers) for k in (0, 1))
    assert faults.again["sandbox"] == sandboxes
    assert falls <= faults.again["environment"] <= falls + 3 * len(lost)
    assert faults.missing == {"environment": len(lost)}
    assert f"sandbox: {sandboxes} tries at episodes" in found.shown
    assert f"missing: {len(lost)} of {MANY} episodes (environment: {len(lost)})" in found.shown
    assert f"gap, {len(lost)} times: environment: the world always falls over" in found.shown or len(lost) == 1
