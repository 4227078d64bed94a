"""How each kind of leftover is removed: only what is certainly ours, never by following a link, and twice if need be.

A process group is ours while its leader is the one we started, or while a member carries our mark; what left the
group is found by the mark. A folder is ours by its name, its owner and the file that we put into it, a container by its
label. Each function takes resources by id of lease and returns, by id, what it could not remove and why. Stdlib only.
"""

import contextlib
import errno
import os
import signal
import stat
import sys
import time

from envs import process

Resource = dict[str, object]
GRACE = 2.0  # seconds between SIGTERM and SIGKILL, unless the lease says otherwise
_PATIENCE = 10.0  # seconds that a process may take to end after SIGKILL
_PAUSE = 0.03  # seconds between two looks
_WRITES = 100  # times that a folder may be written into while it is being removed
#: The file that makes a folder ours; what the folder is used for lies beside it, in `inside`.
MARKER, INSIDE = "made-by-instar", "inside"
LABEL = "instar.lease"
ENGINES = ("docker", "podman")
_ENGINE_S = 60.0  # seconds that a container engine may take to answer
_SDK = """
import sys, docker
client = docker.from_env(timeout=50)
for found in client.containers.list(all=True, filters={"label": sys.argv[1]}, ignore_removed=True):
    found.remove(force=True, v=True)
"""


def describe_process(resource: Resource) -> str:
    """In words."""
    return f"process group {resource['pid']}" if "pid" in resource else "a process that was being started"


def end_processes(resources: dict[str, Resource]) -> dict[str, str]:
    """End all processes of these leases: SIGTERM, the lease's `grace` in seconds, then SIGKILL until none is left."""
    began, found_any, quiet = time.monotonic(), False, 0
    asked: set[int] = set()
    refused: dict[str, str] = {}
    while True:
        found = _members(resources)
        found_any = found_any or bool(found)
        quiet = 0 if found else quiet + 1
        # Something may be between fork and exec, and not carry its mark yet: then look twice.
        unsure = found_any or any("pid" not in resource for resource in resources.values())
        if not found and (quiet > 1 or not unsure):
            return {}
        late = time.monotonic() - began
        if found and late > _PATIENCE + max(_grace(resource) for resource in resources.values()):
            ids = {id for id, _ in found.values()}
            numbers = {id: sorted(pid for pid, (owner, _) in found.items() if owner == id) for id in ids}
            return {
                id: refused.get(id, f"still there after SIGKILL: {', '.join(map(str, pids))}")
                for id, pids in numbers.items()
            }
        for pid, (id, seen) in found.items():
            kill = late >= _grace(resources[id])
            if kill or pid not in asked:
                asked.add(pid)
                try:
                    process.send(seen, signal.SIGKILL if kill else signal.SIGTERM)
                except PermissionError:
                    refused[id] = f"process {pid} belongs to another user. Cure: sudo kill -9 {pid}"
        time.sleep(_PAUSE if quiet == 0 or found_any else 4 * _PAUSE)


def _grace(resource: Resource) -> float:
    value = resource.get("grace", GRACE)
    return float(value) if isinstance(value, (int, float)) else GRACE


def _members(resources: dict[str, Resource]) -> dict[int, tuple[str, process.Seen]]:
    """The living processes of these leases by pid: (id of the lease, what was seen)."""
    seen = {found.pid: found for found in process.living() if found.pid not in (1, os.getpid())}
    mark = process.marks(seen.keys())
    members = {pid: (id, seen[pid]) for pid, id in mark.items() if id in resources}
    for id, resource in resources.items():
        leader = resource.get("pid")
        if not isinstance(leader, int) or leader <= 1:
            continue
        first = seen.get(leader)
        # While a group has members its number is not given to another, so one that is ours makes all of it ours.
        proven = first.start == resource.get("start") if first else False
        proven = proven or any(owner == id and found.group == leader for owner, found in members.values())
        if proven:
            members |= {pid: (id, found) for pid, found in seen.items() if pid == leader or found.group == leader}
    return members


def describe_folder(resource: Resource) -> str:
    """In words."""
    return f"folder {resource.get('path')}"


def remove_folders(resources: dict[str, Resource]) -> dict[str, str]:
    """Remove these folders with all that is in them."""
    failed = {}
    for id, resource in resources.items():
        try:
            _remove_folder(id, str(resource.get("path")))
        except FileNotFoundError:  # gone, or somebody else is removing it
            if os.path.lexists(str(resource.get("path"))):
                failed[id] = "it changed while it was being removed. Cure: the same command again"
        except (OSError, ValueError) as error:
            failed[id] = str(error)
    return failed


def _remove_folder(id: str, path: str) -> None:
    """Raises ValueError for a folder that is not certainly ours, OSError for what the system refuses."""
    if not os.path.isabs(path) or os.path.basename(path) != f"instar-{id}":
        raise ValueError(f"{path} has no name of ours")
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ValueError(f"{path} is not the folder that was made: it is a link, a file, or another user's")
    if mounted := _mounts(path):
        raise ValueError(f"{mounted} is mounted there. Cure: umount {mounted}")
    _permit(path, None)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        marker = _content(top)  # none, or an empty one: its maker was killed in between
        if not marker and set(os.listdir(top)) - {MARKER}:
            raise ValueError(f"{path} holds files, but not ours ({MARKER}). Cure: look into it, and remove it yourself")
        if marker and marker != id:
            raise ValueError(f"the file {MARKER} in {path} is of another lease")
        _empty(top)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(MARKER, dir_fd=top)  # last: a removal that was cut off can go on
    finally:
        os.close(top)
    os.rmdir(path)


def _content(top: int) -> str | None:
    try:
        with open(os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=top), "rb") as file:
            return file.read(200).decode(errors="replace").strip()
    except FileNotFoundError:
        return None


def _empty(top: int) -> None:
    """Remove all in the folder that is open as `top`, but the marker. However deep, two levels are open at a time:
    what lies deeper is moved up first, and a name is never followed."""
    number = writes = 0
    while True:
        folders = []
        with os.scandir(top) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.name != MARKER:
                    _gone(entry.name, top)
        if not folders:
            return
        for name in folders:
            inner = _opened(name, top)
            if inner is None:
                continue
            try:
                with os.scandir(inner) as entries:
                    for entry in list(entries):
                        if entry.is_dir(follow_symlinks=False):
                            number += 1
                            with contextlib.suppress(FileNotFoundError):
                                _permit(entry.name, inner)
                                os.rename(entry.name, f".up-{os.getpid()}-{number}", src_dir_fd=inner, dst_dir_fd=top)
                        else:
                            _gone(entry.name, inner)
            finally:
                os.close(inner)
            try:
                os.rmdir(name, dir_fd=top)
            except FileNotFoundError:
                continue
            except OSError as error:  # somebody writes into it still
                writes += 1
                if error.errno != errno.ENOTEMPTY or writes > _WRITES:
                    raise


def _gone(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _opened(name: str, folder: int) -> int | None:
    try:
        _permit(name, folder)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        return None


def _permit(name: str, folder: int | None) -> None:
    """Let us read, change and enter the folder `name`, whatever its maker forbade."""
    if os.geteuid() == 0:
        return
    if not hasattr(os, "O_PATH"):
        os.chmod(name, 0o700, dir_fd=folder, follow_symlinks=False)
        return
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{held}", 0o700)
    finally:
        os.close(held)


def _mounts(path: str) -> str:
    """A mount point at or below `path`, "" if there is none: what it shows belongs to somebody else."""
    real = os.path.realpath(path)
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            points = [line.split(" ", 5)[4] for line in file]
    except OSError:
        return real if os.path.ismount(real) else ""
    for escaped, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        points = [point.replace(escaped, plain) for point in points]
    return next((point for point in points if point == real or point.startswith(f"{real}/")), "")


def describe_container(resource: Resource) -> str:
    """In words."""
    return f"{resource.get('engine')} container instar-{resource.get('label')}"


def remove_containers(resources: dict[str, Resource]) -> dict[str, str]:
    """Remove these containers, running or not, with their anonymous volumes."""
    failed = {}
    for id, resource in resources.items():
        if why := _remove_container(f"{LABEL}={id}", resource):
            failed[id] = why
    return failed


def _remove_container(label: str, resource: Resource) -> str:
    """Why it could not be removed; "" when there is none of that label any more."""
    import subprocess

    engine, asked = str(resource.get("engine")), resource.get("environ")
    if engine not in ENGINES:
        return f"the engine {engine!r} is not known"
    env = {**os.environ, **{str(k): str(v) for k, v in (asked.items() if isinstance(asked, dict) else ())}}

    def ask(*words: str) -> str:
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, errors="replace", timeout=_ENGINE_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise OSError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300])
        return done.stdout

    def listed() -> list[str]:
        return ask(engine, "ps", "-aq", "--no-trunc", "--filter", f"label={label}").split()

    try:
        found = listed()
        if not found:  # the engine may still be making it
            time.sleep(1.0)
            found = listed()
        if found:
            try:
                ask(engine, "rm", "--force", "--volumes", *found)
            except OSError:  # somebody else may have been quicker
                if listed():
                    raise
        return ""
    except FileNotFoundError:
        try:
            ask(sys.executable, "-c", _SDK, label)
            return ""
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"there is no command {engine}, and Python's docker library could not do it either: {error}"
    except subprocess.TimeoutExpired:
        return (
            f"{engine} did not answer within {_ENGINE_S:g} s. Cure: see whether its daemon is well, then instar clean"
        )
    except OSError as error:
        return f"{engine}: {error}"
