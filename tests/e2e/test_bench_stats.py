"""The simulation of coverage repeats exactly, and its goals tell a good interval from a short one."""

import json
import subprocess
import sys
from typing import Any

from shell import ROOT

PROGRAM = """
import json
from bench.coverage import goals, simulate
if __name__ == "__main__":
    found = simulate(6, 1)
    held = {kind: {name: 0.95 for name in row} for kind, row in found.items()}
    for row in held.values():
        row.update({name: 0.05 for name in row if name.startswith("test") or "candidates" in name})
    short = json.loads(json.dumps(held))
    short["graded, 2-5 episodes"]["mean"] = 0.93
    liberal = json.loads(json.dumps(held))
    liberal["binary, one episode"]["test, null"] = 0.07
    print(json.dumps([found, *(goals(row, 2000) for row in (held, short, liberal))]))
"""


def simulated() -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, "-"], input=PROGRAM, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def test_the_simulation_repeats_and_its_goals_tell_what_holds_from_what_does_not() -> None:
    found, held, short, liberal = simulated()
    assert len(found) == 4
    assert all(0 <= share <= 1 for row in found.values() for share in row.values())
    assert simulated()[0] == found
    assert all(held.values())
    assert [goal for goal, met in short.items() if not met] == ["95 % intervals of means cover .95 +- .015"]
    assert [goal for goal, met in liberal.items() if not met] == ["exact tests of pass/fail scores err at most .065"]
