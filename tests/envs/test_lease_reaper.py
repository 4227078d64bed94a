"""Whatever way an owner ends, its reaper removes what it left, and nothing of anybody else's."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from owners import ROOT, eventually, leases, owner, reapers, running

from envs.leftovers import sweep

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")

FAMILY = """
folder = FolderLease("a sandbox", within=place)
held = ProcessLease("a server", grace=0.2)
grand = stubborn("in-group")
away = stubborn("away")
code = f'''
import os, subprocess, time
os.chdir({folder.path!r})
open("log", "w").write("text")
subprocess.Popen({grand!r})
if not os.fork():
    if not os.fork():  # a daemon as they are made: a session of its own, and its parent is gone
        os.setsid()
        os.execv({away[0]!r}, {away!r})
    os._exit(0)
time.sleep(600)
'''
child = subprocess.Popen([sys.executable, "-c", code], env=held.environ(), start_new_session=True)
held.started(child.pid)
while not ((place / "in-group").exists() and (place / "away").exists()):
    time.sleep(0.01)
"""


def ours(place: Path) -> list[int]:
    """What the owner in `place` started and still lives, the reaper apart."""
    return [pid for pid in running(str(place)) if pid not in reapers(place)]


def test_a_killed_owner_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    with owner(tmp_path, FAMILY + "forever()") as killed:
        assert len(leases(tmp_path)) == 2
        assert len(ours(tmp_path)) == 4  # the owner, its child, and two stubborn ones
        assert len(reapers(tmp_path)) == 1
        killed.kill()
        killed.wait()
        eventually(lambda: not reapers(tmp_path), "the reaper ends")
    assert ours(tmp_path) == []
    assert leases(tmp_path) == []
    assert list(tmp_path.glob("instar-*")) == []


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "os._exit(0)", "1/0", "os.abort()"])
def test_however_an_owner_ends_what_it_did_not_close_is_removed(tmp_path: Path, ending: str) -> None:
    with owner(tmp_path, FAMILY + f"ready()\n{ending}") as ended:
        ended.wait()
        eventually(lambda: not reapers(tmp_path), "the reaper ends")
    assert ours(tmp_path) == []
    assert leases(tmp_path) == []
    assert list(tmp_path.glob("instar-*")) == []


def test_an_owner_killed_between_starting_a_process_and_noting_it_leaves_none(tmp_path: Path) -> None:
    code = """
    held = ProcessLease("a server", grace=0)
    subprocess.Popen(stubborn("there"), env=held.environ(), start_new_session=True)
    while not (place / "there").exists():
        time.sleep(0.01)
    forever()
    """
    with owner(tmp_path, code) as killed:
        killed.kill()
        killed.wait()
        eventually(lambda: not reapers(tmp_path), "the reaper ends")
    assert ours(tmp_path) == []
    assert leases(tmp_path) == []


def test_what_a_living_owner_holds_is_not_touched(tmp_path: Path) -> None:
    with owner(tmp_path, FAMILY + "forever()"):
        before = sorted(ours(tmp_path))
        assert {found.state for found in sweep(str(tmp_path / "state" / "leases"))} == {"held"}
        assert sorted(ours(tmp_path)) == before
        assert len(list(tmp_path.glob("instar-*/inside/log"))) == 1
        assert len(leases(tmp_path)) == 2
    eventually(lambda: not reapers(tmp_path), "the reaper ends")


def test_ctrl_c_for_the_whole_group_and_a_stop_for_all_leave_the_reaper_at_work(tmp_path: Path) -> None:
    with owner(tmp_path, FAMILY + "forever()") as stopped:
        (reaper,) = reapers(tmp_path)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.kill(reaper, number)
        os.killpg(stopped.pid, signal.SIGINT)
        stopped.wait()
        eventually(lambda: not reapers(tmp_path), "the reaper ends")
    assert ours(tmp_path) == []
    assert leases(tmp_path) == []


def test_a_reaper_holds_no_folder_output_or_secret_of_its_owner(tmp_path: Path) -> None:
    with owner(tmp_path, "FolderLease(within=place)\nforever()", MY_API_KEY="a secret") as watched:
        (reaper,) = reapers(tmp_path)
        here = Path(f"/proc/{reaper}")
        assert os.readlink(here / "cwd") == "/"
        held = {os.readlink(entry).partition(":")[0] for entry in (here / "fd").iterdir()}
        assert held <= {"pipe", "/dev/null", "anon_inode"}
        assert b"a secret" not in (here / "environ").read_bytes()
        sessions = [
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3] for pid in (reaper, watched.pid)
        ]
        assert sessions[0] != sessions[1]
    eventually(lambda: not reapers(tmp_path), "the reaper ends")


def test_a_reaper_that_was_killed_is_replaced_with_the_next_lease(tmp_path: Path) -> None:
    code = """
    FolderLease(within=place)
    (place / "first").touch()
    while not (place / "go").exists():
        time.sleep(0.01)
    FolderLease(within=place)
    forever()
    """
    (tmp_path / "ready").touch()
    with owner(tmp_path, code) as killed:
        eventually((tmp_path / "first").exists, "the first lease")
        (reaper,) = reapers(tmp_path)
        os.kill(reaper, signal.SIGKILL)
        eventually(lambda: not reapers(tmp_path), "the reaper dies")
        (tmp_path / "go").touch()
        eventually(lambda: len(leases(tmp_path)) == 2, "the second lease")
        killed.kill()
        killed.wait()
        eventually(lambda: not leases(tmp_path), "both leases are gone")
        eventually(lambda: not reapers(tmp_path), "the second reaper ends")
    assert list(tmp_path.glob("instar-*")) == []


def test_an_owner_that_closes_all_files_it_knows_nothing_of_keeps_its_things(tmp_path: Path) -> None:
    with owner(tmp_path, FAMILY + "os.closerange(3, 1000)\nforever()") as killed:
        assert len(reapers(tmp_path)) == 1
        assert len(ours(tmp_path)) == 4
        assert len(leases(tmp_path)) == 2
        killed.kill()
        killed.wait()
        eventually(lambda: not reapers(tmp_path), "the reaper ends")
    assert ours(tmp_path) == []


def test_a_forked_child_of_the_owner_does_not_keep_the_reaper_waiting(tmp_path: Path) -> None:
    code = """
    folder = FolderLease(within=place)
    if not os.fork():
        (place / "forked").write_text(str(os.getpid()))
        time.sleep(600)
    while not (place / "forked").exists():
        time.sleep(0.01)
    forever()
    """
    with owner(tmp_path, code) as killed:
        killed.kill()
        killed.wait()
        eventually(lambda: not reapers(tmp_path), "the reaper ends")
        assert leases(tmp_path) == []
        eventually(lambda: (tmp_path / "forked").read_text(), "the child's pid")
        os.kill(int((tmp_path / "forked").read_text()), signal.SIGKILL)


def test_without_a_pidfd_the_pipe_tells_of_the_end(tmp_path: Path) -> None:
    """As on macOS and on old kernels. The pipe of a test stands for that of an owner."""
    code = """
import os, sys, time, types
del os.pidfd_open
from envs import process, reaper
def sleep(seconds):
    print("looks", flush=True)
    time.sleep(0.01)
reaper.time = types.SimpleNamespace(sleep=sleep)
start = process.started(int(sys.argv[1]))
print("begins", flush=True)
reaper._await_end(int(sys.argv[1]), start)
print("ended", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as watched:
        words = [sys.executable, "-c", code, str(watched.pid)]
        reaper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        with reaper:
            assert reaper.stdin is not None
            assert reaper.stdout is not None
            assert reaper.stdout.readline() == "begins\n"
            reaper.stdin.close()
            assert [reaper.stdout.readline() for _ in range(3)] == ["looks\n"] * 3  # no pipe, but the owner lives
            watched.kill()
            watched.wait()
            assert reaper.stdout.read().splitlines()[-1] == "ended"


@pytest.mark.slow
def test_fifty_owners_killed_at_once_leave_nothing(tmp_path: Path) -> None:
    code = """
    import threading
    for number in range(50):
        if not os.fork():
            folder = FolderLease(within=place)
            held = ProcessLease("a server", grace=0.2)
            child = subprocess.Popen(["sleep", "600.25"], env=held.environ(), start_new_session=True, cwd=folder.path)
            held.started(child.pid)
            (place / f"there-{number}").touch()
            time.sleep(600)
    while len(list(place.glob("there-*"))) < 50:
        time.sleep(0.05)
    forever()
    """
    with owner(tmp_path, code) as first:
        assert len(leases(tmp_path)) == 100
        assert len(reapers(tmp_path)) == 50
        os.killpg(first.pid, signal.SIGKILL)
        eventually(lambda: not reapers(tmp_path), "all reapers end")
    assert ours(tmp_path) == []
    assert running("600.25") == []
    assert leases(tmp_path) == []
    assert list(tmp_path.glob("instar-*")) == []
