"""The shell lines of docs/running.md do what the page says, in its order, with the embedded model."""

from pathlib import Path

import pytest
from shell import ok
from test_pages import ROOT, commands


@pytest.mark.model
@pytest.mark.slow
def test_the_page_on_running_runs(tmp_path: Path) -> None:
    said = [ok(tmp_path, *words[1:]) for words in commands(ROOT / "docs" / "running.md")]
    first, again, replayed, hashed = said[1], said[2], said[-2], said[-1]
    assert "6 episodes" in first
    assert "6 episodes" in again
    assert "calls from the record" in replayed
    assert "replay (candidate) against runs/first (baseline)" in replayed
    assert len(hashed.strip()) == 64
