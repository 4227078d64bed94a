"""Does an environment keep the contract? Everything that can be seen by playing it, in one report.

What is not kept here costs days later: a leaking split, a hidden random state or a shared instance shows up as a
result that nobody can repeat. Every rule says what it saw and the cure; time is boxed, and what it left unseen is
called undecided, never passed.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from envs.benchmark import Benchmark
from envs.check import episodes as play
from envs.check import replays, tasks
from envs.check.probe import Finding, NotApplicable, Probe
from envs.check.process import other_process
from envs.check.report import Report, Result, Status
from envs.env import EnvFault

__all__ = ["Report", "Result", "check"]


class _Rule(NamedTuple):
    name: str
    run: Callable[[Probe], Awaitable[str]]
    needs: tuple[str, ...] = ()


_PLAYED = ("types",)
_RULES = (
    _Rule("fields", tasks.fields),
    _Rule("splits", tasks.splits),
    _Rule("unique ids", tasks.unique_ids, ("splits",)),
    _Rule("disjoint splits", tasks.disjoint, ("splits",)),
    _Rule("task JSON", tasks.json_round_trip, ("splits",)),
    _Rule("stable tasks", tasks.stable, ("splits",)),
    _Rule("types", play.record, ("fields", "splits")),
    _Rule("text", play.text, _PLAYED),
    _Rule("plain data", play.plain_data, _PLAYED),
    _Rule("choices", replays.choices, _PLAYED),
    _Rule("determinism", replays.determinism, _PLAYED),
    _Rule("another process", other_process, ("types", "task JSON", "determinism")),
    _Rule("separate instances", replays.separate, _PLAYED),
    _Rule("fresh reset", replays.fresh_reset, _PLAYED),
    _Rule("close", replays.close, _PLAYED),
    _Rule("rewards", play.rewards, _PLAYED),
    _Rule("score", play.score, _PLAYED),
    _Rule("illegal actions", replays.illegal, _PLAYED),
    _Rule("end of episode", play.ending, _PLAYED),
    _Rule("after the end", replays.after_end, _PLAYED),
    _Rule("global random state", replays.global_random, _PLAYED),
    _Rule("event loop", play.event_loop, _PLAYED),
    _Rule("expert policy", play.expert, ("types", "score")),
    _Rule("random policy", play.random_play, ("types", "score")),
)
_MORE_TIME = "Give more time (seconds=), or play fewer tasks (episodes=)."


def check(
    benchmark: Benchmark, *, seed: int = 0, episodes: int = 4, seconds: float = 60.0, spec: str | None = None
) -> Report:
    """Play `benchmark` in every way that the contract speaks of, on `episodes` tasks, for at most `seconds`.

    `spec` is what `envs.registry.load` made the benchmark from; with it the check also looks from a second Python
    process, where sets have another order. Runs in a thread with an event loop of its own, so that it also works inside
    a running loop, and returns even when the environment hangs (that thread is then left behind, and the report says
    on which line it stands).
    """
    if episodes < 1 or seconds <= 0:
        raise ValueError(f"check: episodes={episodes}, seconds={seconds}; both must be positive")
    probe = Probe(benchmark, seed, episodes, spec)
    results: list[Result] = []
    crash: list[BaseException] = []
    end = time.monotonic() + seconds

    def work() -> None:
        try:
            asyncio.run(_run_all(probe, results, end))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            crash.append(error)

    thread = threading.Thread(target=work, name="instar-check", daemon=True)
    thread.start()
    thread.join(seconds + 1.0)
    if crash:
        raise crash[0]
    seen = tuple(results)
    if thread.is_alive():
        at = _stands_at(thread)
        for number, rule in enumerate(_RULES[len(seen) :]):
            said = f"no answer after {seconds:g} s; it stands at {at}" if number == 0 else "not reached"
            cure = (
                "Await what takes long (await asyncio.to_thread(slow, ...)), and bound every wait."
                if number == 0
                else ""
            )
            seen += (Result(name=rule.name, status="undecided", message=said, cure=cure),)
    return Report(benchmark=benchmark.name, seed=seed, results=seen)


async def _run_all(probe: Probe, results: list[Result], end: float) -> None:
    for rule in _RULES:
        start = time.monotonic()
        status, message, cure = await _judge(rule, probe, results, end)
        took = time.monotonic() - start
        results.append(Result(name=rule.name, status=status, message=message, cure=cure, seconds=round(took, 4)))


async def _judge(rule: _Rule, probe: Probe, results: list[Result], end: float) -> tuple[Status, str, str]:
    unmet = [
        result.name for result in results if result.name in rule.needs and result.status in ("failed", "undecided")
    ]
    unmet += [result.name for result in results if result.name in rule.needs and result.status == "skipped"]
    if unmet:
        return "skipped", f"needs '{unmet[0]}' first", ""
    left = end - time.monotonic()
    if left <= 0:
        return "undecided", "no time left", _MORE_TIME
    box = asyncio.timeout(left)
    try:
        async with box:
            return "passed", await rule.run(probe), ""
    except Finding as found:
        return "warned" if found.warning else "failed", found.seen, found.cure
    except NotApplicable as why:
        return "skipped", str(why), ""
    except EnvFault as fault:
        return (
            "undecided",
            f"the world broke: EnvFault: {fault}",
            "Repair what the environment stands on, and check again.",
        )
    except TimeoutError:
        if not box.expired():
            raise
        return "undecided", "the time ran out here", _MORE_TIME


def _stands_at(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    stack = traceback.extract_stack(frame) if frame else []
    return f"{stack[-1].filename}:{stack[-1].lineno}" if stack else "an unknown place"
