"""Evolution: the loop that changes a harness or its memory and keeps only what evidence supports."""

from typing import TYPE_CHECKING

from evolve._sisters import check_sisters as _check_sisters

_check_sisters(__name__, __file__)

if TYPE_CHECKING:
    from evolve.session import Evaluation, compare_runs, evolve, run

__all__ = ["Evaluation", "compare_runs", "evolve", "run"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'evolve' has no attribute '{name}'")
    import evolve.session

    value: object = getattr(evolve.session, name)
    globals()[name] = value
    return value
