"""Starters: complete harness folders to begin from, shipped as the plain files they are."""

import re
from pathlib import Path

from harness.folder import SETTINGS_FILE, Harness
from harness.settings import HarnessError

_HOME = Path(__file__).parent / "starters"


def starters() -> list[str]:
    """Names of the starters."""
    return sorted(path.name for path in _HOME.iterdir() if path.is_dir())


def starter(name: str = "small", called: str | None = None) -> Harness:
    """The starter `name`, under the name `called` as far as one may be; raises HarnessError when there is none."""
    if name not in starters():
        raise HarnessError(f"there is no starter '{name}'. Known: {', '.join(starters())}")
    found = Harness.load(_HOME / name)
    fits = re.sub(r"[^A-Za-z0-9_.-]+", "-", called or "").strip(".-")[:64]
    if not fits or fits == found.settings.name:
        return found
    line = f'name = "{found.settings.name}"'
    return Harness.from_files(
        {**found.files, SETTINGS_FILE: found.files[SETTINGS_FILE].replace(line, f'name = "{fits}"', 1)},
        str(_HOME / name),
    )
