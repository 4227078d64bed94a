"""The environment in which other runners are measured: set up once, in the user's cache, apart from ours.

Their versions are pinned, so that a figure can be had again. Where it cannot be set up (no network), the bench says so
and measures the rest.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

#: The player in `bench/players/`, and what it needs; the figures in docs/running.md are those of these versions.
PEERS = {
    "verifiers": "verifiers==0.1.14",
    "mini_swe_agent": "mini-swe-agent==2.4.6",
    "smolagents": "smolagents[openai]==1.26.0",
    "pydantic_ai": "pydantic-ai-slim[openai]==2.68.0",
    "inspect_ai": "inspect-ai==0.3.285",
}
WANTED = (*PEERS.values(), "orjson")


def environment(make: bool) -> tuple[str, str]:
    """Its Python, and "" ; or "" and why there is none. Unless `make`, only one that is there already."""
    name = hashlib.sha256(f"{WANTED}{sys.version_info[:2]}".encode()).hexdigest()[:8]
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "instar" / f"bench-peers-{name}"
    python, ready = home / "bin" / "python", home / "ready"
    if ready.is_file():
        return str(python), ""
    if not make:
        return "", "their environment is not set up. Cure: python -m bench runner, without --quick, does it once"
    print(f"setting up other runners in {home} (once; some minutes) ...", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *WANTED]
    for command in ([sys.executable, "-m", "venv", str(home)], pip):
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            shutil.rmtree(home, ignore_errors=True)
            return "", f"their environment cannot be set up: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    ready.touch()
    return str(python), ""
