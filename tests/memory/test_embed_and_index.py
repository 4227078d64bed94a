"""Vectors are unit, deterministic and safe; the index is exact and in a stable order."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory import ExactIndex, HashEmbedder, WordLlamaEmbedder, clean, embedder_named
from memory.index import Key

ODD = ["", " ", "\0", "\ud800", "a\udfffb", "🍎" * 10, "e\u0301", "\u200b", "x" * 50_000, "put the apple in the fridge"]


@pytest.mark.parametrize("embedder", [HashEmbedder(64), WordLlamaEmbedder()], ids=lambda e: e.name)
def test_odd_text_gives_unit_or_zero_rows_whatever_stands_beside_it(embedder) -> None:
    together = embedder.embed(ODD)
    assert together.shape == (len(ODD), embedder.dim)
    assert together.dtype == np.float32
    lengths = np.linalg.norm(together, axis=1)
    assert all(abs(length - 1) < 1e-5 or length == 0 for length in lengths)
    assert lengths[-1] > 0
    assert not together[0].any()
    for text, row in zip(ODD, together, strict=True):
        assert (embedder.embed([text])[0] == row).all()
    assert embedder.embed([]).shape == (0, embedder.dim)


@pytest.mark.parametrize("name", ["hash-64", WordLlamaEmbedder.name])
def test_another_process_gets_the_same_vectors(name: str) -> None:
    code = "import sys, memory; print(memory.embedder_named(sys.argv[1]).embed(['go to the fridge 1']).tobytes().hex())"
    command = [sys.executable, "-c", code, name]
    hexes = {subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for _ in range(2)}
    assert hexes == {embedder_named(name).embed(["go to the fridge 1"]).tobytes().hex()}


def test_an_unknown_embedder_name_is_refused() -> None:
    for name in ("hash-0", "hash-", "ada-002"):
        with pytest.raises(ValueError, match=name):
            embedder_named(name)


@given(st.text())
def test_cleaning_leaves_good_text_alone_and_makes_any_text_encodable(text: str) -> None:
    assert clean(text + "\ud83d") == clean(text + "\ud83d").encode().decode()
    good = text.encode("utf-8", "ignore").decode()
    assert clean(good) == good


def keys(n: int, scope: str = "s", kind: str = "k", start: int = 0) -> list[Key]:
    return [Key(row, scope, kind, f"text {row:04}") for row in range(start, start + n)]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), n=st.integers(0, 60), k=st.integers(1, 12), removed=st.sets(st.integers(0, 59)))
def test_the_exact_index_agrees_with_sorting_everything(seed: int, n: int, k: int, removed: set[int]) -> None:
    vectors = np.random.default_rng(seed).integers(-1, 2, (n, 4)).astype(np.float32)  # small integers: many ties
    index = ExactIndex(4)
    index.add(keys(n // 2), vectors[: n // 2])
    index.add(keys(n - n // 2, start=n // 2), vectors[n // 2 :])
    index.remove(removed)
    query = np.array([1, -1, 0, 1], np.float32)
    cosines = vectors @ query
    order = sorted((row for row in range(n) if row not in removed), key=lambda row: (-cosines[row], row))
    expected = [(row, float(cosines[row])) for row in order if cosines[row] >= -1][:k]
    assert index.search(query, k, scope="s", kinds=None, floor=-1.0) == expected
    assert len(index) == len(order)


def test_the_index_keeps_scopes_and_kinds_apart() -> None:
    index, one = ExactIndex(2), np.array([[1, 0]], np.float32)
    for row, (scope, kind) in enumerate([("a", "x"), ("a", "y"), ("b", "x")]):
        index.add([Key(row, scope, kind, "same")], one)
    search = {"floor": 0.0}
    assert [row for row, _ in index.search(one[0], 9, scope="a", kinds=None, **search)] == [0, 1]
    assert [row for row, _ in index.search(one[0], 9, scope="a", kinds={"y"}, **search)] == [1]
    assert index.search(one[0], 9, scope="c", kinds=None, **search) == []
    assert index.search(one[0], 9, scope="a", kinds=(), **search) == []


def test_importing_memory_loads_neither_numpy_nor_a_model() -> None:
    code = "import memory, sys; print([m for m in ('numpy', 'wordllama', 'pydantic') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_every_public_name_can_be_imported() -> None:
    import memory

    for name in memory.__all__:
        assert getattr(memory, name) is not None
    with pytest.raises(AttributeError, match="nothing_here"):
        memory.nothing_here
