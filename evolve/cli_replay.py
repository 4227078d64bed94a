"""`instar replay`: a benchmark run again with one thing changed, served from its record as far as it did not change."""

from pathlib import Path
from typing import Annotated

import typer

from evolve.cli_look import Json, RunArg, as_json


def replay(
    run: RunArg,
    from_step: Annotated[
        int, typer.Option("--from", min=0, help="Turn from which the change acts; before it the record answers.")
    ] = 0,
    with_: Annotated[
        Path | None, typer.Option("--with", help="Another harness folder; default: the run's own.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Another model.")] = None,
    api_base: Annotated[str | None, typer.Option("--api-base", help="Address of that model.")] = None,
    api_key_env: Annotated[str | None, typer.Option("--api-key-env", help="Variable that holds its key.")] = None,
    env: Annotated[str | None, typer.Option("--env", "-e", help="Another version of the environment.")] = None,
    task: Annotated[list[str] | None, typer.Option("--task", "-t", help="Only this task; repeatable.")] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Episodes at once.")] = 2,
    calls: Annotated[int | None, typer.Option("--calls", min=1, help="Calls of the model at once.")] = None,
    worlds: Annotated[int | None, typer.Option("--worlds", min=1, help="Steps of environments at once.")] = None,
    isolate: Annotated[bool, typer.Option("--isolate", help="Worlds in processes of their own.")] = False,
    world_seconds: Annotated[float, typer.Option("--world-seconds", min=0.01, help="Of a step there.")] = 60.0,
    budget: Annotated[str | None, typer.Option(help="Such as 600calls, 200000tokens, 2usd.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder of the replay.")] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Play a benchmark run again with one thing changed; what is unchanged is served from the run's record."""
    from evolve.display import Display
    from evolve.page import visible
    from evolve.replay import replay as go

    given = {"api_base": api_base, "api_key_env": api_key_env}
    options = {key: value for key, value in given.items() if value} or None
    with Display(quiet=json) as display:
        found = go(
            str(run), harness=str(with_) if with_ else None, model=model, options=options, env=env,
            from_step=from_step, tasks=task, concurrency=concurrency, calls=calls, worlds=worlds,
            isolate=world_seconds if isolate else False, budget=budget, out=str(out) if out else None,
            watch=display.watch, say=display.say,
        )  # fmt: skip
    if json:
        typer.echo(as_json(found))
        return
    played = found.evaluation.mean.episodes + found.evaluation.mean.missing
    typer.echo(f"{found.served} calls from the record, {found.asked} asked; replay: {found.folder}")
    typer.echo(f"{found.same} of {played} episodes went as they had")
    if found.first:
        turns = ", ".join(f"{n} at turn {turn}" for turn, n in list(found.first.items())[:6])
        typer.echo(f"the others first differ: {turns}{', ...' if len(found.first) > 6 else ''}")
    if found.astray:
        typer.echo(
            f"{found.astray} episodes left the record before turn {from_step}: the world or the loop answers the same "
            "actions in another way, so these do not show what the change does"
        )
    typer.echo(visible(f"replay (candidate) against {run} (baseline): {found.comparison.summary()}"))
