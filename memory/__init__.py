"""Memory: versioned items in SQLite, vectors beside them, retrieval and credit. Knows none of its sisters."""

from memory._sisters import check_sisters as _check_sisters

_check_sisters(__name__, __file__)

from memory.item import Item  # noqa: E402

__all__ = ["Item"]
