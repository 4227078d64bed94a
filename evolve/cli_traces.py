"""Commands that carry runs out to other tools and in from them; neither changes a run that is there."""

from pathlib import Path
from typing import Annotated

import typer

from evolve.cli_look import Json, RunArg, as_json, stop


def export(
    run: RunArg,
    to: Annotated[
        str,
        typer.Option("--to", help="jsonl (all of it), rows (for a trainer), otlp (OpenTelemetry spans), mlflow."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file; default: standard output. NAME.gz is compressed.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="otlp: a collector, such as http://127.0.0.1:4318 (headers: OTEL_EXPORTER_OTLP_HEADERS). "
            "mlflow: a tracking URI."
        ),
    ] = None,
    content: Annotated[bool, typer.Option("--content", help="otlp: send what was said and seen, too.")] = False,
    split: Annotated[str | None, typer.Option(help="rows: only tasks of this split; default: all but an exam.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what finishes, until the run ends or Ctrl-C.")
    ] = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Write a run's trajectories for other tools: JSONL, training rows, OpenTelemetry spans, MLflow."""
    from evolve.export import export as go

    if json and out is None and endpoint is None and to != "mlflow":
        stop("--json and the export would both be on standard output. Cure: --out FILE")
    found = go(run, to, out, endpoint=endpoint, content=content, follow=follow, split=split)  # type: ignore[arg-type]
    if json:
        typer.echo(as_json(found))
    else:
        typer.echo(found.summary(), err=out is None and endpoint is None)


def import_(
    file: Annotated[Path, typer.Argument(help="What `instar export` wrote as jsonl or otlp, or others' GenAI spans.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new run folder.")],
    json: Json = False,
) -> None:
    """Make a run folder of exported trajectories or spans, for `report`, `compare` and `export`."""
    from evolve.export import import_run

    found = import_run(file, out)
    if json:
        typer.echo(as_json(found))
        return
    silent = f"; {found.silent_calls} model calls carried no messages, and are left out" if found.silent_calls else ""
    typer.echo(f"{found.folder}: {found.trajectories} trajectories{silent}")


def add_to(app: typer.Typer) -> None:
    """Give `app` these commands."""
    app.command("export")(export)
    app.command("import")(import_)
