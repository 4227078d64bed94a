"""A corridor and models that workers load from this file: what the models do is told in the prompt, which travels.

`log=FILE` gets a line for each call that was really made: process, task and what was seen. `wait=SECONDS` is how long
an answer takes.
"""

import asyncio
import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path

from worlds import corridor, harness

from harness import Harness
from harness.model import Completion, ModelFault, ModelRefused, Request, Usage
from harness.settings import HarnessError
from harness.throttle import ProviderGone

FILE = str(Path(__file__))


def _expert(env, rng):  # type: ignore[no-untyped-def]
    return lambda seen: "right"


#: Longer than one can go by chance, so that a score depends on what the model said.
benchmark = replace(corridor(tasks=12, length=4, max_steps=9), policies={"expert": _expert})


def player(log: Path, wait: float = 0.0, toml: str = "temperature = 1.0") -> Harness:
    """A harness whose prompts tell the models below what to do."""
    return harness("choice", {"model": toml}, step=f"log={log} wait={wait} {{memories}} {{goal}}: {{observation}}")


def asked(log: Path) -> list[tuple[int, str]]:
    """Process, and task with observation, of each call."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(pid), rest) for pid, _, rest in (line.partition(" ") for line in lines)]


async def scripted(request: Request) -> str:
    """Goes right three times of four, the same for the same request: deterministic."""
    text = request.prompt or ""
    found = re.search(r"log=(\S+) wait=(\S+)", text)
    assert found is not None
    await asyncio.sleep(float(found[2]))
    with open(found[1], "a") as file:  # noqa: ASYNC230 - one short line
        file.write(f"{os.getpid()} {text.split('reach the end of ')[1]}\n")
    return "left" if hashlib.sha256(f"{text[found.end() :]}{request.seed}".encode()).digest()[0] < 64 else "right"


class Priced:
    """As `scripted`, but each call costs, and its answers serve no other episode."""

    name = "priced"

    async def complete(self, request: Request) -> Completion:
        return Completion(text=await scripted(request), usage=Usage(prompt_tokens=10, output_tokens=1, dollars=0.5))

    async def close(self) -> None:
        """Nothing to free."""


priced = Priced()


def refusing(request: Request) -> str:
    raise ModelRefused("no such model", status=404, said="unknown")


def broken(request: Request) -> str:
    raise HarnessError("prompts/step.md: of no use")


def gone(request: Request) -> str:
    raise ProviderGone("nobody answers", transient=False, kind="unreachable")


def filtered(request: Request) -> str:
    raise ModelFault("filtered", transient=False, kind="400")


def fatal(request: Request) -> str:
    """Takes its whole process down."""
    if "reach the end of 3" in (request.prompt or ""):
        os.kill(os.getpid(), 9)
    return "right"
