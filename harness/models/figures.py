"""The numbers of an answer: only such as a budget can add up and a journal can keep.

A server that says -5 tokens would undo every limit, and 10**400 no computer can price, so that a number which cannot be
true is an answer that cannot be used, and is never taken for 0. Each check looks at a whole list at once, in C.
"""

import math
from typing import Any

MOST = 2**32  # tokens of a call, and the highest id of a token
_FLOATS = 1.7e308  # a float that is further from 0 is none


def count(told: Any) -> int:
    """A number of tokens; 0 where none is told (None). Raises ValueError when it is no whole number from 0 to MOST."""
    if told is None:
        return 0
    if type(told) is float and told.is_integer():  # of servers whose JSON knows no whole numbers
        told = int(told)
    if type(told) is not int or not 0 <= told <= MOST:
        raise ValueError("a number of tokens is no whole number from 0 to 2**32")
    return told


def price(told: Any) -> float | None:
    """Dollars; None where none, or 0, are told. Raises ValueError when it is no finite number from 0."""
    if told is None:
        return None
    if type(told) not in (int, float) or not 0 <= told <= _FLOATS:
        raise ValueError("a price is no number of dollars")
    return float(told) or None


def ids(told: Any) -> tuple[int, ...] | None:
    """Ids of tokens; None where none are told. Raises ValueError when one is no whole number from 0 to MOST."""
    if not told:
        return None
    if not (isinstance(told, list | tuple) and set(map(type, told)) == {int} and min(told) >= 0 and max(told) <= MOST):
        raise ValueError("an id of a token is no whole number from 0 to 2**32")
    return tuple(told)


def logprobs(told: Any) -> tuple[float, ...] | None:
    """Log-probabilities; None where none are told. Raises ValueError when one is no finite number."""
    if not told:
        return None
    if not (
        isinstance(told, list | tuple)
        and set(map(type, told)) <= {int, float}
        and min(told) >= -_FLOATS
        and max(told) <= _FLOATS
        and all(map(math.isfinite, told))  # JSON keeps no other
    ):
        raise ValueError("a log-probability is no finite number")
    return tuple(map(float, told))
