"""A process is its pid and the time it started, on one boot of one machine: a pid alone is soon somebody else's.

What is killed is first known for certain. So nothing here takes a pid's word: a start time that differs is another
process, and a machine, boot or pid namespace that differs is one that we cannot judge. Where there is no /proc (macOS)
`ps` answers, to the second. Stdlib only, and little of it: the reaper lives on this.
"""

import os
import signal
from collections.abc import Collection, Iterator

#: The variable that a leased process and all that descend from it carry; its value is the lease's id.
MARK = "INSTAR_LEASE"
_PROC = "/proc"
_ZOMBIE = ("Z", "X")


class Seen:
    """One living process: pid, process group, and start time (ticks since boot; with `ps` a date)."""

    __slots__ = ("group", "pid", "start")

    def __init__(self, pid: int, group: int, start: str) -> None:
        self.pid, self.group, self.start = pid, group, start


def here() -> dict[str, str]:
    """Where this process runs: machine, boot and pid namespace; "" for what this system does not tell."""
    return {"machine": _machine(), "boot": _boot(), "namespace": _namespace()}


def started(pid: int) -> str | None:
    """When process `pid` started; None when none lives under that number (one that only waits to be buried is dead)."""
    found = _one(pid)
    return found.start if found else None


def living() -> Iterator[Seen]:
    """Every living process that can be seen from here."""
    if not _has_proc():
        yield from _by_ps("-A")
        return
    for name in os.listdir(_PROC):
        if name.isdigit() and (found := _one(int(name))) is not None:
            yield found


def marks(pids: Collection[int]) -> dict[int, str]:
    """The mark of each of the `pids` that carries one. Only our own can be read, and none where there is no /proc."""
    found: dict[int, str] = {}
    wanted = f"{MARK}=".encode()
    for pid in pids if _has_proc() else ():
        try:
            with open(f"{_PROC}/{pid}/environ", "rb") as file:
                held = file.read()
        except OSError:  # it ended, or belongs to somebody else
            continue
        if wanted in held:
            for entry in held.split(b"\0"):
                if entry.startswith(wanted):
                    found[pid] = entry[len(wanted) :].decode("ascii", "replace")
    return found


def send(seen: Seen, number: int) -> bool:
    """Give exactly this process a signal; False when it is gone. Raises PermissionError when it is not ours."""
    try:
        held = os.pidfd_open(seen.pid) if hasattr(os, "pidfd_open") else None  # keeps the number from being reused
    except ProcessLookupError:
        return False
    except OSError:  # an older kernel
        held = None
    try:
        if started(seen.pid) != seen.start:
            return False
        if held is None:
            os.kill(seen.pid, number)
        else:
            signal.pidfd_send_signal(held, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        if held is not None:
            os.close(held)


def _has_proc() -> bool:
    return os.path.exists(f"{_PROC}/self/stat")


def _one(pid: int) -> Seen | None:
    if not _has_proc():
        return next(_by_ps("-p", str(pid)), None)
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # a name may hold blanks and brackets
    if len(fields) < 20 or fields[0].decode() in _ZOMBIE:
        return None
    return Seen(pid, int(fields[2]), fields[19].decode())


def _by_ps(*which: str) -> Iterator[Seen]:
    import subprocess

    words = ["ps", *which, "-o", "pid=", "-o", "pgid=", "-o", "stat=", "-o", "lstart="]
    try:
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    except FileNotFoundError:  # nobody can tell
        return
    for line in done.stdout.splitlines():
        pid, group, state, start = line.split(None, 3)
        if not state.startswith(_ZOMBIE):
            yield Seen(int(pid), int(group), start.strip())


def _machine() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        if text := _line(path):
            return text
    return os.uname().nodename


def _boot() -> str:
    if text := _line(f"{_PROC}/sys/kernel/random/boot_id"):
        return text
    import subprocess

    try:
        asked = ["sysctl", "-n", "kern.boottime"]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink(f"{_PROC}/self/ns/pid")
    except OSError:
        return ""


def _line(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""
