"""Other runners in the same game, from an environment that is set up once in the user's cache (network, some minutes).

Each script here plays N episodes of ten steps with a model that answers at once, AT_ONCE of them together, three times
after a first that warms up, on one core, and prints the least CPU milliseconds a step and the peak of memory.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

#: Peer -> what to install for it. Versions are pinned, so that figures can be compared over time.
PEERS = {"mini_swe_agent": "mini-swe-agent==2.4.6", "verifiers": "verifiers==0.1.14"}
HERE = Path(__file__).parent


def home() -> Path:
    """Where the environment lies."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "instar" / "bench-peers-1"


def ready() -> bool:
    """Whether it is set up."""
    return (home() / "ready").exists()


def set_up() -> str:
    """Set the environment up if it is not there; why that failed, or ""."""
    if ready():
        return ""
    print("setting up the peers of this bench (once; some minutes) ...", file=sys.stderr)
    python = home() / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(home())],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEERS.values()],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return (done.stderr.strip() or "it failed").splitlines()[-1]
    (home() / "ready").touch()
    return ""


def measure(peer: str, at_once: int, n: int) -> dict[str, float]:
    """{"ms": CPU milliseconds a step, "mb": peak memory} of `peer`. Raises RuntimeError with its last words."""
    python = home() / "bin" / "python"
    command = [str(python), "-P", str(HERE / f"{peer}.py"), str(at_once), str(n)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=home())
    if done.returncode:
        raise RuntimeError(f"{peer}: {(done.stderr.strip() or 'it failed').splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
