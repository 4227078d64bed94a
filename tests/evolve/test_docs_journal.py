"""The Python on the page about the journal runs as it stands there."""

import re
import shutil
from pathlib import Path

import pytest

from harness.journal import Journal

PAGE = Path(__file__).parents[2] / "docs" / "journal.md"


def test_the_code_of_the_page_reads_a_run(
    played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(played, tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
    first, *turns = capsys.readouterr().out.splitlines()
    with Journal(played, readonly=True) as journal:
        trajectories = list(journal.trajectories())
    solved = sum(t.score == 1.0 for t in trajectories)
    assert first == f"{solved} of {len(trajectories)} solved with {sum(t.calls for t in trajectories)} calls"
    assert len(turns) == sum(len(t.turns) for t in trajectories) > 0
