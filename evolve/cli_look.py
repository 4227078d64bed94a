"""Commands that look at what is there: environments, a run's memory, a run's lineage. Only `forget` changes anything.

What a model or a world said is shown with its control characters spelled out, so that it cannot act on a terminal.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

#: Version of what `--json` prints; a change that breaks a reader raises it.
FORMAT = 1

envs_app = typer.Typer(
    no_args_is_help=True, help="Environments: which there are, and whether yours is sound.", rich_markup_mode=None
)
memory_app = typer.Typer(
    no_args_is_help=True, help="The memory of a run: look into it, forget from it.", rich_markup_mode=None
)

Json = Annotated[bool, typer.Option("--json", help='Print one JSON object ("format": 1) instead of text.')]
RunArg = Annotated[Path, typer.Argument(help="A run folder.")]
In = Annotated[Path | None, typer.Option("--in", help="A run folder or a memory file; default: the newest in runs/.")]


def stop(message: str, status: int = 1) -> NoReturn:
    """End the command with one line."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(status)


def as_json(found: "BaseModel", **more: Any) -> str:
    """One JSON object with the version of its format; a number that JSON cannot hold is null."""
    return json.dumps({"format": FORMAT, **more, **json.loads(found.model_dump_json())})


@envs_app.command("list")
def envs_list() -> None:
    """The environments that have a name."""
    from envs.registry import names

    for name, source, description in names():
        typer.echo(f"{name}  ({source})\n    {description}")


@envs_app.command("check")
def envs_check(
    spec: Annotated[str, typer.Argument(help="module:attr, a file, a folder, or a name.")],
    seed: Annotated[int, typer.Option(help="The check's seed.")] = 0, json: Json = False,
) -> None:  # fmt: skip
    """Whether an environment keeps its contract; each fault with its cure. Exit status 1 if it does not."""
    from envs.check import check
    from envs.registry import load

    found = check(load(spec), seed=seed, spec=spec)
    typer.echo(as_json(found) if json else str(found))
    if not found.ok:
        raise typer.Exit(1)


@memory_app.command("list")
def memory_list(
    store: In = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind of item.")] = None,
    n: Annotated[int, typer.Option("--n", "-n", min=1)] = 20,
) -> None:
    """The items of a memory, the most useful first."""
    with _memory(store) as opened:
        items = [item for scope in opened.scopes() for item in opened.items(scope, kind)]
        for item in sorted(items, key=lambda item: (-item.stats.utility, item.id))[:n]:
            _row(item)
        typer.echo(f"{min(n, len(items))} of {len(items)} items")


@memory_app.command("search")
def memory_search(
    text: Annotated[str, typer.Argument(help="What to look for.")],
    store: In = None,
    n: Annotated[int, typer.Option("--n", "-n", min=1)] = 10,
) -> None:
    """The items nearest in meaning to a text."""
    with _memory(store) as opened:
        vector = opened.embed([text])[0]
        found = [c for scope in opened.scopes() for c in opened.search(vector, scope=scope, k=n)]
        for candidate in sorted(found, key=lambda c: (-c.similarity, c.id))[:n]:
            item = opened.get(candidate.id)
            if item is not None:
                _row(item, candidate.similarity)


@memory_app.command("show")
def memory_show(id: Annotated[str, typer.Argument(help="The item's id.")], store: In = None) -> None:
    """One item, whole, with the trajectories that taught it."""
    with _memory(store) as opened:
        item = opened.get(id)
        if item is None:
            stop(f"there is no item {id} in this memory. Cure: instar memory list")
        typer.echo(json.dumps({"format": FORMAT, **item.model_dump(mode="json")}, indent=2))


@memory_app.command("forget")
def memory_forget(ids: Annotated[list[str], typer.Argument(help="Ids of items.")], store: In = None) -> None:
    """Remove items for good; a resumed run does not bring them back."""
    with _memory(store, readonly=False) as opened:
        unknown = [id for id in ids if opened.get(id) is None]
        if unknown:
            stop(
                f"there is no item {', '.join(unknown)} in this memory; nothing was forgotten. Cure: instar memory list"
            )
        typer.echo(f"forgot {opened.forget(*ids)}")


@contextmanager
def _memory(path: Path | None, *, readonly: bool = True) -> Iterator[Any]:
    from memory import Store

    if path is None:
        found = sorted(Path("runs").glob("*/memory.db"), key=lambda file: file.stat().st_mtime)
        if not found:
            stop("no run in runs/ has a memory. Cure: name one with --in RUN")
        path = found[-1]
        typer.echo(f"in {path.parent}", err=True)
    if path.is_dir() and not (path / "memory.db").exists():
        stop(
            f"{path} has no memory of its own (no memory.db). Cure: --in RUN, the folder of an `instar evolve` run "
            "that kept one"
        )
    with Store.open(path / "memory.db" if path.is_dir() else path, readonly=readonly) as store:
        yield store


def _row(item: Any, similarity: float | None = None) -> None:
    from evolve.page import visible

    near = "" if similarity is None else f"sim {similarity:.2f}  "
    key, body = (visible(" ".join(text.split())) for text in (item.key, item.body))
    stats = f"utility {item.stats.utility:+.2f}, credited {item.stats.visits}x"
    typer.echo(f"{item.id}  {near}{stats}\n    {key[:150]}\n    -> {body[:150]}")


def log(run: RunArg) -> None:
    """The versions that an evolution of files tried, as a tree, with what became of each."""
    from evolve.descent import read_descent
    from evolve.page import visible

    typer.echo(visible(read_descent(run).log()))


def blame(
    run: RunArg, file: Annotated[str, typer.Argument(help="A file of the harness, such as prompts/step.md.")]
) -> None:
    """Each line of a file of the chosen harness: which version brought it, and on what hypothesis."""
    from evolve.descent import read_descent
    from evolve.page import visible

    typer.echo(visible(read_descent(run).blame(file)))


def diff(
    run: RunArg,
    a: Annotated[str | None, typer.Argument(help="A version, as in `instar log`; default: the root.")] = None,
    b: Annotated[str | None, typer.Argument(help="Another; default: the chosen one.")] = None,
) -> None:
    """What the evolution changed: the difference between two versions of the harness."""
    from evolve.descent import read_descent
    from evolve.page import visible

    typer.echo(visible(read_descent(run).diff(a, b)), nl=False)


def digest(run: RunArg) -> None:
    """A hash of all that came out of a run, without times, tries and caching: equal runs have equal ones."""
    from harness.journal import Journal

    with Journal(run, readonly=True) as journal:
        typer.echo(journal.digest())


def add_to(app: typer.Typer) -> None:
    """Give `app` these commands."""
    app.add_typer(envs_app, name="envs")
    app.add_typer(memory_app, name="memory")
    for command in (log, blame, diff, digest):
        app.command()(command)
