"""What the memory costs beside bare sqlite3 and numpy in the same run: ratios travel to other machines, times do not.

Measured: single and bulk writes, utility updates, exact search at 10,000 keys of 256 components (p50, p99), a whole
retrieval at 5,000 items, import. Vectors come from the hash embedder, so that writes and not a model are measured; the
default embedder's bulk rate stands beside it. Reads and imports are in CPU time of this thread: they wait for nothing,
so it is what an idle machine's clock would show, and other work on the machine does not fail the goal. Chroma as a peer
comes with the index that competes with it. Run from the root: `python -m bench.memory [--quick]`.
"""

import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from memory import ExactIndex, HashEmbedder, Item, QRule, Retriever, Store, WordLlamaEmbedder
from memory.index import Key

T = TypeVar("T")

GOALS = {  # figure: (at most or at least, value); an idle 2-core machine
    "single_writes_per_s": ("least", 1500.0),
    "bulk_rows_per_s": ("least", 10_000.0),
    "utility_updates_per_s": ("least", 50_000.0),
    "search_10k_p50_ms": ("most", 0.4),
    "search_10k_p99_ms": ("most", 2.0),
    "retrieve_5k_p50_ms": ("most", 1.0),
    "import_memory_ms": ("most", 150.0),
    "import_store_ms": ("most", 150.0),
}


def run(quick: bool) -> dict[str, object]:
    """Figures, goals and whether all goals are met; `quick` takes a few seconds, otherwise more repetitions."""
    with tempfile.TemporaryDirectory() as folder:
        figures = {**_writes(Path(folder), 400 if quick else 2000), **_reads(Path(folder), 300 if quick else 3000)}
    figures["import_memory_ms"] = _import_ms("memory", 3 if quick else 9)
    figures["import_store_ms"] = _import_ms("memory.store", 3 if quick else 9)
    libraries = _import_ms("numpy, pydantic.main, sqlite3", 3 if quick else 9)
    figures["import_store_to_its_libraries"] = figures["import_store_ms"] / libraries
    goals = {
        name: {
            "bound": bound,
            "value": value,
            "met": figures[name] >= value if bound == "least" else figures[name] <= value,
        }
        for name, (bound, value) in GOALS.items()
    }
    rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
    return {"figures": rounded, "goals": goals, "met": all(goal["met"] for goal in goals.values())}


def _items(n: int, kind: str) -> list[Item]:
    return [
        Item.make(
            kind,
            "bench",
            f"Goal: put apple {i} in the fridge. You see countertop {i % 13} and knife {i % 7}.",
            "go to fridge 1",
        )
        for i in range(n)
    ]


def _writes(folder: Path, n: int) -> dict[str, float]:
    with Store(folder / "writes.db", HashEmbedder()) as store:
        single = n / _seconds(lambda item: store.put([item]), _items(n, "single"))
        bulk = 5000 / _seconds(store.put, [_items(5000, "bulk")])
        ids = [item.id for item in store.items("bench", "bulk")]
        rewards = [(id, 1.0) for id in ids]
        updating = 10 * len(ids) / _seconds(lambda batch: store.credit(batch, QRule()), [rewards] * 10)
    with Store(folder / "default.db", WordLlamaEmbedder()) as store:
        store.embed(["load the model"])
        embedded = 5000 / _seconds(store.put, [_items(5000, "bulk")])
    bare_single, bare_bulk, bare_updating = _bare_writes(folder / "bare.db", n)
    return {
        "single_writes_per_s": single,
        "single_writes_to_sqlite3": single / bare_single,
        "bulk_rows_per_s": bulk,
        "bulk_rows_to_sqlite3": bulk / bare_bulk,
        "bulk_rows_with_default_embedder_per_s": embedded,
        "utility_updates_per_s": updating,
        "utility_updates_to_sqlite3": updating / bare_updating,
    }


def _bare_writes(path: Path, n: int) -> tuple[float, float, float]:
    """The least that SQLite can be asked for: one table, one row with text and vector, the same durability."""
    bare = sqlite3.connect(path, isolation_level=None)
    bare.execute("PRAGMA journal_mode = WAL")
    bare.execute("PRAGMA synchronous = NORMAL")
    bare.execute("CREATE TABLE rows (id TEXT PRIMARY KEY, key TEXT, body TEXT, vector BLOB, utility REAL)")
    insert, vector = "INSERT INTO rows VALUES (?, ?, ?, ?, 0.0)", b"\0" * 1024

    def row(i: int) -> tuple[object, ...]:
        return (
            f"step-{i:016}",
            f"Goal: put apple {i} in the fridge. You see countertop 1 and knife 2.",
            "go to fridge 1",
            vector,
        )

    single = n / _seconds(lambda i: bare.execute(insert, row(i)), range(n))
    start = time.perf_counter()
    bare.execute("BEGIN")
    bare.executemany(insert, [row(i) for i in range(n, n + 5000)])
    bare.execute("COMMIT")
    bulk = 5000 / (time.perf_counter() - start)

    def update(_: int) -> None:
        bare.execute("BEGIN")
        bare.executemany("UPDATE rows SET utility = 0.5 WHERE id = ?", [(f"step-{i:016}",) for i in range(n, n + 5000)])
        bare.execute("COMMIT")

    updating = 50_000 / _seconds(update, range(10))
    bare.close()
    return single, bulk, updating


def _reads(folder: Path, n: int) -> dict[str, float]:
    draw = np.random.default_rng(0)
    matrix = draw.standard_normal((10_000, 256), np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    index = ExactIndex(256)
    index.add([Key(row, "bench", "step", f"key {row}") for row in range(len(matrix))], matrix)
    queries = list(matrix[draw.integers(0, len(matrix), n)])

    def bare(query: Any) -> None:
        cosines = np.matmul(matrix[:, None, :], query[:, None])[:, 0, 0]  # one thread, as we do
        top = np.argpartition(cosines, -10)[-10:]
        top[np.argsort(-cosines[top])]

    ours = _times(lambda query: index.search(query, 10, scope="bench", kinds=None, floor=-1.0), queries)
    theirs = _times(bare, queries)
    with Store(folder / "reads.db", HashEmbedder()) as store:
        store.put(_items(5000, "step"))
        retriever = Retriever(store)
        retriever.retrieve("warm up", scope="bench")
        texts = [f"Goal: put apple {i} in the fridge." for i in range(n)]
        whole = _times(lambda text: retriever.retrieve(text, scope="bench"), texts)
    return {
        "search_10k_p50_ms": _at(ours, 0.5),
        "search_10k_p99_ms": _at(ours, 0.99),
        "search_10k_p50_to_numpy": _at(ours, 0.5) / _at(theirs, 0.5),
        "retrieve_5k_p50_ms": _at(whole, 0.5),
        "retrieve_5k_p99_ms": _at(whole, 0.99),
    }


def _import_ms(module: str, times: int) -> float:
    """Least CPU time of an import in a fresh interpreter: the least, because other work on the machine only adds."""
    code = f"import time; t = time.thread_time(); import {module}; print((time.thread_time() - t) * 1e3)"
    return min(float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(times))


def _seconds(work: Callable[[T], object], values: Iterable[T]) -> float:
    """Seconds by the clock: a write waits for the disk."""
    return sum(_times(work, values, time.perf_counter)) / 1e3


def _times(
    work: Callable[[T], object], values: Iterable[T], clock: Callable[[], float] = time.thread_time
) -> list[float]:
    """Milliseconds of each call."""
    times = []
    for value in values:
        start = clock()
        work(value)
        times.append((clock() - start) * 1e3)
    return times


def _at(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


if __name__ == "__main__":
    print(json.dumps(run(quick="--quick" in sys.argv[1:]), indent=2))
