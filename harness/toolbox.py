"""The folder's own tools: each `tools/NAME.py` defines one function NAME, and skills can be read on demand.

The schema comes from the function's type hints and docstring. These files are the user's code and run in this
process; no proposer of ours may write them. A tool's error is text for the model, not the end of the run; a tool that
takes long keeps nothing else waiting, since a plain function runs in a thread, and its time is the episode's.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, cast

from harness.folder import Harness
from harness.settings import HarnessError


class ToolFault(Exception):
    """A tool could not do what the model asked."""


class Toolbox:
    """The tools of a harness, by name."""

    def __init__(self, harness: Harness) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        for path, source in harness.files.items():
            if path.startswith("tools/") and path.endswith(".py"):
                self._functions[PurePosixPath(path).stem] = _load(f"{harness.where}/{path}", source)
        for name in ("act", "read_skill"):
            if name in self._functions:
                raise HarnessError(f"{harness.where}/tools/{name}.py: '{name}' is taken. Cure: choose another name")
        skills = {path: text for path, text in harness.files.items() if path.startswith("skills/")}
        if skills and harness.settings.skills.disclose != "none":

            def read_skill(name: str, file: str = "SKILL.md") -> str:
                """Read a skill's full instructions, or another file that they name."""
                path = f"skills/{name}/{file}"
                if path not in skills:
                    raise ToolFault(f"there is no {path}; there are: {', '.join(sorted(skills))}")
                return skills[path]

            self._functions["read_skill"] = read_skill

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def schemas(self) -> list[dict[str, Any]]:
        """One function schema a tool, from type hints and docstring."""
        from pydantic import TypeAdapter

        out = []
        for name, function in self._functions.items():
            arguments = TypeAdapter[Any](cast(Any, function)).json_schema()
            out.append({"name": name, "description": (function.__doc__ or name).strip(), "parameters": arguments})
        return out

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The tool's result as text; raises ToolFault for wrong arguments and for the tool's own errors."""
        from pydantic import ValidationError, validate_call

        function = self._functions[name]
        checked = validate_call(function)
        try:
            if inspect.iscoroutinefunction(function):
                return str(await checked(**arguments))
            return str(await _in_thread(lambda: checked(**arguments), name))
        except ToolFault:
            raise
        except ValidationError as error:
            raise ToolFault(
                f"{name}: " + "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            ) from error
        except Exception as error:
            raise ToolFault(f"{name}: {type(error).__name__}: {error}") from error


def _load(name: str, source: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"__name__": PurePosixPath(name).stem, "__file__": name}
    try:
        exec(compile(source, name, "exec"), space)
    except Exception as error:
        raise HarnessError(f"{name}: cannot be loaded: {type(error).__name__}: {error}") from error
    function = space.get(PurePosixPath(name).stem)
    if not callable(function):
        raise HarnessError(f"{name}: must define a function named {PurePosixPath(name).stem}")
    return function  # type: ignore[no-any-return]


async def _in_thread(work: Callable[[], Any], name: str) -> Any:
    """The result of `work`, done in a thread of its own.

    No pool: a pool waits for its threads at the end, and one tool that never returns would keep the run from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not done.done():  # else the episode's time was up, and nobody waits any more
            done.set_result((result, error))

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001 - handed to who waits; else that one would wait for ever
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the run has ended meanwhile
            return

    threading.Thread(target=run, name=f"tool {name}", daemon=True).start()
    result, error = await done
    if error is None:
        return result
    raise error if isinstance(error, Exception) else ToolFault(f"{name}: {type(error).__name__}: {error}")
