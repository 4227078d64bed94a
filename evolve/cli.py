"""The command line: thin, because everything it does can be done from Python too.

A fault of input or infrastructure is one clear line and exit status 1, never a traceback; Ctrl-C stops cleanly, says
how to go on, and exits with 130. Heavy imports happen inside commands, so that `--help` is instant.
"""

import logging
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from evolve.cli_clean import clean
from evolve.cli_look import Json, RunArg, add_to, as_json, stop
from evolve.cli_proxy import proxy
from evolve.cli_replay import replay
from evolve.cli_stats import add_to as add_stats
from evolve.cli_traces import add_to as add_traces

app = typer.Typer(
    name="instar",
    help="Run LLM agents on benchmarks, evolve their harness, and see the evidence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
    typer.Option("--api-base", help="Address of the agent's model, such as http://127.0.0.1:8000/v1."),
]
ApiKeyEnv = Annotated[
    str | None, typer.Option("--api-key-env", help="Name of the environment variable that holds its key.")
]
Seed = Annotated[int, typer.Option(help="The run's seed: all randomness comes from it.")]
Concurrency = Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Episodes at once.")]
CallsOpt = Annotated[
    int | None, typer.Option("--calls", min=1, help="Calls of the model at once; default: what its server bears.")
]
WorldsOpt = Annotated[
    int | None, typer.Option("--worlds", min=1, help="Steps of environments at once; default: one an episode.")
]
Isolate = Annotated[
    bool, typer.Option("--isolate", help="Worlds in processes of their own: what hangs or crashes there is stopped.")
]
WorldSeconds = Annotated[
    float, typer.Option("--world-seconds", min=0.01, help="With --isolate: seconds after which a step is stopped.")
]
BudgetOpt = Annotated[
    str | None,
    typer.Option(
        help="Such as 600calls, 200000tokens, 2usd, 10min; several joined by commas. Time is that of the episodes, "
        "summed, and not the clock's."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Run folder; default: one in runs/ named after all that shapes the run."),
]

On = Annotated[
    str | None, typer.Option("--on", help="Play in workers of Ray: ray (this machine), ray://HOST:PORT, ray://auto.")
]
WorkersOpt = Annotated[int | None, typer.Option("--workers", min=1, help="Workers of Ray; default: one for each CPU.")]


class Retry(StrEnum):
    """What to do with episodes that an earlier call lost."""

    failed = "failed"
    none = "none"


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The new harness folder.")],
    starter: Annotated[
        str, typer.Option(help="small (picks among choices), react (text), tools (function calls).")
    ] = "small",
) -> None:
    """Make a harness folder that you can read and edit."""
    from harness.starter import starter as load

    load(starter, folder.resolve().name).save(folder)
    typer.echo(
        f"{folder} is ready: read {folder}/harness.toml and {folder}/prompts/, then:\n"
        f"  instar run {folder} --env household --n 10"
    )


@app.command()
def run(
    harness: HarnessArg, env: Env = "household",
    split: Annotated[str, typer.Option(help="Which tasks: train, valid, test, or another split.")] = "valid",
    n: Annotated[int | None, typer.Option("--n", "-n", min=1, help="How many tasks; default: 40, or all.")] = None,
    episodes: Annotated[
        int, typer.Option("--episodes", "-k", min=1, help="Episodes of each task; with several: pass@k and pass^k.")
    ] = 1,
    model: ModelOpt = None, gguf: Gguf = None, api_base: ApiBase = None, api_key_env: ApiKeyEnv = None,
    memory: Annotated[str | None, typer.Option(help="Recall from the memory of this run folder.")] = None,
    seed: Seed = 0, concurrency: Concurrency = 2, calls: CallsOpt = None, worlds: WorldsOpt = None,
    retry: Annotated[
        Retry, typer.Option(help="failed: play episodes that were lost again; none: leave them missing.")
    ] = Retry.failed,
    max_missing: Annotated[
        float, typer.Option(min=0, max=1, help="Share of lost episodes above which the run is undecided.")
    ] = 0.2,
    isolate: Isolate = False, world_seconds: WorldSeconds = 60.0, on: On = None, workers: WorkersOpt = None,
    budget: BudgetOpt = None, out: Out = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Run an agent on a benchmark: mean score with its interval, cost, and a journal of everything.

    The same command goes on where it was cut off. Only lost episodes are ever played again: to repeat a bad score until
    it is a good one would not be a measurement.
    """
    from evolve.display import Display
    from evolve.session import run as go

    with Display(quiet=json) as display:
        found = go(
            harness, env, split=split, n=n, episodes=episodes, model=_model(model, gguf),
            options=_options(harness, _model(model, gguf), api_base, api_key_env), memory=memory, seed=seed,
            concurrency=concurrency, calls=calls, worlds=worlds, fill=retry is Retry.failed,
            isolate=world_seconds if isolate else False,
            on=on, workers=workers, max_missing=max_missing, budget=budget, out=str(out) if out else None,
            watch=display.watch, say=display.say,
        )  # fmt: skip
    if json:
        typer.echo(as_json(found))
        return
    from evolve.terminal import show

    show(Path(found.folder))


@app.command()
def evolve(
    harness: HarnessArg, env: Env = "household",
    recipe: Annotated[
        str, typer.Option("--recipe", "-r", help="memrl (memory), reflect (prompts), or yours: FILE.py:NAME.")
    ] = "memrl",
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A setting of the recipe, such as rounds=5; repeatable.")
    ] = None,
    budget: BudgetOpt = None,
    model: ModelOpt = None, gguf: Gguf = None, api_base: ApiBase = None, api_key_env: ApiKeyEnv = None,
    proposer: Annotated[
        str | None, typer.Option(help="A model that proposes edits or writes reflections.")
    ] = None,
    proposer_api_base: Annotated[
        str | None, typer.Option(help="Address of the proposer; default: --api-base, if neither model is local.")
    ] = None,
    proposer_api_key_env: Annotated[
        str | None, typer.Option(help="Name of the variable with its key; default: --api-key-env, likewise.")
    ] = None,
    split: Annotated[str, typer.Option(help="The split of the final exam; train and valid are learnt from.")] = "test",
    n: Annotated[int | None, typer.Option("--n", "-n", min=2, help="Tasks in the exam; default: 50, or all.")] = None,
    seed: Seed = 0, concurrency: Concurrency = 2, calls: CallsOpt = None, worlds: WorldsOpt = None,
    isolate: Isolate = False, world_seconds: WorldSeconds = 60.0, on: On = None, workers: WorkersOpt = None,
    out: Out = None, json: Json = False,
) -> None:  # fmt: skip
    """Evolve a harness or its memory beside a control, and examine both on tasks that taught neither."""
    from evolve.display import Display
    from evolve.session import evolve as go

    chosen = _model(model, gguf)
    options = _options(harness, chosen, api_base, api_key_env)
    with Display(quiet=json) as display:
        found = go(
            harness, env, recipe=recipe, settings=_settings(settings or []), budget=budget,
            model=chosen, options=options, proposer=proposer,
            proposer_options=_proposer_options(proposer, proposer_api_base, proposer_api_key_env, options),
            split=split, n=n, seed=seed, concurrency=concurrency, calls=calls, worlds=worlds,
            isolate=world_seconds if isolate else False,
            on=on, workers=workers, out=str(out) if out else None, watch=display.watch, say=display.say,
        )  # fmt: skip
    from evolve.page import write
    from evolve.terminal import show

    page = write(Path(found.folder))
    if json:
        typer.echo(as_json(found.outcome, folder=found.folder, page=str(page)))
        return
    show(Path(found.folder))


@app.command()
def report(
    run: RunArg,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page; default: report.html in the run folder.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Put all transcripts into the page.")] = False,
) -> None:
    """Write one self-contained HTML page about a run."""
    import gc

    from evolve.page import write
    from evolve.report import read_report
    from evolve.terminal import show

    gc.disable()  # a long run has a hundred thousand rows, which would be looked through again and again in vain
    data = read_report(run)
    show(data, page=write(data, out, everything=everything))


add_to(app)
add_stats(app)
add_traces(app)
app.command()(clean)
app.command()(proxy)
app.command()(replay)


def _model(model: str | None, gguf: Path | None) -> str | None:
    if model and gguf:
        stop("--model and --gguf both name a model. Cure: give one of them")
    return f"gguf:{gguf}" if gguf else model


def _options(harness: str, model: str | None, api_base: str | None, api_key_env: str | None) -> dict[str, Any]:
    """Options of the agent's model; a model that runs here has no address, so one that is given is a mistake."""
    options = {key: value for key, value in (("api_base", api_base), ("api_key_env", api_key_env)) if value}
    if not options:
        return {}
    if model is None:
        from harness.folder import Harness

        model = Harness.load(harness).settings.model.name
    if _is_local(model):
        flag = f"--{next(iter(options)).replace('_', '-')}"
        stop(
            f"{flag} is for a model on a server, but the agent's model, {model}, runs in this process. "
            f"Cure: --model openai/NAME for the agent, or --proposer{flag[1:]} if the proposer's is meant"
        )
    return options


def _proposer_options(
    proposer: str | None, api_base: str | None, api_key_env: str | None, agent: dict[str, Any]
) -> dict[str, Any]:
    """Options of the proposer; what is not given is as for the agent, unless the proposer runs here."""
    given = {key: value for key, value in (("api_base", api_base), ("api_key_env", api_key_env)) if value}
    if proposer is None or _is_local(proposer):
        if given:
            flag = f"--proposer-{next(iter(given)).replace('_', '-')}"
            stop(f"{flag} is for a proposer on a server. Cure: --proposer openai/NAME, or leave the flag out")
        return {}
    return agent | given


def _is_local(model: str) -> bool:
    return model == "embedded" or model.startswith(("gguf:", "scripted:"))


def _settings(pairs: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            stop(f"--set {pair}: not of the form key=value")
        for kind in (int, float, str):
            try:
                settings[key.strip()] = kind(text)
                break
            except ValueError:
                continue
    return settings


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


def _is_expected(error: Exception) -> bool:
    """Whether `error` is one that tells a person what to do. A ValidationError is none: pydantic's words are for us."""
    from pydantic import ValidationError

    return isinstance(error, _expected()) and not isinstance(error, ValidationError)


def main() -> None:
    """Entry point of the `instar` command."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # some libraries would set it to INFO
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` would have it ignored, and SIGTERM too
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    status: object = 0
    try:
        # So that module:attr finds the user's own modules; last, because a folder of theirs may have a name of ours.
        sys.path.append(os.getcwd())
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
        if not _is_expected(error):
            error.add_note(
                "This was not expected: a fault of instar's, or of code of yours that it ran. What had finished is "
                "kept. INSTAR_DEBUG=1 shows where the expected errors, which are one line, come from."
            )
            raise
        if os.environ.get("INSTAR_DEBUG"):
            raise
        from evolve.page import visible  # a server or a world may have had a say in it

        typer.echo(f"error: {visible(str(error))}", err=True)
        status = 1
    if status == 130:
        typer.echo("\nstopped. What had finished is kept; the same command goes on from there.", err=True)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
