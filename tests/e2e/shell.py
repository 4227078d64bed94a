"""The real `instar` in a place of its own, with models that are Python functions, for tests of the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
INSTAR = Path(sys.executable).parent / "instar"
STUB = ROOT / "tests" / "harness" / "openai_stub.py"

MODELS = '''
import asyncio
import hashlib
import os
import re


def imitate(request):
    """Does what the nearest example did, if it may; else one of the choices, always the same for the same question."""
    with open("asked.log", "a") as log:
        log.write(".")
    for move in reversed(re.findall(r"^Action: (.+)$", request.prompt, re.M)):
        if move in request.choices:
            return move
    return min(request.choices, key=lambda choice: hashlib.sha256((request.prompt + choice).encode()).digest())


async def slowly(request):
    await asyncio.sleep(float(os.environ.get("WAIT", "0")))
    return imitate(request)


def babble(request):
    return "I am not sure what you mean."
'''
IMITATE, SLOWLY, BABBLE = (f"scripted:models.py:{name}" for name in ("imitate", "slowly", "babble"))
SMALL = ("--set", "explore=120", "--set", "rounds=2", "--set", "batch=6", "--n", "20")


def instar(place: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Give `instar WORDS` in `place` and wait for its end."""
    return subprocess.run(
        [str(INSTAR), *words], cwd=place, env={**os.environ, **env}, capture_output=True, text=True, timeout=120,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def ok(place: Path, *words: str, **env: str) -> str:
    """What a command printed that must succeed."""
    done = instar(place, *words, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def found(place: Path, *words: str, **env: str) -> dict[str, Any]:
    """The JSON that a command printed, and nothing else with it."""
    answer: dict[str, Any] = json.loads(ok(place, *words, "--json", **env))
    return answer


def furnish(place: Path, starter: str = "small") -> Path:
    """A place with models.py and a harness called agent."""
    place.mkdir(exist_ok=True)
    (place / "models.py").write_text(MODELS)
    ok(place, "init", "agent", "--starter", starter)
    return place


def failed(place: Path, *words: str, status: int = 1, **env: str) -> str:
    """The one line on standard error of a command that must fail."""
    done = instar(place, *words, **env)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == status, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]
