"""Real processes that hold leases, for tests of what becomes of these when they are killed."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Obeys no SIGTERM, and says that it is ready by making a file.
STUBBORN = (
    "import signal,sys,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open(sys.argv[1], 'w'); time.sleep(600)"
)


def eventually(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen: {what}"
        time.sleep(0.02)


@contextmanager
def owner(place: Path, code: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process in a session of its own that runs `code` with its leases in `place`, ready when it says so.

    In `code`: `ready()` says it, `forever()` waits, `place` is a Path and `stubborn(name, *words)` the words of a
    process that ignores SIGTERM and makes the file `name` in `place` when it does.
    """
    text = f"""
import os, signal, subprocess, sys, time
from pathlib import Path
from envs.lease import ContainerLease, FolderLease, ProcessLease
place = Path(sys.argv[1])
def ready():
    (place / "ready").touch()
def forever():
    ready()
    while True:
        time.sleep(600)
def stubborn(name):
    return [sys.executable, "-c", {STUBBORN!r}, str(place / name)]
"""
    script = place / "owner.py"
    script.write_text(text + textwrap.dedent(code))
    environ = {**os.environ, "INSTAR_STATE": str(place / "state"), "PYTHONPATH": str(ROOT), **env}
    process = subprocess.Popen([sys.executable, str(script), str(place)], env=environ, start_new_session=True)
    try:
        eventually(lambda: (place / "ready").exists() or process.poll() is not None, "the owner is ready")
        yield process
    finally:
        process.kill()
        process.wait()


def leases(place: Path) -> list[str]:
    """The names of the lease files in `place`."""
    folder = place / "state" / "leases"
    return sorted(os.listdir(folder)) if folder.exists() else []


def running(word: str) -> list[int]:
    """The pids of living processes whose command line holds `word`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in line and int(pid) != os.getpid():
            found.append(int(pid))
    return found


def reapers(place: Path) -> list[int]:
    """The reapers of the owners in `place`."""
    return [pid for pid in running(str(place / "state" / "leases")) if pid in running("envs.reaper")]
