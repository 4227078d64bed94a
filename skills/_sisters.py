"""The five package names are generic, and a user's own project may have an `envs/` too.

So each of our packages checks on import that its sisters are its own distribution's, and says which folder
shadows them otherwise. The same few lines stand in each package, because none may need another one to be found.
"""

import importlib.util
import os

SISTERS = ("envs", "memory", "skills", "harness", "evolve")


def check_sisters(package: str, file: str) -> None:
    """Raise ImportError when a sister package would be imported from outside this distribution.

    `package` and `file` are the importing package's `__name__` and `__file__`.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(file)))
    for sister in SISTERS:
        if sister == package:
            continue
        spec = importlib.util.find_spec(sister)
        found = _folder(spec)
        if found is None:
            raise ImportError(
                f"instar's package '{sister}' is missing beside '{package}' in {home}. Cure: install instar again"
            )
        if not os.path.samefile(os.path.dirname(found), home):
            raise ImportError(
                f"'{sister}' is instar's name, but Python finds another one first: {found}. "
                f"Cure: rename that folder or file, or start Python from another directory (instar's own is in {home})."
            )


def _folder(spec: object) -> str | None:
    locations = getattr(spec, "submodule_search_locations", None)
    if locations:
        return str(next(iter(locations)))
    origin = getattr(spec, "origin", None)  # a plain module such as ./memory.py shadows us too
    return str(origin) if origin else None
