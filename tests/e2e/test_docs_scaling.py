"""The lines of docs/scaling.md do what the page says, in its order, with the embedded model in two workers."""

import subprocess
import sys
from pathlib import Path

import pytest
from shell import INSTAR, ok
from test_pages import ROOT, blocks, commands

PAGE = ROOT / "docs" / "scaling.md"


@pytest.mark.model
@pytest.mark.slow
def test_the_page_on_scaling_runs(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the ray extra (make test-ray)")
    said = [ok(tmp_path, *words[1:]) for words in commands(PAGE)]
    assert "4 episodes" in said[1]
    assert said[1].splitlines()[1:] == said[2].splitlines()[1:]  # the second says what the first one found
    ((_, code),) = blocks(PAGE, "python")
    done = subprocess.run(
        [str(INSTAR.parent / Path(sys.executable).name), "-c", code], cwd=tmp_path, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
