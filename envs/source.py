"""A user's Python, found and run on their behalf: what goes wrong in it is told with its file and line.

A file is run under a private name and never from bytecode, so that it can be edited and loaded again, cannot
shadow a package, and leaves its folder neither on `sys.path` nor, through same-named neighbours, in another
environment. Neighbouring modules are found while the file runs, after everything installed.
"""

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


class EnvError(Exception):
    """The environment that was asked for cannot be had; the message says why and what to do."""


class _FreshLoader(SourceFileLoader):
    """Compiles the text as it is now: a cached file is only as fresh as its second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def from_module(name: str, attr: str, kind: str = "Benchmark") -> Any:
    """`attr` (may be dotted) of the importable module `name`, which should be a `kind`; raises EnvError."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise _broken(f"module '{name}'", error) from error
        raise EnvError(
            f"there is no module '{error.name}' (wanted: '{name}:{attr}'). "
            f"Cure: install it, set PYTHONPATH to its folder, or give the path of the file."
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken(f"module '{name}'", error) from error
    return _attribute(module, attr, f"module '{name}'", kind)


def from_file(path: Path, attr: str, kind: str = "Benchmark") -> Any:
    """`attr` of the Python file `path`, run now, which should be a `kind`; raises EnvError."""
    if not path.is_file():
        raise EnvError(f"there is no file {path}. Cure: give a Python file, or a folder that holds an env.py.")
    path = path.resolve()
    name = f"_instar_env_{hashlib.sha256(str(path).encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_FreshLoader(name, str(path)))
    if spec is None or spec.loader is None:  # cannot be: a loader was given
        raise EnvError(f"Python cannot load {path}. Cure: give a Python file.")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and pickles look their module up here
    try:
        with _neighbours(path.parent):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise _broken(str(path), error) from error
    return _attribute(module, attr, str(path), kind)


def where_raised(error: BaseException) -> str:
    """`file:line` of the user's own code that raised `error`, and of what it called if that lies in another file."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    if not frames:
        return "an unknown place"
    own = next(frame for frame in reversed(frames) if frame.filename == frames[0].filename)
    inside = f", inside {frames[-1].filename}:{frames[-1].lineno}" if frames[-1].filename != own.filename else ""
    return f"{own.filename}:{own.lineno}{inside}"


def _is_ours(file: str) -> bool:
    """Whether a frame belongs to what calls the user's code: the import machinery, this registry, the checks."""
    if file.startswith("<frozen") or file == importlib.__file__:
        return True
    here, path = Path(__file__).parent, Path(file)
    return path in (Path(__file__), here / "registry.py", here / "benchmark.py") or path.parent == here / "check"


def _broken(what: str, error: BaseException) -> EnvError:
    cure = "install what it imports, or put it beside the file" if isinstance(error, ImportError) else "mend that line"
    return EnvError(
        f"{what} cannot be loaded: {type(error).__name__}: {error} (at {where_raised(error)}). Cure: {cure}."
    )


def _attribute(module: ModuleType, attr: str, what: str, kind: str) -> Any:
    value: Any = module
    for part in attr.split("."):
        if not hasattr(value, part):
            raise EnvError(
                f"{what} has no '{attr}'. Cure: name its {kind} '{attr}', "
                f"or say what to take: NAME:ATTR (its {kind}, or a function that returns one)."
            )
        value = getattr(value, part)
    return value


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """While inside, modules in `folder` can be imported, after all others; then they are forgotten."""
    home = str(folder)
    if home in sys.path:  # the user's own doing: theirs to keep
        yield
        return
    known = set(sys.modules)
    sys.path.append(home)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if home in sys.path:
            sys.path.remove(home)
        fresh = set(sys.modules) - known
        ours = {name for name in fresh if _lies_in(folder, name)}
        for name in fresh:
            if name.partition(".")[0] in ours:
                del sys.modules[name]


def _lies_in(folder: Path, name: str) -> bool:
    module = sys.modules[name]
    paths = [str(path) for path in getattr(module, "__path__", [])]
    return str(folder / name) in paths or getattr(module, "__file__", None) == str(folder / f"{name}.py")
