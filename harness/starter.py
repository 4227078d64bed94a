"""Starters: complete harness folders to begin from, shipped as the plain files they are."""

from pathlib import Path

from harness.folder import Harness
from harness.settings import HarnessError

_HOME = Path(__file__).parent / "starters"


def starters() -> list[str]:
    """Names of the starters."""
    return sorted(path.name for path in _HOME.iterdir() if path.is_dir())


def starter(name: str = "small") -> Harness:
    """The starter `name`; raises HarnessError when there is none."""
    if name not in starters():
        raise HarnessError(f"there is no starter '{name}'. Known: {', '.join(starters())}")
    return Harness.load(_HOME / name)
