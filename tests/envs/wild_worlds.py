"""A world that does whatever is bad for a process, on demand: each action names one."""

# ruff: noqa: ASYNC220, ASYNC251
import asyncio
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time

from envs import Benchmark, Env, EnvFault, Observation, Step, Task, Tool, fixed


class Wild(Env):
    def __init__(self):
        self.said = []

    async def reset(self, task, seed):
        self.said = [task.id, seed]
        if task.data.get("spin"):
            spin()
        return Observation("ready", ("a", "b"), {"pid": os.getpid()})

    async def step(self, action):
        what, _, rest = action.partition(" ")
        self.said.append(action)
        return await getattr(self, what)(rest)

    async def say(self, text):
        return Step(Observation(text, data={"pid": os.getpid()}), 0.5, info={"feedback": "fine"})

    async def spin(self, text):
        spin()

    async def hang(self, text):
        await asyncio.Event().wait()

    async def segfault(self, text):
        print("before the fault")
        ctypes.string_at(0)

    async def exit(self, text):
        print("a last word")
        os._exit(int(text))

    async def leave(self, text):
        sys.exit(text)

    async def abort(self, text):
        os.abort()

    async def kill(self, text):
        os.kill(os.getpid(), 9)

    async def flood(self, text):
        for _ in range(int(text)):
            os.write(1, b"x" * 2**20)
        return Step(Observation("wrote it all"))

    async def allocate(self, text):
        held = []
        while True:
            held.append(bytearray(2**26))

    async def keep(self, text):
        Wild.kept = bytearray(int(text))
        return Step(Observation("kept"))

    async def fail(self, text):
        raise ValueError(text)

    async def fault(self, text):
        raise EnvFault(text)

    async def cancel(self, text):
        raise asyncio.CancelledError

    async def returns(self, text):
        return {
            "dict": {},
            "number": Step(Observation(5)),
            "reward": Step(Observation(""), "much"),
            "done": Step(Observation(""), 0.0, "yes"),
            "choices": Step(Observation("", "abc")),
            "object": Step(Observation(""), info={"object": object()}),
            "large": Step(Observation("x" * 70 * 2**20)),
            "nan": Step(Observation(""), float("nan")),
            "half": Step(Observation("\ud83d")),
        }[text]

    async def scribble(self, text):
        """Write onto every socket that is open, as a world could that is out for mischief."""
        for socket in sockets():
            os.write(socket, text.encode("latin-1"))
        await asyncio.sleep(60)

    async def shut(self, text):
        for socket in sockets():
            os.close(socket)
        time.sleep(60)

    async def environ(self, text):
        return Step(Observation(json.dumps(dict(os.environ))))

    async def places(self, text):
        with tempfile.NamedTemporaryFile(delete=False) as file:
            return Step(Observation(json.dumps([file.name, os.getcwd(), os.getsid(0), sys.stdin.read()])))

    async def daemon(self, text):
        code = "import time; time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        return Step(Observation(str(child.pid)))

    async def snapshot(self):
        return list(self.said)

    async def restore(self, snapshot):
        self.said = list(snapshot)
        return Observation(str(self.said))

    def tools(self):
        if "fail at tools" in self.said:
            raise ValueError("no tools today")
        return [Tool("count", f"after {len(self.said)}", {"type": "object"})] if "say tool" in self.said else []


def sockets():
    links = {name: f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")}
    return [int(name) for name, link in links.items() if os.path.exists(link) and "socket" in os.readlink(link)]


def spin():
    while True:
        time.time()


def thoughtless(env, rng):
    def choose(seen):
        if seen.text == "spin":
            spin()
        return rng.choice(seen.choices)

    return choose


tasks = [Task(id=f"t{number}", split="train", goal="") for number in range(4)]
benchmark = Benchmark("wild", Wild, fixed(tasks), policies={"thoughtless": thoughtless, "odd": lambda env, rng: 5})
