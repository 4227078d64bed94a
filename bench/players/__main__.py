"""One player's figures, as one line of JSON: `python -m bench.players NAME VARIANT --at-once 32 --episodes 64`.

CPU is that of this process and of children it waited for, in milliseconds a step; of some repeats the least and the
median, because what else the machine does only adds. On one core, so that threads gain nothing by running beside each
other. Memory is the peak of what was resident, in megabytes.
"""

import argparse
import gc
import importlib
import json
import os
import resource
import statistics
import sys
import time

from bench.players.game import STEPS


def cpu() -> float:
    """Seconds so far."""
    own, below = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime


def peak_mb() -> float:
    """Peak resident megabytes. Linux counts into `ru_maxrss` what the parent had when it started us, so not that."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.players")
    parser.add_argument("name")
    parser.add_argument("variant")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--url", default="")
    chosen = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    player = importlib.import_module(f"bench.players.{chosen.name}")
    before = cpu()
    player.load()
    play = player.prepare(chosen.variant, chosen.at_once, chosen.url)
    figures = {"import_cpu_s": cpu() - before, "import_mb": peak_mb()}
    play(min(chosen.episodes, 2 * chosen.at_once))  # what is imported, compiled or connected once is no cost of a step
    gc.collect()
    spent, clock, n = [], [], chosen.episodes
    for _ in range(chosen.repeats):
        start, began = cpu(), time.perf_counter()
        rewards = play(n)
        spent.append((cpu() - start) * 1e3 / (n * STEPS))
        clock.append(n * STEPS / (time.perf_counter() - began))
        if list(rewards) != [1.0] * n:
            sys.exit(
                f"{chosen.name} {chosen.variant}: {sum(reward == 1.0 for reward in rewards)} of {n} games were won"
            )
    figures |= {
        "cpu_ms": min(spent),
        "median_cpu_ms": statistics.median(spent),
        "steps_a_s": max(clock),
        "mb": peak_mb(),
    }
    print(json.dumps(figures), flush=True)
    os._exit(0)  # some libraries leave threads behind that end when they like


if __name__ == "__main__":
    main()
