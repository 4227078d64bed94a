"""Luck is a pure function of names: nothing global is drawn from or moved."""

import random
import subprocess
import sys

from harness.seeds import seed_for, stream

#: Written down once: a change here would silently change the luck of every run there is.
KNOWN = 356_758_503_264_187_308


def test_a_seed_is_a_pure_function_of_its_names() -> None:
    assert seed_for(0, "task", 1, "env") == seed_for(0, "task", 1, "env")
    others = [(1, "task", 1, "env"), (0, "task", 2, "env"), (0, "task", 1, "model"), (0, "task1", "env"), (0, "task")]
    assert len({seed_for(*names) for names in [(0, "task", 1, "env"), *others]}) == len(others) + 1


def test_a_seed_does_not_depend_on_the_process() -> None:
    code = "from harness.seeds import seed_for, stream; print(seed_for(7, 'a', 2), stream(7, 'a', 2).random())"
    shown = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert shown == {f"{seed_for(7, 'a', 2)} {stream(7, 'a', 2).random()}\n".encode()}


def test_streams_are_apart_from_each_other_and_from_the_global_one() -> None:
    random.seed(3)
    state = random.getstate()
    first, second = stream(0, "a"), stream(0, "b")
    assert [first.random() for _ in range(5)] != [second.random() for _ in range(5)]
    assert random.getstate() == state


def test_the_seeds_of_old_runs_stay_what_they_were() -> None:
    assert seed_for(0, "household/valid/0", 0, "env") == KNOWN
