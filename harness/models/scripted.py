"""A model that is a plain function of the request: tests and examples know every answer beforehand."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

from harness.model import Completion, Model, ModelRefused, Request, Usage

Answer = str | Completion
Script = Callable[[Request], Answer | Awaitable[Answer]]


class ScriptedModel:
    """Answers with `fn(request)`, sync or async. Its calls cost nothing; errors that `fn` raises reach the caller."""

    deterministic = True

    def __init__(self, fn: Script, *, name: str = "scripted") -> None:
        self._fn = fn
        self.name = name

    async def complete(self, request: Request) -> Completion:
        """The function's answer; ModelRefused when it is no str or Completion, or none of the request's choices."""
        answer = self._fn(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, str):
            answer = Completion(text=answer, usage=Usage(dollars=0.0))
        if not isinstance(answer, Completion):
            raise ModelRefused(f"{self.name} answered with a {type(answer).__name__}: return a str or a Completion")
        if request.choices is not None and answer.text not in request.choices:
            raise ModelRefused(f"{self.name} answered {answer.text!r}, which is none of the choices {request.choices}")
        return answer

    async def close(self) -> None:
        """Nothing to free."""


def load_scripted(target: str) -> Model:
    """The model at 'module:attr' or 'path/to/file.py:attr': a Model, or a function of the request to make one of."""
    place, colon, attribute = target.rpartition(":")
    if not colon or not place or not attribute:
        raise ModelRefused(
            f"'scripted:{target}' names no function: write scripted:module:attr or scripted:file.py:attr"
        )
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        found = getattr(module, attribute)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise ModelRefused(f"'scripted:{target}' cannot be loaded: {error}") from error
    if hasattr(found, "complete") and hasattr(found, "name") and not inspect.isclass(found):
        return cast(Model, found)
    if not callable(found) or inspect.isclass(found):
        raise ModelRefused(f"'scripted:{target}' is a {type(found).__name__}, neither a function nor a model")
    return ScriptedModel(found, name=f"scripted:{target}")


def _from_file(path: Path) -> object:
    path = path.expanduser().resolve()
    # The name holds the path's hash, so two files called model.py do not hide each other.
    name = f"instar_scripted_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
