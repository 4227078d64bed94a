"""The command line: thin, because everything it does can be done from Python too.

A fault of input or infrastructure is one clear line and exit status 1, never a traceback; Ctrl-C stops cleanly, says
how to go on, and exits with 130. Heavy imports happen inside commands, so that `--help` is instant.
"""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(
    name="instar",
    help="Run LLM agents on benchmarks, evolve their harness, and see the evidence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
envs_app = typer.Typer(
    no_args_is_help=True, help="Environments: which there are, and whether yours is sound.", rich_markup_mode=None
)
memory_app = typer.Typer(
    no_args_is_help=True, help="The memory of a run: look into it, forget from it.", rich_markup_mode=None
)
app.add_typer(envs_app, name="envs")
app.add_typer(memory_app, name="memory")

HarnessArg = Annotated[str, typer.Argument(help="A harness folder (see `instar init`).")]
Env = Annotated[
    str, typer.Option("--env", "-e", help="household[:level=2], my_env.py, module:attr; see `instar envs list`.")
]
ModelOpt = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", help="embedded, gguf:FILE, openai/NAME, litellm/PROVIDER/NAME; default: the harness's."
    ),
]
Gguf = Annotated[
    Path | None, typer.Option("--gguf", help="A GGUF file to run in this process: the same as --model gguf:FILE.")
]
ApiBase = Annotated[
    str | None,
    typer.Option("--api-base", help="Address of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1."),
]
ApiKeyEnv = Annotated[
    str | None, typer.Option("--api-key-env", help="Name of the environment variable that holds the key.")
]
Seed = Annotated[int, typer.Option(help="The run's seed: all randomness comes from it.")]
Concurrency = Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Episodes at once.")]
BudgetOpt = Annotated[
    str | None, typer.Option(help="Such as 600calls, 200000tokens, 2usd, 10min; several joined by commas.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Run folder; default: one in runs/ named after all that shapes the run."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
RunArg = Annotated[Path, typer.Argument(help="A run folder.")]
In = Annotated[Path | None, typer.Option("--in", help="A run folder or a memory file; default: the newest in runs/.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The new harness folder.")],
    starter: Annotated[
        str, typer.Option(help="small (picks among choices), react (text), tools (function calls).")
    ] = "small",
) -> None:
    """Make a harness folder that you can read and edit."""
    from harness.starter import starter as load

    load(starter).save(folder)
    typer.echo(
        f"{folder} is ready: read {folder}/harness.toml and {folder}/prompts/, then:\n"
        f"  instar run {folder} --env household --n 10"
    )


@app.command()
def run(
    harness: HarnessArg, env: Env = "household",
    split: Annotated[str, typer.Option(help="Which tasks.")] = "valid",
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="How many tasks, one episode each.")] = 40,
    model: ModelOpt = None, gguf: Gguf = None, api_base: ApiBase = None, api_key_env: ApiKeyEnv = None,
    memory: Annotated[str | None, typer.Option(help="Recall from the memory of this run folder.")] = None,
    seed: Seed = 0, concurrency: Concurrency = 2, budget: BudgetOpt = None, out: Out = None, json: Json = False,
) -> None:  # fmt: skip
    """Run an agent on a benchmark: mean score with its interval, cost, and a journal of everything."""
    from evolve.display import Display
    from evolve.session import run as go

    with Display(quiet=json) as display:
        found = go(
            harness, env, split=split, n=n, model=_model(model, gguf), options=_options(api_base, api_key_env),
            memory=memory, seed=seed, concurrency=concurrency, budget=budget, out=str(out) if out else None,
            watch=display.watch, say=display.say,
        )  # fmt: skip
    if json:
        typer.echo(found.model_dump_json())
        return
    from evolve.terminal import show

    show(Path(found.folder))


@app.command()
def evolve(
    harness: HarnessArg, env: Env = "household",
    recipe: Annotated[str, typer.Option("--recipe", "-r", help="memrl (memory), reflect (prompts).")] = "memrl",
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A setting of the recipe, such as rounds=5; repeatable.")
    ] = None,
    budget: BudgetOpt = None,
    model: ModelOpt = None, gguf: Gguf = None, api_base: ApiBase = None, api_key_env: ApiKeyEnv = None,
    proposer: Annotated[
        str | None, typer.Option(help="A model that proposes edits or writes reflections; it uses the same --api-base.")
    ] = None,
    split: Annotated[str, typer.Option(help="The split of the final exam.")] = "test",
    n: Annotated[int, typer.Option("--n", "-n", min=2, help="Tasks in the final exam.")] = 50,
    seed: Seed = 0, concurrency: Concurrency = 2, out: Out = None, json: Json = False,
) -> None:  # fmt: skip
    """Evolve a harness or its memory beside a control, and examine both on tasks that taught neither."""
    from evolve.display import Display
    from evolve.session import evolve as go

    options = _options(api_base, api_key_env)
    with Display(quiet=json) as display:
        found = go(
            harness, env, recipe=recipe, settings=_settings(settings or []), budget=budget,
            model=_model(model, gguf), options=options, proposer=proposer, proposer_options=options,
            split=split, n=n, seed=seed, concurrency=concurrency,
            out=str(out) if out else None, watch=display.watch, say=display.say,
        )  # fmt: skip
    if json:
        typer.echo(found.outcome.model_dump_json())
        return
    from evolve.page import write
    from evolve.terminal import show

    write(Path(found.folder))
    show(Path(found.folder))


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="The baseline's run folder.")],
    b: Annotated[Path, typer.Argument(help="The candidate's run folder.")],
    json: Json = False,
) -> None:  # fmt: skip
    """Compare two runs, paired by task and episode."""
    from evolve.session import compare_runs

    found = compare_runs(str(a), str(b))
    typer.echo(found.model_dump_json() if json else f"{b} against {a}: {found.summary()}")


@app.command()
def report(
    run: RunArg,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page; default: report.html in the run folder.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Put all transcripts into the page.")] = False,
) -> None:
    """Write one self-contained HTML page about a run."""
    from evolve.page import write
    from evolve.terminal import show

    page = write(run, out, everything=everything)
    show(run)
    typer.echo(f"page: {page}")


@envs_app.command("list")
def envs_list() -> None:
    """The environments that have a name."""
    from envs.registry import names

    for name, source, description in names():
        typer.echo(f"{name}  ({source})\n    {description}")


@envs_app.command("check")
def envs_check(
    spec: Annotated[str, typer.Argument(help="module:attr, a file, a folder, or a name.")],
    seed: Seed = 0, json: Json = False,
) -> None:  # fmt: skip
    """Whether an environment keeps its contract; each fault with its cure. Exit status 1 if it does not."""
    from envs.check import check
    from envs.registry import load

    found = check(load(spec), seed=seed, spec=spec)
    typer.echo(found.model_dump_json() if json else str(found))
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
            _stop(f"there is no item {id} in this memory. Cure: instar memory list")
        typer.echo(item.model_dump_json(indent=2))


@memory_app.command("forget")
def memory_forget(ids: Annotated[list[str], typer.Argument(help="Ids of items.")], store: In = None) -> None:
    """Remove items for good; a resumed run does not bring them back."""
    with _memory(store, readonly=False) as opened:
        unknown = [id for id in ids if opened.get(id) is None]
        if unknown:
            _stop(
                f"there is no item {', '.join(unknown)} in this memory; nothing was forgotten. Cure: instar memory list"
            )
        typer.echo(f"forgot {opened.forget(*ids)}")


@contextmanager
def _memory(path: Path | None, *, readonly: bool = True) -> Iterator[Any]:
    from memory import Store

    if path is None:
        found = sorted(Path("runs").glob("*/memory.db"), key=lambda file: file.stat().st_mtime)
        if not found:
            _stop("no run in runs/ has a memory. Cure: name one with --in RUN")
        path = found[-1]
        typer.echo(f"in {path.parent}", err=True)
    with Store.open(path / "memory.db" if path.is_dir() else path, readonly=readonly) as store:
        yield store


def _row(item: Any, similarity: float | None = None) -> None:
    near = "" if similarity is None else f"sim {similarity:.2f}  "
    key, body = (" ".join(text.split()) for text in (item.key, item.body))
    stats = f"utility {item.stats.utility:+.2f}, credited {item.stats.visits}x"
    typer.echo(f"{item.id}  {near}{stats}\n    {key[:150]}\n    -> {body[:150]}")


def _model(model: str | None, gguf: Path | None) -> str | None:
    if model and gguf:
        _stop("--model and --gguf both name a model. Cure: give one of them")
    return f"gguf:{gguf}" if gguf else model


def _options(api_base: str | None, api_key_env: str | None) -> dict[str, Any]:
    return {key: value for key, value in (("api_base", api_base), ("api_key_env", api_key_env)) if value}


def _settings(pairs: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            _stop(f"--set {pair}: not of the form key=value")
        for kind in (int, float, str):
            try:
                settings[key.strip()] = kind(text)
                break
            except ValueError:
                continue
    return settings


def _stop(message: str, status: int = 1) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(status)


def _expected() -> tuple[type[BaseException], ...]:
    """The errors that tell a person what to do; everything else is a bug and keeps its traceback."""
    from envs.source import EnvError
    from evolve.budget import BudgetExhausted
    from harness.journal import JournalError
    from harness.model import ContextOverflow, ModelFault, ModelRefused
    from harness.runner import RunStopped
    from harness.settings import HarnessError
    from memory.fault import MemoryFault

    return (
        HarnessError,
        EnvError,
        ContextOverflow,
        ModelRefused,
        ModelFault,
        RunStopped,
        JournalError,
        MemoryFault,
        BudgetExhausted,
        ValueError,
        OSError,
    )


def main() -> None:
    """Entry point of the `instar` command."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # some libraries would set it to INFO
    sys.path.insert(0, os.getcwd())  # so that module:attr finds the user's own module
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    status: object = 0
    try:
        status = app(standalone_mode=False)  # typer hands the status of an Exit back, and 130 for Ctrl-C
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # a usage error, of a class that typer moves
            error.show()
            sys.exit(error.exit_code)
        if os.environ.get("INSTAR_DEBUG") or not isinstance(error, _expected()):
            raise
        typer.echo(f"error: {error}", err=True)
        status = 1
    if status == 130:
        typer.echo("\nstopped. What had finished is kept; the same command goes on from there.", err=True)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
