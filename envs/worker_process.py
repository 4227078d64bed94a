"""A worker is a process in which one world at a time lives, so that it can be stopped whatever it is doing.

Nothing inside a process can stop code that computes without end, or survive a segmentation fault; a process can be
killed. Each worker has a session of its own (our Ctrl-C does not reach it), a lease, a temporary folder that goes with
it, few environment variables and none that look like a secret, and its output is kept to the last few lines. It is
started, never forked: a fork would copy locks, threads and keys.
"""

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envs import frames
from envs.env import EnvFault
from envs.lease import FolderLease, ProcessLease, close_all

_BOOT = (
    "import json,sys;sys.path[:]=json.loads(sys.argv.pop(1));from envs.worker_main import main;main(int(sys.argv[1]))"
)
#: What a worker sees of our environment, by name and by beginning; `pass_env` adds to it.
_NAMES = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "VIRTUAL_ENV", "CONDA_PREFIX", "DISPLAY",
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "INSTAR_STATE", "SSL_CERT_FILE", "SSL_CERT_DIR", "CUDA_VISIBLE_DEVICES",
    "DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST", "PLAYWRIGHT_BROWSERS_PATH",
}  # fmt: skip
_BEGINNINGS = ("LC_", "XDG_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.I)
_TAIL = 16384  # bytes of its output that are kept
_TOLD = 400  # characters of it that a fault tells
_FLOOD = 0.002  # seconds for which the output of a world that writes faster than we read is left alone
_LAST_WORDS = 0.3  # seconds in which a late world may say where it stands
_STANDS = re.compile(rb'\(most recent call first\):\s+File "([^"\n]+)", line (\d+)')


@dataclass(frozen=True)
class Plan:
    """What a worker is to make worlds of, and within what bounds; `load` is its first order."""

    name: str
    load: Mapping[str, Any]
    seconds: float
    starting: float
    pass_env: tuple[str, ...] = ()
    where: str = field(default_factory=os.getcwd)


class WorkerLost(EnvFault):
    """The worker is gone, with the world in it; the message says how, and what it wrote last."""


class Worker:
    """One process, for the event loop that it is `attach`ed to. Making one starts it; raises OSError (LeaseError)."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.episodes = self.first_memory = self.memory = 0
        self.lost = False  # it is not to be asked again
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reply: asyncio.Future[dict[str, Any]] | None = None
        self._unpacker = frames.Unpacker()
        self._tail = bytearray()
        self._said = ""
        self._ended: str | None = None
        words = [sys.executable, "-u", "-P", "-c", _BOOT, json.dumps([str(path) for path in sys.path])]
        with contextlib.ExitStack() as undo:
            self.lease = ProcessLease(f"worker of {plan.name}", grace=0.0)
            undo.callback(self.lease.close)
            self.folder = FolderLease(f"temporary files of a worker of {plan.name}")
            undo.callback(self.folder.close)
            self._line, theirs = socket.socketpair()
            undo.callback(self._line.close)
            with theirs:
                self._output, output = os.pipe()
                undo.callback(os.close, self._output)
                env = self.lease.environ({**environment(plan.pass_env), "TMPDIR": self.folder.path})
                try:
                    self._process = subprocess.Popen(
                        [*words, str(theirs.fileno())], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env,
                        cwd=plan.where, pass_fds=(theirs.fileno(),), start_new_session=True,
                    )  # fmt: skip
                finally:
                    os.close(output)
            undo.callback(self._stop)
            self._line.setblocking(False)
            os.set_blocking(self._output, False)
            self.lease.started(self._process.pid)
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def attach(self) -> None:
        """Serve the running event loop, until `detach`."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._line, self._read)
        self._loop.add_reader(self._output, self._listen)

    def detach(self) -> None:
        """Serve nobody; whoever waits for an answer gets none."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._line)
            self._loop.remove_reader(self._output)
            if self._reply is not None and not self._reply.done():
                self._reply.set_exception(EOFError())
        self._loop = None

    async def ask(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to an order. Raises WorkerLost when there is none in time, and then, as when this is cancelled,
        the worker is dead and `lost`; raises EnvFault for an order that cannot be sent."""
        data = self._packed(order)
        loop = asyncio.get_running_loop()
        self._reply = loop.create_future()
        timer = loop.call_later(seconds, self._late, self._reply)
        try:
            await self._send(data, self._reply)
            return await self._reply
        except TimeoutError:
            stood = await self._stands()
            how = await self.end()
            said = f"did not answer {order['do']} within {seconds:g} s{stood} and was stopped"
            lost = WorkerLost(f"the world's worker {said}{self._last()}")
            lost.late = True
            raise lost from None
        except (ConnectionError, EOFError):
            by_itself = await self._falls()
            how = await self.end()
            how = how if by_itself else "closed its line to us and was stopped"
            raise WorkerLost(f"the world's worker {how} at {order['do']}{self._last()}") from None
        except frames.BadFrame as error:
            how = await self.end()
            raise WorkerLost(f"the world's worker answered {order['do']} with nonsense: {error}") from None
        except BaseException:  # somebody wants us to stop: what it computes, nobody waits for
            self._ending()
            raise
        finally:
            timer.cancel()
            self._reply = None

    def ask_now(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The same without an event loop, for the one call that has none (a policy). Raises WorkerLost, EnvFault."""
        data = self._packed(order)
        end = time.monotonic() + seconds
        try:
            self._line.setblocking(True)
            self._line.settimeout(seconds)
            self._line.sendall(data)
            while True:
                if not select.select([self._line], [], [], max(0.0, end - time.monotonic()))[0]:
                    raise TimeoutError
                piece = self._line.recv(2**18)
                if not piece:
                    raise EOFError
                for answer in self._unpacker.feed(piece):
                    return answer
        except (OSError, EOFError, frames.BadFrame) as error:
            late = isinstance(error, TimeoutError)
            self._leave()
            how = bury([self])[0]
            said = f"did not answer within {seconds:g} s and was stopped" if late else how
            raise WorkerLost(f"the world's worker {said} at {order['do']}{self._last()}") from None
        finally:
            if self._line.fileno() >= 0:
                self._line.setblocking(False)

    def dismiss(self) -> None:
        """Let it end by itself: there will be no other order."""
        self.lost = True
        with contextlib.suppress(OSError):  # it has ended, or is closed
            self._line.shutdown(socket.SHUT_WR)

    async def end(self) -> str:
        """Kill it with all that it started, and say how it ended. Raises LeaseError when something stays."""
        return (await self._ending())[0]

    def _ending(self) -> "asyncio.Future[list[str]]":
        """Dead at once; what is slow about an end happens in a thread, which the loop's own end waits for."""
        self._leave()
        return asyncio.get_running_loop().run_in_executor(None, bury, [self])

    def _packed(self, order: Mapping[str, Any]) -> bytes:
        if self.lost:
            raise WorkerLost(f"the world's worker had ended before {order['do']}")
        try:
            return frames.pack(order)
        except frames.BadFrame as error:
            raise EnvFault(f"{order['do']} cannot be sent to the world's worker: {error}") from error

    def _stop(self) -> None:
        self.kill()
        self._process.wait()

    def _leave(self) -> None:
        self.lost, self._reply = True, None
        self.detach()
        self.kill()

    def _late(self, reply: "asyncio.Future[dict[str, Any]]") -> None:
        if not reply.done():
            reply.set_exception(TimeoutError())

    async def _send(self, data: bytes, reply: "asyncio.Future[dict[str, Any]]") -> None:
        with contextlib.suppress(BlockingIOError):
            data = data[self._line.send(data) :]
        if data:  # more than the line holds; the deadline is for a worker that does not read, too
            sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(self._line, data))
            reply.add_done_callback(lambda _: sending.cancel())
            try:
                await sending
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not reply.done() or (task is not None and task.cancelling()):  # it is we who are to stop
                    raise

    def _read(self) -> None:
        try:
            piece = self._line.recv(2**18)
            if not piece:
                raise EOFError
            answers = self._unpacker.feed(piece)
            if not answers:
                return
            if self._reply is None or self._reply.done() or len(answers) > 1:
                raise frames.BadFrame("it speaks without being asked")
            self._reply.set_result(answers[0])
        except BlockingIOError:
            return
        except (OSError, EOFError, frames.BadFrame) as error:
            if self._loop is not None:
                self._loop.remove_reader(self._line)
            if self._reply is not None and not self._reply.done():
                self._reply.set_exception(error if isinstance(error, frames.BadFrame) else EOFError())
            else:
                self.kill()

    def _listen(self) -> None:
        size, loop = self._drain(), self._loop
        if loop is None or size < 0:
            return
        if size == 0:
            loop.remove_reader(self._output)
        elif size >= 2**16:  # it writes faster than anybody reads: it may wait, our loop must not
            loop.remove_reader(self._output)
            loop.call_later(_FLOOD, self._resume, loop)

    def _resume(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop and self._ended is None:
            loop.add_reader(self._output, self._listen)

    def _drain(self) -> int:
        """Read a piece of the output; its size, 0 at its end and -1 when there is none now."""
        try:
            piece = os.read(self._output, 2**16)
        except BlockingIOError:
            return -1
        self._tail += piece
        del self._tail[:-_TAIL]
        return len(piece)

    async def _falls(self) -> bool:
        """Whether a worker that fell silent is at its end already: its files are closed shortly before."""
        for _ in range(round(_LAST_WORDS / 0.01)):
            if not self.alive:
                return True
            await asyncio.sleep(0.01)
        return False

    async def _stands(self) -> str:
        """Where a late world stands, as far as it can still say so."""
        before = bytes(self._tail)
        self._tail.clear()
        self._process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + _LAST_WORDS
        try:
            while time.monotonic() < end:
                await asyncio.sleep(0.01)
                self._drain()
                if found := _STANDS.search(self._tail):
                    return f" (it stood at {found[1].decode(errors='replace')}:{found[2].decode()})"
            return ""
        finally:
            self._tail[:] = before

    def _last(self) -> str:
        text = " | ".join(self._said.split("\n"))
        return f". It wrote last: {text[-_TOLD:]}" if text else ""

    def kill(self) -> None:
        if self._process.returncode is None:  # until we have read its status, its number is nobody else's
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # it is dead already (macOS refuses to signal those)
                return

    def _close(self) -> str:
        """Read how it ended and what it wrote last, and close everything. It is dead."""
        status = self._process.wait()
        while self._drain() > 0:
            pass
        text = bytes(self._tail).decode(errors="replace")
        if place := _STANDS.search(self._tail):  # Python's last words, on the way into a fatal signal
            stood = f" (it stood at {place[1].decode(errors='replace')}:{place[2].decode()})"
            text = text.partition("Fatal Python error: ")[0]
        else:
            stood = ""
        self._said = text.strip()
        self._line.close()
        os.close(self._output)
        return _how(status) + stood


def bury(workers: Iterable[Worker]) -> list[str]:
    """End detached workers, whatever they do, and give back all that they hold; how each ended. May be called twice.

    Raises LeaseError when something cannot be removed.
    """
    workers = list(workers)
    fresh = [worker for worker in workers if worker._ended is None]
    for worker in fresh:
        worker.lost, worker._ended = True, "has ended"
    close_all([worker.lease for worker in fresh])
    for worker in fresh:
        worker._ended = worker._close()
    close_all([worker.folder for worker in fresh])
    return [worker._ended or "" for worker in workers]


def _how(status: int) -> str:
    if status >= 0:
        return f"ended itself with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}" + (" (most often: no memory was left)" if name == "SIGKILL" else "")


def environment(more: Iterable[str] = ()) -> dict[str, str]:
    """What a worker sees of our environment: what is on the list and looks like no secret, and `more` by name."""
    seen = {
        name: value
        for name, value in os.environ.items()
        if (name in _NAMES or name.startswith(_BEGINNINGS)) and not _SECRET.search(name) and "@" not in value
    }
    seen.setdefault("PYTHONHASHSEED", "0")  # what depends on the order of a set is at least the same in each worker
    return {**seen, **{name: os.environ[name] for name in more if name in os.environ}}
