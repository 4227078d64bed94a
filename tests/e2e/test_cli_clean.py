"""`instar clean` removes what the reaper did not live to remove, and says what it did."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from shell import found, instar, ok

OWNER = """
import subprocess, sys, time
from envs.lease import FolderLease, ProcessLease
folder = FolderLease("a sandbox", within=sys.argv[1])
held = ProcessLease("a server", grace=0)
child = subprocess.Popen(["sleep", "600"], env=held.environ(), start_new_session=True, cwd=folder.path)
held.started(child.pid)
print(child.pid, flush=True)
time.sleep(600)
"""


def owner(place: Path) -> tuple["subprocess.Popen[str]", int]:
    """A process with two leases, and the pid of the one that it leased."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(place)], env={**os.environ, "INSTAR_STATE": str(place / "state")},
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        return process, int(process.stdout.readline())


def reaper(place: Path) -> int:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"envs.reaper" in line and os.fsencode(place) in line:
            return int(pid)
    raise AssertionError("there is no reaper")


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_after_owner_and_reaper_were_killed_clean_removes_all(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    process, child = owner(tmp_path)
    held = found(tmp_path, "clean", INSTAR_STATE=state)
    assert [row["state"] for row in held["leases"]] == ["held", "held"]
    pid = reaper(tmp_path)
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 30
    while lives(pid) and time.monotonic() < end:
        time.sleep(0.01)
    process.kill()
    process.wait()
    said = ok(tmp_path, "clean", "--dry-run", INSTAR_STATE=state)
    assert f"would remove: process group {child} (a server)" in said
    assert said.splitlines()[-1] == "2 would remove"
    assert lives(child)
    done = found(tmp_path, "clean", INSTAR_STATE=state)
    assert done["format"] == 1
    assert {(row["kind"], row["state"]) for row in done["leases"]} == {("process", "removed"), ("folder", "removed")}
    assert not lives(child)
    assert list(tmp_path.glob("instar-*")) == []
    assert "nothing was left behind" in ok(tmp_path, "clean", INSTAR_STATE=state)


def test_what_cannot_be_removed_is_named_with_status_one_and_control_characters_spelled_out(tmp_path: Path) -> None:
    state = tmp_path / "state"
    process, _ = owner(tmp_path)
    os.kill(reaper(tmp_path), signal.SIGKILL)
    process.kill()
    process.wait()
    (made,) = tmp_path.glob("instar-*")
    (made / "made-by-instar").write_text("another")
    (state / "leases" / "bad\x1b[2J.json").write_text("{")
    done = instar(tmp_path, "clean", INSTAR_STATE=str(state))
    assert done.returncode == 1
    assert f"NOT removed: folder {made} (a sandbox): " in done.stdout
    assert "left alone: " in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[-1] == "1 removed, 1 NOT removed, 1 left alone"
    assert done.stderr == ""


def test_where_nothing_was_ever_leased_there_is_nothing_to_clean(tmp_path: Path) -> None:
    assert found(tmp_path, "clean", INSTAR_STATE=str(tmp_path / "none"))["leases"] == []
    assert not (tmp_path / "none").exists()
