"""`instar clean`: what a killed run left behind and its reaper could not remove, or did not live to.

It touches only what has a lease whose owner is certainly dead; everything else is named with the reason.
"""

import json as _json
from typing import Annotated, Any

import typer

from evolve.cli_look import FORMAT, Json

#: State of a lease -> how its line begins.
_WORDS = {
    "removed": "removed",
    "found": "would remove",
    "failed": "NOT removed",
    "left": "left alone",
    "held": "in use",
}


def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    json: Json = False,
) -> None:
    """Remove the processes, containers and folders that killed runs left. Exit status 1 if some could not be."""
    from envs.lease import state_folder
    from envs.leftovers import sweep
    from evolve.page import visible

    folder = state_folder()
    found = sweep(str(folder), dry=dry_run)
    if json:
        rows = [{name: getattr(row, name) for name in ("lease", "kind", "state", "what", "why")} for row in found]
        typer.echo(_json.dumps({"format": FORMAT, "folder": str(folder), "dry_run": dry_run, "leases": rows}))
    else:
        for row in found:
            typer.echo(visible(f"{_WORDS[row.state]}: {row.what}{f': {row.why}' if row.why else ''}"))
        typer.echo(_sum(found) or f"nothing was left behind ({folder})")
    if any(row.state == "failed" for row in found):
        raise typer.Exit(1)


def _sum(found: list[Any]) -> str:
    states = [row.state for row in found]
    return ", ".join(f"{states.count(state)} {word}" for state, word in _WORDS.items() if state in states)
