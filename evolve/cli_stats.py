"""Commands about evidence: which of several runs is better, and how large a run has to be to show it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evolve.cli_look import Json, as_json

if TYPE_CHECKING:
    from rich.table import Table

    from evolve.contest import Contest, Entry
    from evolve.power import Plan, Reach
    from evolve.stats import Comparison


def compare(
    baseline: Annotated[Path, typer.Argument(help="The baseline's run folder.")],
    candidates: Annotated[list[Path], typer.Argument(help="The candidates' run folders, one or more.")],
    json: Json = False,
) -> None:
    """Compare runs with a baseline, paired by task and episode; several candidates with Holm's correction."""
    from evolve.pairing import compare_runs, contest_runs, differences

    differ = {str(folder): differences(str(baseline), str(folder)) for folder in candidates}
    if len(candidates) == 1:
        found = compare_runs(str(baseline), str(candidates[0]))
        if json:
            typer.echo(as_json(found, differs_in=differ[str(candidates[0])]))
            return
        typer.echo(f"{candidates[0]} (candidate) against {baseline} (baseline): {found.summary()}")
        typer.echo(f"differs in: {_listed(differ[str(candidates[0])])}")
        return
    several = contest_runs(str(baseline), [str(folder) for folder in candidates])
    if json:
        typer.echo(as_json(several, better=several.better, differs_in=differ))
        return
    _print(_standing(several))
    for entry in several.candidates:
        typer.echo(f"{entry.name}: {_counts(entry.comparison)}; differs in: {_listed(differ[entry.name])}")
    typer.echo(
        f"{len(several.candidates)} candidates, Holm's correction: the chance that any of these claims is wrong is at "
        f"most {100 * (1 - several.level):g} %. Each interval is at the level at which its candidate was tested. The "
        "candidates were not compared with each other."
    )


def power(
    run: Annotated[Path, typer.Argument(help="A finished run folder: how its scores vary is what is planned with.")],
    other: Annotated[
        Path | None, typer.Argument(help="A second run of the same tasks: then the pairs themselves are measured.")
    ] = None,
    effect: Annotated[
        list[float] | None,
        typer.Option(
            "--effect", "-d", help="A difference to show; repeatable; default: 5, 10, 20 % of the score range."
        ),
    ] = None,
    episodes: Annotated[
        list[int] | None,
        typer.Option("--episodes", "-k", help="Episodes of each task; repeatable; default: 1, 2, 4, 8."),
    ] = None,
    chance: Annotated[float, typer.Option("--power", help="The chance of showing it.")] = 0.8,
    correlation: Annotated[
        float | None,
        typer.Option(help="How alike tasks are hard for both agents, 0 to 1, when one run is given; default: 0.5."),
    ] = None,
    json: Json = False,
) -> None:
    """How many tasks and episodes show a difference, and which difference a run like this one can show."""
    from evolve.cli_look import stop
    from evolve.pairing import plan_run
    from evolve.power import CORRELATION

    if other is not None and correlation is not None:
        stop(
            "--correlation is assumed from one run, and measured from two. Cure: give either a second run or the option"
        )
    found = plan_run(
        str(run), str(other) if other else None, effects=effect or (), episodes=episodes or (), power=chance,
        correlation=CORRELATION if correlation is None else correlation,
    )  # fmt: skip
    if json:
        typer.echo(as_json(found))
        return
    for line in _assumed(found):
        typer.echo(line)
    typer.echo(f"\ntasks that show a difference with {100 * found.power:g} % power:")
    _print(_sizes(found))
    for reach in found.reaches:
        typer.echo(_reached(reach, found.tasks))


def add_to(app: typer.Typer) -> None:
    """Give `app` these commands."""
    for command in (compare, power):
        app.command()(command)


def _listed(differ: list[str]) -> str:
    return ", ".join(differ) or "nothing that the runs wrote down"


def _standing(found: "Contest") -> "Table":
    table = _table("candidate", "mean", "difference", "p", "Holm's p", "verdict")
    base = [e.comparison.baseline for e in found.candidates if e.comparison.baseline is not None]
    table.add_row(found.baseline, f"{base[0]:.3f}" if base else "none", "", "", "", "baseline")
    for entry in found.candidates:
        c = entry.comparison
        if c.candidate is None or c.difference is None or c.low is None or c.high is None or c.p_value is None:
            table.add_row(entry.name, "none", "", "", "", "undecided")
            continue
        table.add_row(
            entry.name, f"{c.candidate:.3f}", f"{c.difference:+.3f} [{c.low:+.3f}, {c.high:+.3f}]", f"{c.p_value:.2g}",
            "" if entry.p_adjusted is None else f"{entry.p_adjusted:.2g}", _verdict(entry),
        )  # fmt: skip
    return table


def _counts(c: "Comparison") -> str:
    hidden = f", {c.missing} missing" if c.missing else ""
    if c.missing and c.worst is not None and c.best is not None:
        hidden += f" (between {c.worst:+.3f} and {c.best:+.3f})"
    alone = f", {c.unpaired} unpaired" if c.unpaired else ""
    return f"{c.wins} won, {c.losses} lost, {c.ties} tied{hidden}{alone}; {c.reason}"


def _verdict(entry: "Entry") -> str:
    if not entry.comparison.decided:
        return "undecided"
    return {"candidate": "better", "baseline": "worse", None: "not shown"}[entry.comparison.winner]


def _assumed(found: "Plan") -> list[str]:
    """What the run shows, and what had to be assumed."""
    what = "differences" if found.paired else "scores"
    lines = [f"{found.tasks} tasks, {found.episodes:.3g} {'pairs' if found.paired else 'episodes'} a task"]
    lines[0] += f", {100 * found.missing:.1f} % missing" if found.missing else ""
    if found.between is None or found.within is None:
        lines.append(
            f"{what} vary by {found.total:.3g} (variance); with one episode a task nothing shows how much of it is "
            "luck, so the sizes are the largest that are possible"
        )
    else:
        lines.append(f"variance of {what}: {found.between:.3g} between tasks, {found.within:.3g} within a task (luck)")
    if not found.paired:
        lines.append(
            f"assumed: another agent's scores vary as much, tasks are hard alike with correlation "
            f"{found.correlation:g}, luck is not shared; a second run as pilot would measure it"
        )
    lines.append(
        f"a comparison of two runs of this size shows a difference of {found.detectable:.3f} with "
        f"{100 * found.power:g} % power"
    )
    return lines


def _sizes(found: "Plan") -> "Table":
    episodes = list(dict.fromkeys(size.episodes for size in found.sizes))
    table = _table("difference", *(f"{k} {'episode' if k == 1 else 'episodes'}" for k in episodes))
    for effect in dict.fromkeys(size.effect for size in found.sizes):
        cells = []
        for size in (size for size in found.sizes if size.effect == effect):
            more = f"\n(ask {size.asked:,})" if size.asked != size.tasks else ""
            cells.append("over 1,000,000" if size.tasks is None else f"{size.tasks:,}{more}")
        table.add_row(f"{effect:g}", *cells)
    return table


def _reached(reach: "Reach", tasks: int) -> str:
    if reach.episodes is not None:
        each = "1 episode" if reach.episodes == 1 else f"{reach.episodes} episodes"
        return f"with {tasks} tasks, {reach.effect:g} takes {each} of each"
    if reach.known:
        return f"with {tasks} tasks, {reach.effect:g} cannot be shown by any number of episodes"
    return f"with {tasks} tasks, how many episodes {reach.effect:g} takes is not known: run two or more of each"


def _table(first: str, *others: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _print(table: "Table") -> None:
    from rich.console import Console

    Console(highlight=False, markup=False, soft_wrap=False).print(table)
