"""What runs in a worker: it makes worlds and does with them what it is told, one thing at a time, until the line ends.

Whatever a world raises becomes a text; it never ends the worker, and nothing of it travels but JSON. The worker's
event loop stays alive between two orders, so that a world's own tasks go on as they would at home.
"""

import asyncio
import base64
import contextlib
import faulthandler
import inspect
import os
import pickle
import random
import resource
import signal
import socket
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from envs import frames
from envs.benchmark import Policy, PolicyMaker
from envs.env import Env, EnvFault
from envs.task import Task


def main(line: int) -> None:
    """Serve the socket with the number `line` to its end."""
    os.set_inheritable(line, False)  # what a world starts must not keep it open
    faulthandler.enable()  # a segmentation fault tells its Python line
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # and so does a world that is too late
    with socket.socket(fileno=line) as held:
        held.setblocking(False)
        asyncio.run(_Server(held).serve())


class _Server:
    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._unpacker = frames.Unpacker()
        self._orders: deque[dict[str, Any]] = deque()
        self._more: asyncio.Future[None] | None = None
        self._ended = self._busy = False
        self._make_env: Callable[[], Env] | None = None
        self._makers: dict[str, PolicyMaker] = {}
        self._env: Env | None = None
        self._tools: list[list[Any]] | None = None  # as they were last told
        self._policies: list[Policy] = []
        self._snapshots: list[Any] = []

    async def serve(self) -> None:
        """Do order after order."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._line, self._read)
        while True:
            while not self._orders:
                if self._ended:
                    loop.remove_reader(self._line)
                    return
                self._more = loop.create_future()
                await self._more
            self._busy = True
            answer = await self._answer(self._orders.popleft())
            self._busy = False
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(self._line, answer)

    def _read(self) -> None:
        try:
            piece = self._line.recv(2**18)
        except BlockingIOError:
            return
        except ConnectionError:
            piece = b""
        if not piece:
            if self._busy:  # nobody waits for what the world is doing
                os._exit(0)
            self._ended = True
            asyncio.get_running_loop().remove_reader(self._line)
        self._orders.extend(self._unpacker.feed(piece))
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def _answer(self, order: dict[str, Any]) -> bytes:
        try:
            return frames.pack(await self._do(order))
        except frames.BadFrame as error:
            cure = "Cure: text, finite numbers, lists and string-keyed dicts; instar envs check shows where"
            return frames.pack({"fault": f"{order['do']} returned what cannot be sent: {error}. {cure}"})
        except EnvFault as fault:
            return frames.pack({"fault": str(fault)})
        except BaseException as error:  # noqa: BLE001 - SystemExit, too: a world does not end its worker
            return frames.pack({"fault": _where(error)})

    async def _do(self, order: dict[str, Any]) -> dict[str, Any]:
        match order["do"]:
            case "step":
                return self._with_tools({"ok": frames.from_step(await self._world().step(order["action"]))})
            case "reset":
                if self._env is None:
                    if self._make_env is None:
                        raise EnvFault("the worker was asked for a world before it knew which")
                    self._env = self._make_env()
                seen = await self._env.reset(Task.model_validate(order["task"]), order["seed"])
                return self._with_tools({"ok": frames.from_observation(seen, "reset")})
            case "load":
                return {"ok": self._load(order)}
            case "close":
                return {"ok": await self._close()}
            case "policy":
                luck = random.Random()
                version, state, gauss = order["luck"]
                luck.setstate((version, tuple(state), gauss))
                self._policies.append(self._makers[order["name"]](self._world(), luck))
                return {"ok": len(self._policies) - 1}
            case "choose":
                chosen = self._policies[order["policy"]](frames.to_observation(order["seen"]))
                if not isinstance(chosen, str):
                    raise TypeError(f"the policy returned a {type(chosen).__name__}, no text")
                return {"ok": chosen}
            case "snapshot":
                self._snapshots.append(await _awaited(self._offer("snapshot")()))
                return {"ok": len(self._snapshots) - 1}
            case "restore":
                found = await _awaited(self._offer("restore")(self._snapshots[order["snapshot"]]))
                return self._with_tools({"ok": None if found is None else frames.from_observation(found, "restore")})
        raise EnvFault(f"the worker knows no order {order['do']!r}")

    def _load(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Learn which worlds to make: those of a spec, or of a pickled function that our own side sent."""
        if memory := order["memory"]:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        if order["spec"] is not None:
            from envs.registry import load

            found = load(order["spec"], **order["options"])
            if found.name != order["name"]:
                raise EnvFault(f"spec '{order['spec']}' means benchmark '{found.name}', not '{order['name']}'")
            self._make_env, self._makers = found.make_env, dict(found.policies)
        else:
            self._make_env = pickle.loads(base64.b64decode(order["make_env"]))
            self._makers = {
                name: pickle.loads(base64.b64decode(text)) for name, text in order["policies"].items() if text
            }
        return {"memory": _resident()}

    async def _close(self) -> dict[str, Any]:
        env, self._env, self._tools = self._env, None, None
        self._policies.clear()
        self._snapshots.clear()
        if env is not None:
            await env.close()
        return {"memory": _resident()}

    def _world(self) -> Env:
        if self._env is None:
            raise EnvFault("there is no world before reset")
        return self._env

    def _offer(self, name: str) -> Callable[..., Any]:
        found = getattr(self._world(), name, None)
        if not callable(found):
            raise EnvFault(f"this world offers no {name}. Cure: give its class an async method {name}")
        return found  # type: ignore[no-any-return]

    def _with_tools(self, answer: dict[str, Any]) -> dict[str, Any]:
        """`answer`, and the world's tools where they are others than before; what is wrong with them is told later."""
        try:
            tools = frames.from_tools(self._world().tools())
        except Exception as error:  # noqa: BLE001 - told when somebody asks for them
            self._tools = None
            return {**answer, "no_tools": _where(error)}
        if tools == self._tools:
            return answer
        self._tools = tools
        return {**answer, "tools": tools}


async def _awaited(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


def _where(error: BaseException) -> str:
    """What a world raised, with the file and line, as it would read without a worker."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"[:4000]


def _resident() -> int:
    """Bytes of memory in use, 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
