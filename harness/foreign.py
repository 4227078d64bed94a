"""A foreign agent is a command: it gets a key, an address and a folder of its own, and nothing else of ours.

It runs in its own process group with a small environment, in a temporary folder with the harness's files beside it;
`instar-act` in its PATH does an action in the world, `instar-task` shows the task. Both the folder and all that it
started are gone when the episode is over, also after a SIGKILL of ours, since each has a lease.
"""

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from envs.lease import FolderLease, LeaseError, ProcessLease
from harness import prompt
from harness.folder import Harness
from harness.secrecy import mask, wrong_variable
from harness.settings import HarnessError

#: What stands in braces in a word of `[command] argv`, or in its `cwd`.
HOLES = ("folder", "goal", "harness", "key", "model", "task", "url")
#: Variables that every command inherits, where there are any.
INHERITED = ("LANG", "LC_ALL", "LC_CTYPE", "PATH", "SSL_CERT_FILE", "TERM", "TZ")
OURS = ("OPENAI_API_BASE", "OPENAI_API_KEY", "OPENAI_BASE_URL")
KEPT = 4000  # characters of its output that are kept, of the end
LONG = 100_000  # bytes of a variable, above which some systems start no process
AFTER = 5.0  # seconds that a command has to end by itself when its episode is over
CLOSING = 5.0  # seconds for the last of its output, when it has ended

_TOOL = '''"""{what}"""
import json, os, sys, urllib.error, urllib.request
words, acts = " ".join(sys.argv[1:]), {acts}
if acts and not words:
    words = sys.stdin.read().strip()
url = os.environ["INSTAR_URL"] + ("/instar/act" if acts else "/instar/task")
data = json.dumps({{"action": words}}).encode() if acts else None
ask = urllib.request.Request(url, data, {{"Content-Type": "application/json"}})
try:
    with urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(ask) as answer:
        seen = json.load(answer)
except urllib.error.HTTPError as error:
    sys.exit("error: " + json.load(error)["error"]["message"])
except OSError as error:
    sys.exit(f"error: {{error}}")
sys.stdout.reconfigure(encoding="utf-8")
for name in ("goal", "memories", "skills"):
    if seen.get(name):
        print(name.capitalize() + ": " + seen[name])
print(seen["observation"])
if seen["choices"] and not seen["done"]:
    print("Possible actions: " + ", ".join(seen["choices"]))
for tool in seen.get("tools", ()):
    print("Tool: " + json.dumps(tool))
if seen["done"] or seen["stopped"]:
    print("The episode is over." + (" " + seen["stopped"] if seen["stopped"] else ""))
'''
_WHAT = {
    "instar-act": "Do one action in the world (its words are the arguments, or standard input) and print what is seen.",
    "instar-task": "Print the task: its goal, what is seen now, and what can be done.",
}


@dataclass(frozen=True)
class Ran:
    """What became of a command: its exit `status` (None: it was ended from here) and the end of what it `said`."""

    status: int | None
    said: str


def check_command(harness: Harness) -> None:
    """Raise HarnessError for a `[command]` that cannot be started: before anything is paid for."""
    where, command = f"{harness.where}/harness.toml: [command]", harness.settings.command
    for word in (*command.argv, command.cwd):
        prompt.check(word, where, HOLES)
    for name in command.env:
        if wrong_variable(name):
            raise HarnessError(f"{where} env: no name of a variable. Cure: names only, such as HF_HOME")
        if name in OURS or name.startswith("INSTAR_"):
            raise HarnessError(f"{where} env: {name} is set by instar for each episode. Cure: leave it out")
    if prompt.placeholders(command.argv[0]):
        raise HarnessError(
            f"{where} argv: the first word is the program itself. Cure: name a program, such as sh or python3, and let "
            "the next word be the file"
        )
    _program(harness)


async def run_command(
    harness: Harness, *, url: str, key: str, goal: str, task: str, model: str, until: asyncio.Event,
    spare: Callable[[], AbstractContextManager[None]],
) -> Ran:  # fmt: skip
    """Run the command of `harness` until it ends, or a little longer than `until`. Raises HarnessError.

    How it ends, and the clearing away, happens in `spare` time: the agent has nothing more to do then.
    """
    try:
        place = FolderLease(f"foreign agent of {harness.settings.name}")
        values = {
            "folder": f"{place.path}/work", "goal": goal.replace("\0", ""), "harness": f"{place.path}/harness",
            "key": key, "model": model, "task": task, "url": url,
        }  # fmt: skip
        try:
            _furnish(Path(place.path), harness)
            lease = ProcessLease(f"foreign agent of {harness.settings.name}")
            try:
                return await _run(harness, values, lease, until, spare)
            finally:
                await asyncio.to_thread(lease.close)
        finally:
            with spare():
                await asyncio.to_thread(place.close)  # it may hold much, and others play meanwhile
    except LeaseError as error:
        raise HarnessError(str(error)) from error


async def _run(
    harness: Harness, values: Mapping[str, str], lease: ProcessLease, until: asyncio.Event,
    spare: Callable[[], AbstractContextManager[None]],
) -> Ran:  # fmt: skip
    command = harness.settings.command
    words = [_program(harness), *(prompt.fill(word, values) for word in command.argv[1:])]
    cwd = prompt.fill(command.cwd, values) or values["folder"]
    try:
        process = await asyncio.create_subprocess_exec(
            *words, cwd=cwd, env=lease.environ(_environment(command.env, values)), start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        where = f"{harness.where}/harness.toml: [command] {command.argv[0]}"
        raise HarnessError(f"{where}: cannot be started: {error}. Cure: give the command by hand first") from error
    lease.started(process.pid)
    assert process.stdout is not None
    said = bytearray()
    reading = asyncio.ensure_future(_read(process.stdout, said))
    ending, stopping = asyncio.ensure_future(process.wait()), asyncio.ensure_future(until.wait())
    try:
        await asyncio.wait([ending, stopping], return_when=asyncio.FIRST_COMPLETED)
        with spare():
            if not ending.done():
                await asyncio.wait([ending], timeout=AFTER)
            status = process.returncode
            await asyncio.to_thread(lease.close)  # also what it left running: only then does its output end
            await asyncio.wait([ending, reading], timeout=CLOSING)
        return Ran(status, mask(said.decode("utf-8", "replace"), values["key"])[-KEPT:].strip())
    finally:
        for waiting in (ending, stopping, reading):
            waiting.cancel()
        await asyncio.gather(ending, stopping, reading, return_exceptions=True)
        process._transport.close()  # type: ignore[attr-defined]


async def _read(stream: asyncio.StreamReader, said: bytearray) -> None:
    """Read to the end and keep the last part: a command that says much must not wait for us, nor fill our memory."""
    while part := await stream.read(65536):
        said += part
        del said[: -4 * KEPT]


def _furnish(place: Path, harness: Harness) -> None:
    for path, text in harness.files.items():
        target = place / "harness" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="")
    (place / "work").mkdir()
    (place / "home").mkdir()
    (place / "bin").mkdir()
    for name, what in _WHAT.items():
        code = place / "bin" / f".{name}.py"
        code.write_text(_TOOL.format(what=what, acts=name == "instar-act"))
        start = place / "bin" / name
        start.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(str(code))} "$@"\n')
        start.chmod(0o755)


def _environment(allowed: Sequence[str], values: Mapping[str, str]) -> dict[str, str]:
    place = os.path.dirname(values["folder"])
    env = {name: os.environ[name] for name in INHERITED if name in os.environ}
    env |= {"HOME": f"{place}/home", "TMPDIR": values["folder"], "NO_PROXY": "127.0.0.1,localhost"}
    env |= {name: os.environ[name] for name in allowed if name in os.environ}
    env["PATH"] = os.pathsep.join(filter(None, (f"{place}/bin", env.get("PATH", os.defpath))))
    base, session = f"{values['url']}/v1", f"{values['url']}/s/{values['key']}"
    env |= {"OPENAI_BASE_URL": base, "OPENAI_API_BASE": base, "OPENAI_API_KEY": values["key"], "INSTAR_URL": session}
    told = {"INSTAR_GOAL": values["goal"], "INSTAR_TASK": values["task"], "INSTAR_HARNESS": values["harness"]}
    told["INSTAR_MODEL"] = values["model"]
    return env | {name: text for name, text in told.items() if len(text.encode()) <= LONG}  # instar-task tells it whole


def _program(harness: Harness) -> str:
    """The program to start, with its whole path: the command's folder is not ours. Raises HarnessError."""
    named = harness.settings.command.argv[0]
    found = shutil.which(named) if "/" not in named else shutil.which(os.path.abspath(os.path.expanduser(named)))
    if found is None:
        raise HarnessError(
            f"{harness.where}/harness.toml: [command] argv: there is no program {named!r} to start. Cure: install it, "
            "or write its path from the folder where you give the instar command"
        )
    return os.path.abspath(found)
