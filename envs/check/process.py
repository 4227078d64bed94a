"""The rule that needs a second Python: the order of a set and `hash()` of a text differ from process to process.

A run that is resumed, or spread over workers, meets other orders than the one that began it; inside one process
nothing of that can be seen.
"""

import asyncio
import hashlib
import json
import os
import sys
from dataclasses import astuple
from typing import Any

from envs.check.probe import Finding, NotApplicable, Probe, Shot, Trace, brief
from envs.task import Task

_CHILD = "from envs.check.process import child; child()"
_CURE = "Sort a set before you go through it, and replace hash() by hashlib or a number of your own."


async def other_process(probe: Probe) -> str:
    """Another Python process makes the same tasks and plays the same episodes."""
    import anyio

    if probe.spec is None:
        raise NotApplicable("needs the spec of the benchmark, to load it in another process")
    episodes = [(trace.task.model_dump(mode="json"), trace.seed, trace.actions) for trace in probe.traces]
    order = json.dumps({"spec": probe.spec, "episodes": episodes})
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": other}
    done = await anyio.run_process([sys.executable, "-P", "-c", _CHILD], input=order.encode(), env=env, check=False)
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode or not lines:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise Finding(f"another Python process ended with {done.returncode}: {brief(last, 300)}", "Mend what it says.")
    answer = json.loads(lines[-1])
    for name, tasks in probe.all_tasks.items():
        if answer["tasks"].get(name) != (mine := [_digest(task) for task in tasks]):
            pairs = enumerate(zip(mine, answer["tasks"].get(name, []), strict=False))
            at = next((number for number, (one, two) in pairs if one != two), 0)
            raise Finding(f"in another Python process split '{name}' has another task number {at}.", _CURE)
    for old, shots in zip(probe.traces, answer["episodes"], strict=True):
        again = Trace(old.task, old.seed, old.policy, old.actions, [_shot(*shot) for shot in shots])
        if said := old.differs(again):
            raise Finding(f"in another Python process: {said}.", _CURE)
    return f"all tasks, {len(episodes)} episodes"


def child() -> None:
    """What the other process does: read an order from stdin, write the answer as the last line of stdout."""
    from envs.registry import load

    order = json.load(sys.stdin)
    benchmark = load(order["spec"])
    tasks = {name: [_digest(task) for task in benchmark.tasks(name)] for name in benchmark.splits}
    probe = Probe(benchmark, seed=0, episodes=1)

    async def play() -> list[list[Any]]:
        played = []
        for task, seed, actions in order["episodes"]:
            async with probe.opened() as env:
                trace = await probe.replay(env, Trace(Task.model_validate(task), seed, "", actions))
                played.append([astuple(shot) for shot in trace.shots])
        return played

    print("\n" + json.dumps({"tasks": tasks, "episodes": asyncio.run(play())}))


def _digest(task: Task) -> str:
    text = json.dumps(task.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shot(text: str, choices: list[str] | None, data: str, reward: float | None, done: bool) -> Shot:
    return Shot(text, None if choices is None else tuple(choices), data, reward, done)
