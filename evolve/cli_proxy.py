"""`instar proxy`: an OpenAI-compatible address that any agent can be pointed at, and that writes down what it does.

The provider's key is read by name and stays here; clients choose a key of their own, and its name is their episode's.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evolve.cli_look import Json, stop

if TYPE_CHECKING:
    from evolve.budget import Budget
    from evolve.setup import Setup
    from harness.journal import Journal
    from harness.model import Model

_HARNESS = 'name = "proxy"\n[control]\nloop = "command"\n[command]\nargv = ["foreign"]\n'


def proxy(
    model: Annotated[str, typer.Option("--model", "-m", help="Who answers: openai/NAME, litellm/..., embedded, ...")],
    api_base: Annotated[str | None, typer.Option("--api-base", help="Address of the model.")] = None,
    api_key_env: Annotated[str | None, typer.Option("--api-key-env", help="Variable that holds its key.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="An option of the model, such as token_ids=true or timeout=300; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; default: one in runs/ named after the model.")
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; elsewhere than here needs --token-env.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 0,
    token_env: Annotated[
        str | None,
        typer.Option("--token-env", help="Variable with a secret that clients append to their keys, after a dot."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Such as 600calls, 200000tokens, 2usd, 10min of the model's time.")
    ] = None,
    idle: Annotated[float, typer.Option(min=0.1, help="Seconds without a call that end an episode.")] = 600.0,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Of an answer, where the client does not say.")
    ] = 2048,
    seed: Annotated[int, typer.Option(help="Of requests that sample and bring no seed.")] = 0,
    json: Json = False,
) -> None:  # fmt: skip
    """Record what any agent does: an OpenAI-compatible endpoint in front of a model, with a journal and a budget."""
    import asyncio

    from evolve.budget import Budget
    from evolve.setup import Setup
    from evolve.teller import Teller
    from harness.folder import Harness
    from harness.proxy.conversation import NO_WORLD
    from harness.proxy.server import check_host

    options = _options(option or []) | {
        name: value for name, value in (("api_base", api_base), ("api_key_env", api_key_env)) if value is not None
    }
    limit = Budget.parse(budget or "")
    setup = Setup(Harness.from_files({"harness.toml": _HARNESS}), NO_WORLD, model, options, seed, concurrency=4)
    setup.check_price(limit.dollars)
    token = _token(token_env)
    check_host(host, token)
    answering = setup.connect()  # a wrong name or a missing file is an error before anything is written
    plan = setup.plan("proxy", NO_WORLD, (), split="proxy", budget=budget)
    where = {"host": host, "port": port, "token": token}
    tell = Teller(json=json)
    try:
        asyncio.run(_serve(setup, plan, answering, limit, out, where, idle, max_tokens, tell))
    finally:
        tell.close()


async def _serve(
    setup: "Setup", plan: dict[str, Any], model: "Model", limit: "Budget", out: Path | None, where: dict[str, Any],
    idle: float, max_tokens: int, tell: "Callable[[dict[str, Any], str], None]",
) -> None:  # fmt: skip
    from evolve.purse import Purse
    from evolve.setup import digest
    from harness.journal import Journal
    from harness.proxy.conversation import Conversations
    from harness.proxy.server import Proxy
    from harness.proxy.wire_in import Defaults

    shaping = {key: value for key, value in plan.items() if key != "budget"}  # more money is no other run
    try:
        with Journal(out or Path("runs") / f"proxy-{digest(shaping)[:8]}") as journal:
            _claim(journal, plan)
            purse = Purse(limit)
            purse.spent_in(journal)
            conversations = Conversations(
                journal, model, seed=setup.seed, defaults=Defaults(max_tokens=max_tokens), idle=idle,
                allowance=None if limit.unlimited else purse, say=lambda text: tell({"said": text}, text),
            )  # fmt: skip
            server = Proxy(conversations, names=[model.name], **where)
            await server.start()
            try:
                tell({"url": f"{server.url}/v1", "folder": str(journal.folder)}, _greeting(server.url, journal, model))
                await conversations.watch()
            finally:
                await server.close()
                await conversations.close()
    finally:
        await model.close()


def _greeting(url: str, journal: "Journal", model: "Model") -> str:
    return (
        f"{model.name} answers at {url}/v1; journal: {journal.folder}\n"
        f"  export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=sk-instar-NAME   # NAME is the episode's\n"
        f"  curl {url}/s/sk-instar-NAME/instar/finish -d '{{\"score\": 1.0}}'      # ends it\n"
        "Ctrl-C stops and ends the open episodes."
    )


def _claim(journal: "Journal", plan: dict[str, Any]) -> None:
    """Write down what is recorded here, or check that it is the same model's."""
    from json import dumps, loads

    from harness.journal import JournalError

    known, now = journal.last("plan"), loads(dumps(plan))
    if known is None:
        journal.append("plan", plan | {"files": {}})
        return
    different = [key for key, value in now.items() if known.body.get(key) != value and key != "budget"]
    if different:
        raise JournalError(
            f"{journal.folder}: holds another run (it differs in {', '.join(different)}). "
            "Cure: choose another folder with --out"
        )


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    from harness.secrecy import wrong_variable

    if wrong_variable(variable):
        stop("--token-env is no name of a variable. Cure: export MY_TOKEN=..., and --token-env MY_TOKEN")
    token = os.environ.get(variable, "")
    if len(token) < 16 or "." in token or not token.isascii() or not token.isprintable() or " " in token:
        stop(f"{variable} must hold a secret of at least 16 letters and digits, without a dot or a space")
    return token


def _options(pairs: list[str]) -> dict[str, Any]:
    """Options of the model: values as TOML has them, and else texts."""
    import tomllib

    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key.strip():
            stop("--option is not of the form key=value")  # not repeated: it may be a key
        if key.strip() == "api_key":
            stop("never give a key on the command line. Cure: export MY_KEY=..., and --api-key-env MY_KEY")
        try:
            options[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            options[key.strip()] = text
    return options
