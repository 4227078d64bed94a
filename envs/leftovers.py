"""What dead owners left behind: read, judged, and taken away; what cannot be judged is left alone and named.

A lease is one small JSON file, written before what it stands for is made. Its owner is a process, known by pid, start
time, boot, machine and pid namespace. Only what a *dead* owner left is touched, and all that is done may be done
twice, so a reaper and `instar clean` can meet over the same lease. Stdlib only: the reaper lives on this.
"""

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator

from envs import process, removal

FORMAT = 1
#: The variable that names another folder than ~/.local/state/instar for what outlives a process.
STATE = "INSTAR_STATE"
_LARGEST = 65536  # bytes of a lease
_STALE = 3600.0  # seconds after which a lease that was never finished being written is rubbish


class Lease:
    """What a lease's file says."""

    __slots__ = ("id", "kind", "made", "note", "owner", "resource")

    def __init__(
        self, id: str, kind: str, resource: dict[str, object], owner: dict[str, object], note: str, made: float
    ) -> None:
        self.id, self.kind, self.resource, self.owner, self.note, self.made = id, kind, resource, owner, note, made

    def text(self) -> str:
        """The file's content."""
        fields = {name: getattr(self, name) for name in ("id", "kind", "resource", "owner", "note", "made")}
        return json.dumps({"format": FORMAT, **fields})

    def describe(self) -> str:
        """What it stands for, in words."""
        return KINDS[self.kind].describe(self.resource) + (f" ({self.note})" if self.note else "")


class Outcome:
    """What became of one lease: `state` is removed, found (in a dry run), failed, left, or held by a living owner."""

    __slots__ = ("kind", "lease", "state", "what", "why")

    def __init__(self, lease: str, kind: str, state: str, what: str, why: str = "") -> None:
        self.lease, self.kind, self.state, self.what, self.why = lease, kind, state, what, why


class Kind:
    """One kind of thing that can be left behind. `take` removes many and returns what it could not, by id of lease."""

    __slots__ = ("describe", "take")

    def __init__(
        self,
        describe: Callable[[dict[str, object]], str],
        take: Callable[[dict[str, dict[str, object]]], dict[str, str]],
    ) -> None:
        self.describe, self.take = describe, take


#: All kinds, in the order of removal: what writes into a folder ends before the folder goes.
KINDS = {
    "process": Kind(removal.describe_process, removal.end_processes),
    "container": Kind(removal.describe_container, removal.remove_containers),
    "folder": Kind(removal.describe_folder, removal.remove_folders),
}


def owner() -> dict[str, object]:
    """This process, as the owner of leases."""
    return {"pid": os.getpid(), "start": process.started(os.getpid()), **process.here()}


def sweep(folder: str, *, dry: bool = False, of: Callable[[Lease], bool] = lambda lease: True) -> list[Outcome]:
    """Remove what dead owners left by the leases in `folder`, of those that `of` picks; only look if `dry`."""
    outcomes, dead, boot = [], [], process.here()["boot"]
    for found in _read(folder):
        if isinstance(found, Outcome):
            outcomes.append(found)
        elif of(found):
            alive, why = _judge(found.owner)
            if alive is False:
                dead.append(found)
            else:
                state = "held" if alive else "left"
                outcomes.append(Outcome(found.id, found.kind, state, found.describe(), why))
    for name, kind in KINDS.items():
        leases = [lease for lease in dead if lease.kind == name]
        # No process outlives its boot, and a pid and start time of an earlier one may be somebody's now.
        there = {lease.id: lease.resource for lease in leases if name != "process" or lease.owner["boot"] == boot}
        failed = {} if dry or not there else kind.take(there)
        for lease in leases:
            why = failed.get(lease.id, "")
            if not dry and not why:
                forget(folder, lease.id)
            state = "failed" if why else "found" if dry else "removed"
            outcomes.append(Outcome(lease.id, name, state, lease.describe(), why))
    return outcomes


def path_of(folder: str, id: str) -> str:
    """The file of lease `id`."""
    return os.path.join(folder, f"{id}.json")


def forget(folder: str, id: str) -> None:
    """Remove a lease's file, which may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path_of(folder, id))


def trusted(folder: str) -> None:
    """Raise PermissionError for a folder that somebody else could write leases into: they say what is removed."""
    found = os.stat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(
            f"{folder} belongs to another user, or others may write into it, and leases say what is removed. "
            f"Cure: chown and chmod 700 it, or set {STATE} to a folder of your own"
        )


def _read(folder: str) -> Iterator[Lease | Outcome]:
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    trusted(folder)
    for name in names:
        path = os.path.join(folder, name)
        if name.endswith(".tmp"):
            _drop_rubbish(path)
        elif name.endswith(".json"):
            try:
                yield _parse(path, name.removesuffix(".json"))
            except FileNotFoundError:  # released just now
                continue
            except (OSError, ValueError, RecursionError) as error:
                why = f"{path} is no lease that this version reads: {error}"
                cure = "If you know that nothing needs it, delete the file."
                yield Outcome(name.removesuffix(".json"), "", "left", path, f"{why}. {cure}")


def _parse(path: str, id: str) -> Lease:
    """Raises ValueError for a file that is no lease of ours."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise ValueError("it is no file of yours")
        body = json.loads(file.read(_LARGEST))
    if not isinstance(body, dict) or not isinstance(body.get("format"), int):
        raise ValueError("it has no format number")
    if body["format"] > FORMAT:
        raise ValueError(f"its format is {body['format']}, from a newer instar")
    wanted = {"id": str, "kind": str, "resource": dict, "owner": dict, "note": str, "made": float}
    for name, kind in wanted.items():
        if not isinstance(body.get(name), kind):
            raise ValueError(f"its {name} is missing or of the wrong kind")
    held = body["owner"]
    texts = all(isinstance(held.get(name), str) for name in ("start", "boot", "machine", "namespace"))
    if not texts or not isinstance(held.get("pid"), int):
        raise ValueError("its owner is incomplete")
    if body["id"] != id:
        raise ValueError("its id is not its name")
    if body["kind"] not in KINDS:
        raise ValueError(f"it is of the unknown kind {body['kind']!r}, perhaps from a newer instar")
    return Lease(**{name: body[name] for name in wanted})


def _judge(held: dict[str, object]) -> tuple[bool | None, str]:
    """Whether an owner lives, None if that cannot be told, and why."""
    now = process.here()
    gone = "If it is gone for good, delete the lease's file."
    if held["machine"] != now["machine"]:
        return None, f"its owner ran on another machine ({held['machine']}). {gone}"
    if held["boot"] != now["boot"]:
        return False, "the machine has been started anew since"
    if held["namespace"] != now["namespace"]:
        return None, f"its owner runs in another container ({held['namespace']}). {gone}"
    if process.started(int(str(held["pid"]))) == held["start"]:
        return True, f"process {held['pid']} holds it"
    return False, f"process {held['pid']} has ended"


def _drop_rubbish(path: str) -> None:
    """A lease that was being written when its owner was killed stands for nothing that was made."""
    with contextlib.suppress(FileNotFoundError):
        if time.time() - os.stat(path).st_mtime > _STALE:
            os.unlink(path)
