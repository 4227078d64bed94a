"""The examples are whole: each script runs as it stands, and the output beside it is of the same form."""

import re
import subprocess
import sys
from pathlib import Path

from shell import IMITATE, MODELS, ROOT

EXAMPLES = ROOT / "examples"
#: Lines that every run of the example has, whatever its numbers are.
FORM = (
    r"exploring: 400 episodes",
    r"round 0: evolved",
    r"exam, evolved +0\.",
    r"exam, random moves +0\.",
    r"exam, memory alone +0\.",
    r"memory: kept",
)


def test_the_household_example_runs_and_its_recorded_output_is_of_the_same_form(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    command = [sys.executable, str(EXAMPLES / "household_memrl.py"), IMITATE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    recorded = (EXAMPLES / "household_memrl.txt").read_text(encoding="utf-8")
    for line in FORM:
        assert re.search(line, done.stdout), line
        assert re.search(line, recorded), line


def test_the_recorded_output_is_of_the_embedded_model_and_claims_what_it_shows() -> None:
    recorded = (EXAMPLES / "household_memrl.txt").read_text(encoding="utf-8")
    evolved, control = (float(re.search(rf"exam, {arm} +(\S+)", recorded)[1]) for arm in ("evolved", "control"))  # type: ignore[index]
    assert ("Evolved is better" in recorded) == (evolved > control)
    assert "embedded" in (EXAMPLES / "household_memrl.py").read_text(encoding="utf-8")
