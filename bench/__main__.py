"""`python -m bench NAME [--quick]`: a table for people, and one JSON object as the last line for programs.

Only this way: run as a script, a file here would put this folder first on the path, where its `memory.py` hides ours.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

NAMES = ("runner", "memory", "ray", "envs", "evolver", "stats")
LATER = {"train": "there is no trainer yet, so nothing to measure"}


def main() -> None:
    """Measure, show, and say whether the goals were met; a missed goal is a result, not an error."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure one part beside a bare peer.")
    parser.add_argument("name", choices=(*NAMES, *LATER))
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, and rougher")
    chosen = parser.parse_args()
    if chosen.name in LATER:
        sys.exit(f"error: bench {chosen.name} is not there yet: {LATER[chosen.name]}. Known: {', '.join(NAMES)}")
    found = importlib.import_module(f"bench.{chosen.name}").run(chosen.quick)
    _show(chosen.name, found)
    print(json.dumps({"bench": chosen.name, **{part: found[part] for part in ("figures", "goals", "met")}}))


def _show(name: str, found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "value", title=f"bench {name}", title_justify="left")
    table.columns[1].justify = "right"
    for label, value in _flat(found["figures"]):
        table.add_row(label, f"{value:,.4g}" if isinstance(value, float) else str(value))
    goals = Table("goal", "met", title_justify="left")
    for label, value in found["goals"].items():
        bound = f" (at {value['bound']} {value['value']:g})" if isinstance(value, dict) else ""
        met = value["met"] if isinstance(value, dict) else value
        goals.add_row(f"{label}{bound}", "yes" if met else "NO")
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 110)
    console.print(table)
    console.print(goals)


def _flat(figures: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for label, value in figures.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{label}.")
        else:
            yield f"{prefix}{label}", value


if __name__ == "__main__":
    main()
