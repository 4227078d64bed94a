"""Several processes, and processes that die in the middle of a write, share one file without losing a row."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from memory import HashEmbedder, Item, QRule, Store

WRITER = """
import sys
from memory import HashEmbedder, Item, QRule, Store
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store(path, HashEmbedder(32)) as store:
    shared = Item.make("note", "all", "shared", "shared")
    store.put([shared])
    n = 0
    while n != count:
        store.put([Item.make("step", "all", f"{name} {n}", "body " * 50, provenance=(name,))])
        store.credit([(shared.id, 1.0)], QRule())
        n += 1
        print(n, flush=True)
"""


def writer(path: Path, name: str, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_four_processes_lose_neither_a_row_nor_a_credit(tmp_path: Path) -> None:
    path = tmp_path / "m.db"  # all four also race to create it
    processes = [writer(path, f"p{n}", 150) for n in range(4)]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    with Store.open(path) as store:
        assert len(store.items("all", "step")) == 600
        assert store.items("all", "note")[0].stats.visits == 600
        for n in range(4):
            assert sum(one.provenance == (f"p{n}",) for one in store.items("all", "step")) == 150


@pytest.mark.parametrize("after", [1, 7, 20, 33, 60])
def test_a_kill_during_writes_loses_nothing_that_was_committed(tmp_path: Path, after: int) -> None:
    path = tmp_path / "m.db"
    process = writer(path, "victim", -1)
    assert process.stdout is not None
    done = 0
    while done < after:
        done = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    tail, _ = process.communicate()
    done = max([done, *(int(line) for line in tail.splitlines(keepends=True) if line.endswith("\n"))])
    with Store.open(path) as store:
        kept = store.items("all", "step")
        assert done <= len(kept) <= done + 1
        assert {one.key for one in kept} >= {f"victim {n}" for n in range(done)}
        assert store.items("all", "note")[0].stats.visits in (len(kept), len(kept) - 1)
        for one in kept:  # whole: every row has its vector, stats and provenance, and is found
            assert one.provenance == ("victim",)
            found = store.search(store.embed([one.key])[0], scope="all", kinds=["step"], k=100, floor=0.99)
            assert one.id in [candidate.id for candidate in found]
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    raw.close()


def test_another_process_is_seen_at_the_next_search(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with Store(path, HashEmbedder(32)) as here, Store.open(path, readonly=True) as looking:
        query = here.embed(["p 0"])[0]
        assert here.search(query, scope="all") == []
        process = writer(path, "p", 1)
        process.communicate()
        (found,) = here.search(query, scope="all", kinds=["step"])
        assert looking.search(query, scope="all", kinds=["step"]) == [found]
        code = "import sys; from memory import Store; s = Store.open(sys.argv[1]); s.forget(sys.argv[2]); s.close()"
        subprocess.run([sys.executable, "-c", code, str(path), found.id], check=True)
        assert (
            here.search(query, scope="all", kinds=["step"]) == looking.search(query, scope="all", kinds=["step"]) == []
        )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_goes_on_with_the_store_and_leaves_the_parent_whole(tmp_path: Path) -> None:
    with Store(tmp_path / "m.db", HashEmbedder(32)) as store:
        one = Item.make("step", "all", "before", "x")
        store.put([one])
        child = os.fork()
        if child == 0:
            verdict = 1
            try:
                store.put([Item.make("step", "all", "from the child", "x")])
                store.credit([(one.id, 0.5)], QRule(alpha=1.0))
                store.close()
                verdict = 0
            finally:
                os._exit(verdict)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.put([Item.make("step", "all", "after", "x")]) == [True]
        assert [i.key for i in store.items("all")] == ["before", "from the child", "after"]
        assert store.get(one.id).stats.utility == 0.5
