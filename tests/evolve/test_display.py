"""A long wait is said at once, so that it does not look like a hang."""

import pytest

from evolve.display import Display
from harness.runner import Progress


def test_progress_names_the_round_and_the_arm(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as display:
        for phase, arm in (("round-1", "evolved"), ("round-1", "control"), ("exam", "wander"), ("run", "agent")):
            display.watch(Progress(total=5, phase=phase, arm=arm, waiting=f"{phase} {arm} waits"))
    said = [line.split(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == ["round 1, evolved", "round 1, control", "exam, random moves", "run"]


def test_a_long_wait_is_said_at_once_and_not_again_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(total=5, phase="run")
    with Display() as display:
        for waiting in ("waiting 90 s for the model: 429", "", "waiting 90 s for the model: 429", ""):
            progress.waiting = waiting
            display.watch(progress)
    assert capsys.readouterr().err.splitlines() == ["run: waiting 90 s for the model: 429"]
    with Display(quiet=True) as display:
        display.watch(Progress(total=5, phase="run", waiting="x"))
    assert capsys.readouterr().err == ""
