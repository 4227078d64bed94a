"""Ray itself, started for one run or joined where it runs: quiet, private as far as Ray can be, and gone afterwards.

Ray changes how a process takes SIGTERM, prints what its own processes say, sends statistics home, and lets workers find
modules first in the folder where the driver was started, where a user's own `envs` may hide ours. None of that was
asked for, so it is put back, turned off or led astray here, and nowhere else.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from harness.runner import RunStopped

LOCAL = "local"
OBJECTS = 100 * 2**20  # bytes of Ray's object store on this machine: nothing large goes through it
REACH = 5.0  # seconds to reach a cluster's port
_CLUSTER = "start it with `ray start --head`, and give this command on one of its machines"


class ClusterError(RunStopped):
    """Ray or its workers cannot be had; the message says why and what to do."""


def address(on: str) -> str:
    """Ray's own address for `on`: LOCAL for `ray`, HOST:PORT or auto for `ray://...`. Raises ValueError."""
    if on == "ray":
        return LOCAL
    kind, _, rest = on.partition("://")
    if on != "auto" and (kind != "ray" or not rest):
        raise ValueError(f"{on!r} is no place to run on. Cure: ray (this machine), ray://HOST:PORT, or ray://auto")
    return rest or on


def library() -> Any:
    """The module `ray`. Raises ClusterError when it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ClusterError(
            f"this needs Ray ({error}). Cure: make ray, or pip install -e '.[ray]' in a checkout"
        ) from error
    return ray


def join(address: str, cpus: int | None, say: Callable[[str], None]) -> bool:
    """Connect to Ray at `address`, started with `cpus` if it is LOCAL; whether the connection is ours to end.

    One that this process has already is used, whatever the address. Raises ClusterError.
    """
    if address == LOCAL and "ray" not in sys.modules:  # it is read once; later versions of Ray have it by default
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # its ports are open to the network
    ray = library()
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {}
    if address == LOCAL:
        options = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECTS}
        say("starting Ray on this machine")
    else:
        _reach(address)
    try:
        with _own_signals(), contextlib.chdir(os.sep):
            ray.init(address=address, namespace="instar", log_to_driver=False, logging_level=logging.ERROR, **options)
    except (Exception, SystemExit) as error:
        ray.shutdown()
        cure = "see /tmp/ray/session_latest/logs" if address == LOCAL else _CLUSTER
        raise ClusterError(f"Ray at {address} cannot be used: {reason(error)}. Cure: {cure}") from error
    except BaseException:
        ray.shutdown()
        raise
    _quieten(ray)
    return True


def cpus() -> int:
    """The CPUs of the cluster that is joined."""
    return max(1, int(library().cluster_resources().get("CPU", 1)))


def reason(error: BaseException) -> str:
    """What Ray says of an error, in one line: its errors end in the line that tells most, or are one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    said = lines[0] if len(lines) == 1 or lines[-1] == lines[0] else f"{lines[0]} {lines[-1]}"
    return f"{type(error).__name__}: {said[:400]}".rstrip(": .")


def _reach(address: str) -> None:
    """Raise ClusterError when nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit():
        raise ClusterError(f"{address!r} is no HOST:PORT of a Ray cluster. Cure: such as ray://10.0.0.5:6379")
    if port == "10001":
        raise ClusterError(f"{address} is the port of Ray Client, over which no turns can come back. Cure: port 6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"no Ray cluster answers at {address}: {error}. Cure: {_CLUSTER}") from error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray sets a handler for SIGTERM; afterwards there is the one that was there before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _quieten(ray: Any) -> None:
    """End the thread in which Ray prints on standard output that a worker died: the journal says so already.

    There is no option for it; this is what `ray.shutdown` does, which may be done again.
    """
    found: Any = getattr(getattr(getattr(ray, "_private", None), "worker", None), "global_worker", None)
    if all(hasattr(found, name) for name in ("threads_stopped", "gcs_error_subscriber", "listener_thread")):
        found.threads_stopped.set()
        found.gcs_error_subscriber.close()
        found.listener_thread.join(5)
