"""Memory: versioned items in SQLite, vectors beside them, retrieval and credit. Knows none of its sisters.

Names are imported at their first use, so that `import memory` does not pay for numpy.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from memory._sisters import check_sisters as _check_sisters

_check_sisters(__name__, __file__)

if TYPE_CHECKING:
    from memory.credit import QRule, credited, q_update
    from memory.embed import Embedder, HashEmbedder, WordLlamaEmbedder, embedder_named
    from memory.fault import MemoryFault
    from memory.index import ExactIndex, Index
    from memory.item import Item, Stats, clean
    from memory.retrieve import Retrieved, Retriever, RetrieveSettings
    from memory.store import Candidate, Store

_HOMES = {
    "credit": ("QRule", "credited", "q_update"),
    "embed": ("Embedder", "HashEmbedder", "WordLlamaEmbedder", "embedder_named"),
    "fault": ("MemoryFault",),
    "index": ("ExactIndex", "Index"),
    "item": ("Item", "Stats", "clean"),
    "retrieve": ("RetrieveSettings", "Retrieved", "Retriever"),
    "store": ("Candidate", "Store"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Candidate",
    "Embedder",
    "ExactIndex",
    "HashEmbedder",
    "Index",
    "Item",
    "MemoryFault",
    "QRule",
    "RetrieveSettings",
    "Retrieved",
    "Retriever",
    "Stats",
    "Store",
    "WordLlamaEmbedder",
    "clean",
    "credited",
    "embedder_named",
    "q_update",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'memory' has no attribute '{name}'")
    value: object = getattr(_import_module(f"memory.{_HOME[name]}"), name)
    globals()[name] = value
    return value
