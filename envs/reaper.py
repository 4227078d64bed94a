"""The reaper waits for its owner's end, however it comes, and removes what the owner left. Then it ends.

It is a process of its own because SIGKILL asks nobody: one small Python for each process that holds leases, in a
session of its own, with no terminal, no folder and no output of its owner's held open, and without anything but the
standard library. It sleeps on the owner's pidfd, or where there is none on a pipe whose other end dies with the owner.
"""

import contextlib
import os
import select
import signal
import sys
import time

from envs import leftovers, process

#: Seconds between the tries to remove what could not be removed yet; what is left then is for `instar clean`.
_TRIES = (0.0, 1.0, 4.0, 15.0)
_LOOK = 1.0  # seconds between two looks at an owner of whom no pidfd can be had


def main() -> None:
    """`FOLDER PID START`: guard the leases in FOLDER of the process PID that started at START; stdin is the pipe."""
    folder, pid, start = sys.argv[1:]
    _detach()
    _await_end(int(pid), start)

    def of_owner(lease: leftovers.Lease) -> bool:
        return (lease.owner["pid"], lease.owner["start"]) == (int(pid), start)

    for pause in _TRIES:
        time.sleep(pause)
        if all(outcome.state != "failed" for outcome in leftovers.sweep(folder, of=of_owner)):
            return


def _detach() -> None:
    """Become nobody's child; whoever started us sees the end of our parent, and knows that we are there."""
    # SIGTERM comes to all processes when a service is stopped; we end by ourselves, right after our owner.
    for name in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)  # until here, whoever started us reads what went wrong
    os.close(quiet)
    if os.fork():
        os._exit(0)


def _await_end(pid: int, start: str) -> None:
    watched = select.poll()
    watched.register(0, select.POLLIN)
    held = None
    with contextlib.suppress(AttributeError, OSError):  # none on this system, or the owner has ended already
        held = os.pidfd_open(pid)
        watched.register(held, select.POLLIN)
    while process.started(pid) == start:
        for ready, _ in watched.poll():
            if ready == 0:  # an owner that closes what it does not know closes our pipe, and lives on
                watched.unregister(0)
                if held is None:
                    break
        while held is None and process.started(pid) == start:
            time.sleep(_LOOK)


if __name__ == "__main__":
    main()
