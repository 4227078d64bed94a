"""What must not outlive us carries a lease: a small file, written before the thing is made, that says how to remove it.

Whoever closes the thing gives the lease back. When its owner ends without doing so, by SIGKILL too, a reaper (one
process for each owner, see `envs.reaper`) removes what is left; when that is gone as well, `instar clean` does. So a
thing is leased first and made then, and if the lease cannot be written, nothing is made.
"""

import contextlib
import itertools
import os
import secrets
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from envs import leftovers, process, removal
from envs.leftovers import STATE

#: What a container's engine must be told to be the same one later.
_ENGINE_NAMES = ("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST")
#: What the reaper sees of our environment: nothing secret, and not the mark of a lease that we ourselves live under.
_REAPER_NAMES = ("PATH", "HOME", "TMPDIR", "LANG", "XDG_RUNTIME_DIR", "DOCKER_CONFIG", *_ENGINE_NAMES)
#: Loads our few modules without the package's own imports, which cost more than all of the reaper.
_BOOT = (
    "import sys,types;p=types.ModuleType('envs');p.__path__=[sys.argv.pop(1)];sys.modules['envs']=p;"
    "from envs.reaper import main;main()"
)
_numbers = itertools.count(1)
_reapers: dict[str, int] = {}  # folder of leases -> our end of its reaper's pipe
_lock = threading.Lock()


class LeaseError(OSError):
    """A lease could not be written, or what it stands for could not be removed; the message says what cures it."""


def state_folder() -> Path:
    """Where leases are: `$INSTAR_STATE`, else `instar` in `$XDG_STATE_HOME` or ~/.local/state; with `leases` below."""
    if named := os.environ.get(STATE):
        return Path(named).expanduser().absolute() / "leases"
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "instar" / "leases"


class Lease:
    """Stands for one thing. `release` when it is gone; `close`, or the end of a `with`, removes it first.

    Making one raises LeaseError, before anything else is made, when it cannot be written down or guarded.
    """

    kind = ""

    def __init__(self, note: str = "", **resource: Any) -> None:
        self.folder = str(state_folder())
        self._pid = os.getpid()
        self._closed = False
        held = leftovers.owner()
        if held["start"] is None:
            raise LeaseError("this system tells no process's start time (no /proc, no ps), and leases need it")
        self.id = f"{self._pid}-{next(_numbers)}-{secrets.token_hex(8)}"
        self._record = leftovers.Lease(self.id, self.kind, self._named(resource), held, note, time.time())
        self._write()
        try:
            _guard(self.folder, self._pid, str(held["start"]))
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Forget it: the thing is gone, or never was. Idempotent; in a forked child nothing happens."""
        if os.getpid() == self._pid and not self._closed:
            self._closed = True
            leftovers.forget(self.folder, self.id)

    def close(self) -> None:
        """Remove the thing, then forget it. Raises LeaseError when it cannot be removed; the lease stays then."""
        close_all([self])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _named(self, resource: dict[str, Any]) -> dict[str, object]:
        """The resource, with what follows from the lease's id."""
        return resource

    def _write(self) -> None:
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            leftovers.trusted(self.folder)
            path = leftovers.path_of(self.folder, self.id)
            part = f"{path}.tmp"
            try:
                with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(self._record.text())
                    file.flush()
                    os.fsync(file.fileno())  # a full disk may say so only now
                os.replace(part, path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part)
                raise
        except OSError as error:
            why = error.strerror or str(error)
            raise LeaseError(
                f"the lease of a {self.kind} cannot be written to {self.folder}: {why}. Without one it could be left "
                f"behind. Cure: make room there, or set {STATE} to a folder that you can write to"
            ) from error


class ProcessLease(Lease):
    """A process and all that it starts. Start it with `environ` and in a session of its own, then say `started`.

    `grace`: seconds between SIGTERM and SIGKILL. Where there is no /proc (macOS) only the process group is found.
    """

    kind = "process"

    def __init__(self, note: str = "", grace: float = removal.GRACE) -> None:
        super().__init__(note, grace=grace)

    def environ(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """`base` (default: our environment) with the mark by which the reaper knows all that descends from it."""
        return {**(os.environ if base is None else base), process.MARK: self.id}

    def started(self, pid: int) -> None:
        """The leader of the new group is `pid`. Raises LeaseError; `close` ends the process in that case, too."""
        self._record.resource |= {"pid": pid, "start": process.started(pid)}
        self._write()


class FolderLease(Lease):
    """A temporary folder, made here (in `within`, default: the system's) and removed with all that is in it.

    `path` is for you to use; the file that makes it ours lies outside of it.
    """

    kind = "folder"

    def __init__(self, note: str = "", within: str | os.PathLike[str] | None = None) -> None:
        self._within = os.path.realpath(within if within is not None else tempfile.gettempdir())
        super().__init__(note)
        top = str(self._record.resource["path"])
        self.path = os.path.join(top, removal.INSIDE)
        try:
            os.mkdir(top, 0o700)
            with open(os.path.join(top, removal.MARKER), "x") as file:
                file.write(self.id)
            os.mkdir(self.path, 0o700)
        except OSError as error:
            self.close()
            raise LeaseError(
                f"no temporary folder can be made in {self._within}: {error.strerror}. Cure: make room there, or set "
                "TMPDIR to a folder that you can write to"
            ) from error

    def _named(self, resource: dict[str, Any]) -> dict[str, object]:
        return {**resource, "path": os.path.join(self._within, f"instar-{self.id}")}


class ContainerLease(Lease):
    """A container of docker or podman: give `arguments` to its `run` or `create`, or `name` and `labels` to an SDK."""

    kind = "container"

    def __init__(self, note: str = "", engine: str = "docker") -> None:
        if engine not in removal.ENGINES:
            raise ValueError(f"engine cannot be {engine!r}. Cure: {' or '.join(removal.ENGINES)}")
        told = {name: os.environ[name] for name in _ENGINE_NAMES if name in os.environ}
        super().__init__(note, engine=engine, environ=told)

    @property
    def name(self) -> str:
        """The container's name."""
        return f"instar-{self.id}"

    @property
    def labels(self) -> dict[str, str]:
        """The label by which it is found again."""
        return {removal.LABEL: self.id}

    @property
    def arguments(self) -> list[str]:
        """The same for a command line."""
        return ["--name", self.name, "--label", f"{removal.LABEL}={self.id}"]

    def _named(self, resource: dict[str, Any]) -> dict[str, object]:
        return {**resource, "label": self.id}


def close_all(leases: Iterable[Lease]) -> None:
    """Close many at once, which for processes is as quick as one. Raises LeaseError after all that can be closed is."""
    leases = [lease for lease in leases if os.getpid() == lease._pid and not lease._closed]
    said = []
    for name, kind in leftovers.KINDS.items():
        some = [lease for lease in leases if lease.kind == name]
        failed = kind.take({lease.id: lease._record.resource for lease in some}) if some else {}
        for lease in some:
            if lease.id in failed:
                said.append(f"{lease._record.describe()} could not be removed: {failed[lease.id]}")
            else:
                lease.release()
    if said:
        raise LeaseError("; ".join(said))


def _guard(folder: str, pid: int, start: str) -> None:
    """See to it that a reaper of ours watches `folder`. Raises LeaseError."""
    with _lock:
        held = _reapers.get(folder)
        if held is not None:
            if _has_reader(held):
                return
            os.close(_reapers.pop(folder))  # somebody killed it
        words = [sys.executable or "", "-I", "-S", "-c", _BOOT, os.path.dirname(__file__), folder, str(pid), start]
        theirs, ours = os.pipe()
        try:
            env = {name: os.environ[name] for name in _REAPER_NAMES if name in os.environ}
            done = subprocess.run(
                words, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, cwd="/",
                start_new_session=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise OSError(f"it ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:].strip()}")
        except OSError as error:
            os.close(ours)
            raise LeaseError(
                f"the reaper, which removes what a killed process leaves, cannot be started with {sys.executable!r}: "
                f"{error}. Cure: see whether a process may be started here at all"
            ) from error
        finally:
            os.close(theirs)
        _reapers[folder] = ours


def _has_reader(pipe: int) -> bool:
    watched = select.poll()
    watched.register(pipe, 0)
    return not watched.poll(0)


def _forked() -> None:
    """In a forked child: its parent's reaper is not its own, and its end of the pipe would keep that one waiting."""
    global _lock
    _lock = threading.Lock()
    for held in _reapers.values():
        os.close(held)
    _reapers.clear()


os.register_at_fork(after_in_child=_forked)
