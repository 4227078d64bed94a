"""A lease is written before its thing is made and removes only what is certainly the dead owner's."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envs import leftovers, process
from envs.lease import ContainerLease, FolderLease, LeaseError, ProcessLease, state_folder
from envs.leftovers import Outcome, sweep

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INSTAR_STATE", str(tmp_path / "state"))
    return tmp_path / "state" / "leases"


def write(state: Path, **changes: Any) -> Path:
    """The lease of a folder that a dead process owned, with `changes`; a dotted name changes a part of a part."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    id = str(changes.pop("id", "1-1-aa"))
    body: dict[str, Any] = {
        "format": 1, "id": id, "kind": "folder", "note": "a test", "made": time.time(),
        "resource": {"path": str(state.parent / f"instar-{id}")},
        "owner": {**leftovers.owner(), "start": "1"},
    }  # fmt: skip
    for name, value in changes.items():
        part, _, rest = name.partition("__")
        if rest:
            body[part][rest] = value
        else:
            body[part] = value
    path = state / f"{id}.json"
    path.write_text(json.dumps(body))
    return path


def folder_of(lease: Path, marker: str | None = None) -> Path:
    """The folder that the lease in the file `lease` is about, made as its owner would have."""
    made = lease.parent.parent / f"instar-{lease.stem}"
    (made / "inside").mkdir(parents=True)
    (made / "made-by-instar").write_text(lease.stem if marker is None else marker)
    return made


def only(outcomes: list[Outcome]) -> Outcome:
    assert len(outcomes) == 1, [(found.what, found.state, found.why) for found in outcomes]
    return outcomes[0]


def test_a_folder_is_leased_while_it_is_open_and_gone_with_its_lease_afterwards(state: Path) -> None:
    with FolderLease("a test") as folder:
        (Path(folder.path) / "file").write_text("text")
        held = only(sweep(str(state)))
        assert (held.state, held.kind) == ("held", "folder")
        assert "a test" in held.what
        assert (Path(folder.path) / "file").exists()
        assert state.stat().st_mode & 0o777 == 0o700
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in state.iterdir())
    assert not Path(folder.path).parent.exists()
    assert list(state.iterdir()) == []


def test_the_lease_is_there_before_the_folder(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    mkdir = os.mkdir

    def watched(path: Any, *rest: Any) -> None:
        if Path(path).name.startswith("instar-"):
            made.append((state / f"{Path(path).name.removeprefix('instar-')}.json").exists())
        mkdir(path, *rest)

    monkeypatch.setattr(os, "mkdir", watched)
    FolderLease(within=tmp_path).close()
    assert made == [True]


def test_a_folder_that_cannot_be_made_leaves_no_lease(state: Path, tmp_path: Path) -> None:
    with pytest.raises(LeaseError, match=r"Cure: .*TMPDIR"):
        FolderLease(within=tmp_path / "nowhere")
    assert list(state.iterdir()) == []


def test_a_full_disk_is_told_before_anything_is_made(tmp_path: Path) -> None:
    code = (
        "import sys; from envs.lease import FolderLease, LeaseError\n"
        "try: FolderLease(within=sys.argv[1])\nexcept LeaseError as error: print(error)"
    )

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(tmp_path)], capture_output=True, text=True, check=True,
        preexec_fn=no_room, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert "cannot be written" in done.stdout
    assert "Cure: make room" in done.stdout
    assert [file.name for file in tmp_path.rglob("*")] == ["state", "leases"]


@pytest.mark.parametrize("python", ["/bin/false", "/no/such/python", None])
def test_without_a_reaper_nothing_is_made(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(LeaseError, match=r"the reaper.*cannot be started"):
        FolderLease(within=tmp_path)
    assert list(state.iterdir()) == []
    assert list(tmp_path.glob("instar-*")) == []


def test_where_nobody_can_tell_a_process_from_another_nothing_is_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_has_proc", lambda: False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LeaseError, match="no process's start time"):
        FolderLease()


def test_a_folder_of_leases_that_others_may_write_into_is_not_used(state: Path, tmp_path: Path) -> None:
    folder_of(write(state))
    state.chmod(0o777)
    with pytest.raises(LeaseError, match="chmod 700"):
        FolderLease(within=tmp_path)
    with pytest.raises(PermissionError, match="chmod 700"):
        sweep(str(state))
    assert (state.parent / "instar-1-1-aa").exists()


def test_the_state_folder_is_named_by_the_first_that_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_folder() == tmp_path / "state" / "leases"
    monkeypatch.delenv("INSTAR_STATE")
    assert state_folder() == tmp_path / "xdg" / "instar" / "leases"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_folder() == Path.home() / ".local" / "state" / "instar" / "leases"


def test_what_a_dead_owner_left_is_removed_with_its_lease(state: Path) -> None:
    lease = write(state)
    made = folder_of(lease)
    assert only(sweep(str(state), dry=True)).state == "found"
    assert made.exists()
    found = only(sweep(str(state)))
    assert (found.state, found.what) == ("removed", f"folder {made} (a test)")
    assert not made.exists()
    assert not lease.exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": 2}, "newer instar"),
        ({"format": "1"}, "no format"),
        ({"kind": "spaceship"}, "unknown kind 'spaceship'"),
        ({"resource": []}, "resource"),
        ({"owner__pid": "7"}, "owner is incomplete"),
        ({"owner__start": None}, "owner is incomplete"),
        ({"owner__machine": "another"}, "another machine"),
        ({"owner__namespace": "pid:[1]"}, "another container"),
    ],
)
def test_what_cannot_be_judged_is_left_alone_and_named(state: Path, changes: dict[str, Any], why: str) -> None:
    lease = write(state, **changes)
    made = folder_of(lease)
    found = only(sweep(str(state)))
    assert found.state == "left"
    assert why in found.why
    assert lease.exists()
    assert made.exists()


@pytest.mark.parametrize("text", ["", "{", "[" * 50_000, '"text"', "\0\xff", '{"format": 1}'])
def test_a_file_that_is_no_lease_is_left_alone_and_named(state: Path, text: str) -> None:
    lease = write(state)
    lease.write_text(text, encoding="latin-1")
    found = only(sweep(str(state)))
    assert (found.state, found.what) == ("left", str(lease))
    assert lease.exists()


def test_a_link_or_a_pipe_among_the_leases_is_left_alone(state: Path) -> None:
    real = write(state)
    real.rename(state.parent / "elsewhere.json")
    real.symlink_to(state.parent / "elsewhere.json")
    os.mkfifo(state / "2-2-bb.json")
    assert [found.state for found in sweep(str(state))] == ["left", "left"]


def test_a_lease_under_the_name_of_another_is_left_alone(state: Path) -> None:
    lease = write(state)
    lease.rename(state / "2-2-bb.json")
    assert only(sweep(str(state))).state == "left"


def test_only_old_rubbish_of_unfinished_writing_is_removed(state: Path) -> None:
    write(state)
    old, new = state / "1-1-old.json.tmp", state / "1-1-new.json.tmp"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    sweep(str(state))
    assert [file.name for file in state.iterdir()] == [new.name]


def test_a_recycled_pid_is_never_killed(state: Path) -> None:
    """Its number is that of a leased process, but it started at another time."""
    with subprocess.Popen(SLEEP, start_new_session=True) as stranger:
        write(state, kind="process", resource={"pid": stranger.pid, "start": "1", "grace": 0})
        assert only(sweep(str(state))).state == "removed"
        assert stranger.poll() is None
        stranger.kill()


def test_a_signal_reaches_only_the_process_that_was_seen() -> None:
    with subprocess.Popen(SLEEP) as child:
        seen = next(seen for seen in process.living() if seen.pid == child.pid)
        assert process.send(process.Seen(seen.pid, seen.group, "1"), 9) is False
        assert child.poll() is None
        assert process.send(seen, 9) is True
        assert child.wait() == -9


def test_a_group_whose_leader_has_gone_is_ended_only_if_a_member_has_our_mark(state: Path) -> None:
    leave = f"import subprocess, sys; subprocess.Popen({SLEEP!r}); print(flush=True)"
    members = []
    for id, mark in (("1-1-aa", "1-1-aa"), ("2-2-bb", "another")):
        env = {**os.environ, process.MARK: mark}
        with subprocess.Popen([sys.executable, "-c", leave], start_new_session=True, env=env) as leader:
            leader.wait()
        (member,) = [seen for seen in process.living() if seen.group == leader.pid]
        members.append(member)
        write(state, id=id, kind="process", resource={"pid": leader.pid, "start": "1", "grace": 0})
    assert [found.state for found in sweep(str(state))] == ["removed", "removed"]
    assert process.started(members[0].pid) is None
    assert process.started(members[1].pid) == members[1].start
    process.send(members[1], 9)


def test_after_a_reboot_folders_are_removed_and_no_process_is_touched(state: Path) -> None:
    with subprocess.Popen(SLEEP, start_new_session=True) as stranger:
        held = {"pid": stranger.pid, "start": process.started(stranger.pid), "grace": 0}
        write(state, id="2-2-bb", kind="process", resource=held, owner__boot="an earlier one")
        lease = write(state, owner__boot="an earlier one", owner__pid=os.getpid(), owner__start="whatever")
        made = folder_of(lease)
        assert [found.state for found in sweep(str(state))] == ["removed", "removed"]
        assert not made.exists()
        assert stranger.poll() is None
        stranger.kill()


def test_closing_a_process_lease_ends_all_that_descends_from_it(state: Path) -> None:
    code = f"import subprocess, time; subprocess.Popen({SLEEP!r}, start_new_session=True); print(flush=True)"
    words = [sys.executable, "-c", f"{code}; time.sleep(600)"]
    with (
        ProcessLease("a test", grace=0) as lease,
        subprocess.Popen(words, start_new_session=True, env=lease.environ(), stdout=subprocess.PIPE) as child,
    ):
        assert child.stdout is not None
        child.stdout.readline()
        lease.started(child.pid)
        marked = process.marks([seen.pid for seen in process.living()])
        descend = [pid for pid, mark in marked.items() if mark == lease.id]
        assert len(descend) == 2
        lease.close()
        assert child.wait() == -9
    assert [pid for pid in descend if process.started(pid) is not None] == []
    assert list(state.iterdir()) == []


def test_a_forked_child_gives_no_lease_of_its_parent_back(state: Path) -> None:
    with FolderLease() as folder:
        if (child := os.fork()) == 0:
            folder.close()
            folder.release()
            os._exit(0)
        os.waitpid(child, 0)
        assert Path(folder.path).exists()
        assert len(list(state.iterdir())) == 1


def test_the_environment_of_a_leased_process_is_what_was_given_and_the_mark(state: Path) -> None:
    with ProcessLease(grace=0) as lease:
        assert lease.environ({"A": "1"}) == {"A": "1", "INSTAR_LEASE": lease.id}


def test_where_there_is_no_proc_ps_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {seen.pid: seen.group for seen in process.living()}
    monkeypatch.setattr(process, "_has_proc", lambda: False)
    mine = process.started(os.getpid())
    assert mine is not None
    assert mine == process.started(os.getpid())
    assert {seen.pid: seen.group for seen in process.living()}[os.getpid()] == groups[os.getpid()]
    assert process.marks([os.getpid()]) == {}
    with subprocess.Popen(SLEEP) as child:
        seen = next(seen for seen in process.living() if seen.pid == child.pid)
        child.kill()
    assert process.started(child.pid) is None
    assert process.send(seen, 9) is False


DOCKER = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
[ -e "$(dirname "$0")/down" ] && { echo "Cannot connect to the daemon" >&2; exit 1; }
case "$1" in
  ps) cat "$(dirname "$0")/there" 2>/dev/null ;;
  rm) rm "$(dirname "$0")/there" ;;
esac
exit 0
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the command docker: no daemon can be counted on here. A container is the file `there`."""
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "docker").write_text(DOCKER)
    (bin / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    return bin


def test_a_container_is_found_by_its_label_and_removed(engine: Path, state: Path) -> None:
    with ContainerLease("a test") as lease:
        assert lease.arguments == ["--name", f"instar-{lease.id}", "--label", f"instar.lease={lease.id}"]
        (engine / "there").write_text("0123456789abcdef\n")
    assert not (engine / "there").exists()
    assert list(state.iterdir()) == []
    asked = (engine / "asked").read_text().splitlines()
    assert asked == [
        f"ps -aq --no-trunc --filter label=instar.lease={lease.id}",
        "rm --force --volumes 0123456789abcdef",
    ]


def test_an_engine_that_is_down_keeps_the_lease_and_says_so(engine: Path, state: Path) -> None:
    write(state, kind="container", resource={"engine": "docker", "label": "1-1-aa"})
    (engine / "down").touch()
    found = only(sweep(str(state)))
    assert (found.state, found.why) == ("failed", "docker: Cannot connect to the daemon")
    (engine / "down").unlink()
    assert only(sweep(str(state))).state == "removed"


def test_a_lease_cannot_name_another_program_as_its_engine(state: Path) -> None:
    write(state, kind="container", resource={"engine": "/bin/rm", "label": "x"})
    found = only(sweep(str(state)))
    assert found.state == "failed"
    with pytest.raises(ValueError, match="docker or podman"):
        ContainerLease(engine="/bin/rm")
