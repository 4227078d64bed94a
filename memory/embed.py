"""Text to unit vectors, the same on every run, without a network.

An embedder is a name, a dimension and one function. The store records name and dimension, because vectors of two
embedders must never be compared. Text without any meaning to an embedder becomes the zero vector, similar to nothing.
"""

import re
import threading
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from memory.item import clean

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Any source of vectors. `name` identifies model and version, `dim` its number of components."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Float32 [len(texts), dim]; each row has length 1, or is zero when the text says nothing."""
        ...


def normalised(vectors: Vectors) -> Vectors:
    """Rows scaled to length 1; zero and non-finite rows become zero."""
    vectors = np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, np.float32(0))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0).astype(
        np.float32, copy=False
    )
    return unit


class WordLlamaEmbedder:
    """Static token embeddings of the `wordllama` package, 256-d, from the files inside the package.

    Loaded at the first use, once per process (about 120 MB). Only the first `MAX_CHARS` characters count.
    """

    name = "wordllama-l2-supercat-256"
    dim = 256
    MAX_CHARS = 8192

    _model: Any = None
    _lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Float32 [len(texts), 256], unit rows."""
        model = self._load()
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        cut = [clean(text[: self.MAX_CHARS]) for text in texts]
        # The package pads a batch to its longest text: bound the product, or a few long texts take gigabytes.
        batch = min(64, max(1, 65536 // max(1, max(map(len, cut)))))
        with np.errstate(invalid="ignore", divide="ignore"):  # no token gives 0/0, which `normalised` turns into zero
            vectors: Vectors = model.embed(cut, batch_size=batch)
        return normalised(vectors)

    @classmethod
    def _load(cls) -> Any:
        with cls._lock:
            if cls._model is None:
                import wordllama

                folder = Path(wordllama.__file__).parent
                cls._model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
            return cls._model


class HashEmbedder:
    """Words and pairs of words hashed into `dim` signed buckets: no model, for tests and tiny installs."""

    def __init__(self, dim: int = 256) -> None:
        if dim < 1:
            raise ValueError(f"dim must be at least 1, not {dim}")
        self.name = f"hash-{dim}"
        self.dim = dim

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Float32 [len(texts), dim], unit rows."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            words = re.findall(r"\w+", text.lower())
            for feature in words + [f"{a} {b}" for a, b in pairwise(words)]:
                bits = zlib.crc32(feature.encode("utf-8", "surrogatepass"))
                row[(bits >> 1) % self.dim] += 1.0 if bits & 1 else -1.0
        return normalised(vectors)


def embedder_named(name: str) -> Embedder:
    """The built-in embedder that a memory was written with; ValueError when it is not one of ours."""
    if name == WordLlamaEmbedder.name:
        return WordLlamaEmbedder()
    if match := re.fullmatch(r"hash-([1-9]\d{0,5})", name):
        return HashEmbedder(int(match[1]))
    raise ValueError(f"no built-in embedder is called '{name}'; known: {WordLlamaEmbedder.name}, hash-DIM")
