"""How an agent recalls: the memory room's two-phase retrieval, set by the harness's `[memory]`."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.episode import Recall
from harness.settings import MemorySettings

if TYPE_CHECKING:
    from memory import Item, Store


def recall_from(store: "Store", settings: MemorySettings, scope: str) -> Recall | None:
    """A recall over `store` for items of `scope`; None when the harness's memory policy is "none"."""
    if settings.policy == "none":
        return None
    from memory import Retriever, RetrieveSettings

    retriever = Retriever(
        store,
        RetrieveSettings(
            floor=settings.delta, keys=settings.k1, take=settings.k2, least_utility=settings.q_min,
            weight_similarity=settings.w_sim, weight_utility=settings.w_q, epsilon=settings.epsilon,
        ),
    )  # fmt: skip
    kinds = ["step"] if settings.unit == "step" else ["experience", "reflection"]

    def recall(query: str, rng: random.Random) -> Sequence["Item"]:
        return retriever.retrieve(query, scope=scope, kinds=kinds, rng=rng).items

    return recall
