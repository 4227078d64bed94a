"""Prompt files and their placeholders: `{goal}` is filled in, `{{goal}}` is printed as `{goal}`, anything else is text.

Only names in lower case between single braces are placeholders, so JSON and code in a prompt stay as they are.
An unknown placeholder is an error when the folder is loaded, not a surprise in the hundredth episode; so is one in a
file that another one includes, since what is included is text and not expanded again.
"""

import re
from collections.abc import Iterable, Mapping

from harness.settings import HarnessError

#: What every loop fills in.
BUILT_IN = ("goal", "observation", "history", "choices", "situation", "memories", "skills")
_HOLE = re.compile(r"\{\{([a-z_][a-z0-9_]*)\}\}|\{([a-z_][a-z0-9_]*)\}")


def placeholders(text: str) -> list[str]:
    """The placeholders of `text` in order of appearance, with repetitions."""
    return [hole.group(2) for hole in _HOLE.finditer(text) if hole.group(2)]


def check(text: str, where: str, known: Iterable[str]) -> None:
    """Raise HarnessError when `text` has a placeholder outside `known`."""
    names = set(known)
    for name in placeholders(text):
        if name not in names:
            raise HarnessError(
                f"{where}: unknown placeholder {{{name}}}. Known: {', '.join(sorted(names))}. "
                f"Cure: correct the name, or write {{{{{name}}}}} to print it literally"
            )


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with its placeholders replaced, in one pass: what a value contains is never expanded again."""

    def replace(hole: re.Match[str]) -> str:
        literal, name = hole.group(1), hole.group(2)
        return f"{{{literal}}}" if literal else values[name]

    return _HOLE.sub(replace, text)
