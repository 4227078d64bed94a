"""A run is stopped cleanly however it was started: what a shell starts with `&` has Ctrl-C ignored."""

import os
import signal
import subprocess
import time
from pathlib import Path

from shell import INSTAR, SLOWLY, furnish


def test_sigterm_stops_a_run_that_a_script_put_into_the_background(tmp_path: Path) -> None:
    place = furnish(tmp_path / "place")
    words = ["run", "agent", "--n", "30", "--model", SLOWLY, "--out", "runs/cut"]
    script = 'instar="$1"; shift; "$instar" "$@" 2>said.txt & echo $! >pid; wait $!; echo $? >status'
    shell = subprocess.Popen(
        ["sh", "-c", script, "sh", str(INSTAR), *words], cwd=place, env={**os.environ, "WAIT": "0.05"},
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    end = time.monotonic() + 60
    while not (place / "asked.log").exists() and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(int((place / "pid").read_text()), signal.SIGTERM)
    shell.wait(timeout=30)
    assert (place / "status").read_text().strip() == "130"
    said = (place / "said.txt").read_text()
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
