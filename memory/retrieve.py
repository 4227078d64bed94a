"""Two-phase retrieval: what is similar, then what has proven useful among it. Source: MemRL.

Phase A takes the nearest keys; phase B drops items under a utility and ranks the rest by similarity and utility
together. The decision is made by pure functions of the candidates. z-scores of the utility are taken after the drop:
what can no longer be chosen must not move the scale.
"""

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field

from memory.embed import Vectors
from memory.item import Item
from memory.store import Candidate, Store


class RetrieveSettings(BaseModel):
    """Defaults are MemRL's where published."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    floor: float = Field(default=0.0, ge=-1.0, le=1.0)  # MemRL's delta: least cosine of a key
    keys: int = Field(default=5, ge=1)  # k1
    take: int = Field(default=3, ge=1)  # k2
    least_utility: float | None = None  # q_min
    weight_similarity: float = 0.5
    weight_utility: float = 0.5
    epsilon: float = Field(default=0.0, ge=0.0, le=1.0)  # chance that a place goes to a random candidate


@dataclass(frozen=True, slots=True)
class Retrieved:
    """What was chosen, best first: items, their keys' cosines, and the scores they were ranked by."""

    items: tuple[Item, ...] = ()
    similarities: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the items, for credit."""
        return tuple(item.id for item in self.items)


def z_scores(values: Sequence[float]) -> list[float]:
    """(value - mean) / std by the values' own (population) statistics; all zero when they do not vary."""
    if not values:
        return []
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / std if std > 1e-12 else 0.0 for value in values]


def rank(candidates: Sequence[Candidate], settings: RetrieveSettings) -> list[tuple[float, Candidate]]:
    """(score, candidate) of those that pass `least_utility`, best first; equal scores in order of id.

    score = w_s z(similarity) + w_u clip(z(utility), -3, 3)
    """
    least = settings.least_utility
    kept = [candidate for candidate in candidates if least is None or candidate.utility >= least]
    near = z_scores([c.similarity for c in kept])
    good = z_scores([c.utility for c in kept])
    scored = [
        (settings.weight_similarity * s + settings.weight_utility * max(-3.0, min(3.0, u)), candidate)
        for s, u, candidate in zip(near, good, kept, strict=True)
    ]
    return sorted(scored, key=lambda pair: (-pair[0], pair[1].id))


def choose(
    ranked: Sequence[tuple[float, Candidate]], take: int, epsilon: float, rng: random.Random | None
) -> list[tuple[float, Candidate]]:
    """The best `take`; each place goes with chance `epsilon` to a random one of those that are left."""
    if epsilon == 0.0:
        return list(ranked[:take])
    if rng is None:
        raise ValueError("epsilon > 0 needs a random.Random of the caller's")
    left = list(ranked)
    chosen: list[tuple[float, Candidate]] = []
    while left and len(chosen) < take:
        chosen.append(left.pop(rng.randrange(len(left)) if rng.random() < epsilon else 0))
    return chosen


class Retriever:
    """Retrieval from one store by one setting; it may be shared by threads. Embeddings of recent queries are kept."""

    def __init__(self, store: Store, settings: RetrieveSettings | None = None, *, cached_queries: int = 1024) -> None:
        self.store = store
        self.settings = settings or RetrieveSettings()

        @lru_cache(maxsize=cached_queries)
        def embed(query: str) -> Vectors:
            vector: Vectors = store.embed([query])[0]
            return vector

        self._embed = embed

    def retrieve(
        self,
        query: str,
        *,
        scope: str,
        kinds: Collection[str] | None = None,
        rng: random.Random | None = None,
    ) -> Retrieved:
        """The items of `scope` to show for `query`."""
        settings = self.settings
        vector = self._embed(query)
        found = self.store.search(vector, scope=scope, k=settings.keys, kinds=kinds, floor=settings.floor)
        chosen = choose(rank(found, settings), settings.take, settings.epsilon, rng)
        items = self.store.get_many([candidate.id for _, candidate in chosen])
        alive = [(score, c) for score, c in chosen if c.id in items]  # one may have been forgotten a moment ago
        return Retrieved(
            tuple(items[c.id] for _, c in alive),
            tuple(c.similarity for _, c in alive),
            tuple(score for score, _ in alive),
        )

    def shared_key(self, text: str, *, scope: str, kind: str, least: float = 0.9) -> str:
        """The key that a new item for `text` should use: the nearest existing one from cosine `least` on, or `text`.

        Source: MemRL, where a new task joins an existing key at .9 (.99 on LifelongAgentBench).
        """
        found = self.store.search(self._embed(text), scope=scope, k=1, kinds=(kind,), floor=least)
        item = self.store.get(found[0].id) if found else None
        return text if item is None else item.key
