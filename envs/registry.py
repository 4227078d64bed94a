"""From the text a person types to a benchmark: a known name, `module:attr`, a file or a folder, each with options.

What is found must be a `Benchmark` or a function that returns one; there is no third form, so that an error can
always say what to write. Somebody else's broken package costs its own line in the list and nothing more.
"""

import dataclasses
import difflib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from envs.benchmark import Benchmark
from envs.env import EnvFault
from envs.source import EnvError, from_file, from_module, where_raised

GROUP = "instar.envs"
#: Ours are known even where the package's metadata is missing or stale.
BUILT_IN = {"household": "envs.household:benchmark"}
#: What a file or module is asked for when the spec names no attribute.
DEFAULT_ATTR = "benchmark"
_OPTIONS = re.compile(r":(?=[A-Za-z_]\w*=)")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


class Known(NamedTuple):
    """A benchmark that has a name: where it comes from and, in one line, what it is (or why it is broken)."""

    name: str
    source: str
    description: str


@dataclasses.dataclass(frozen=True)
class _Entry:
    name: str
    source: str
    value: str  # "module:attr"


def load(spec: str, **overrides: Any) -> Benchmark:
    """The benchmark that `spec` means; `overrides` win over the options in it.

    Specs: `NAME`, `MODULE:ATTR`, `FILE.py[:ATTR]`, `FOLDER` (its env.py), each with `:key=value,key=value` after it.
    Options go to the factory if it takes them and else replace the field of that name. Raises EnvError.
    """
    target, options = _split_options(spec.strip())
    options |= overrides
    value, where = _find(target, spec)
    return _build(value, where, options)


def names() -> list[Known]:
    """Every benchmark that has a name, ours first; a broken one is listed with its fault."""
    known = []
    for entry in _entries():
        if entry.name in BUILT_IN and entry.value != BUILT_IN[entry.name]:
            text = f"hidden by instar's own '{entry.name}'; load it as {entry.value}"
        else:
            try:
                text = _one_line(from_module(*_module_and_attr(entry.value)))
            except EnvError as error:
                text = f"broken: {error}"
        known.append(Known(entry.name, entry.source, text))
    return known


def _entries() -> list[_Entry]:
    from importlib.metadata import entry_points

    found = [_Entry(name, "instar", value) for name, value in BUILT_IN.items()]
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        dist = point.dist
        entry = _Entry(point.name, f"{dist.name} {dist.version}" if dist else "unknown package", point.value)
        if all((entry.name, entry.value) != (other.name, other.value) for other in found):
            found.append(entry)
    return found


def _find(target: str, spec: str) -> tuple[Any, str]:
    """The object that `target` names, and how to call it in an error."""
    if not target:
        raise EnvError(f"an environment was asked for with an empty name ({spec!r}). {_cure_for_names('')}")
    entries = _entries()
    same_name = [entry for entry in entries if entry.name == target]
    if same_name:
        if target not in BUILT_IN and len(same_name) > 1:
            claims = ", ".join(f"{entry.value} ({entry.source})" for entry in same_name)
            raise EnvError(f"more than one package calls an environment '{target}': {claims}. Cure: write MODULE:ATTR.")
        return from_module(*_module_and_attr(same_name[0].value)), f"environment '{target}' ({same_name[0].value})"
    path, attr = _path_and_attr(target)
    if path is not None:
        return from_file(path, attr or DEFAULT_ATTR), f"{path}:{attr or DEFAULT_ATTR}"
    module, attr = _module_and_attr(target)
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", module) or (":" not in target and "." not in target):
        raise EnvError(f"no environment is called '{target}'. {_cure_for_names(target)}")
    return from_module(module, attr), f"{module}:{attr}"


def _path_and_attr(target: str) -> tuple[Path | None, str]:
    """The file that `target` points at (None when it does not look like one) and the attribute after the colon."""
    if Path(target).is_file():  # whatever its name
        return Path(target), ""
    drive = target[:2] if _DRIVE.match(target) else ""
    text, _, attr = target[len(drive) :].partition(":")
    path = Path(drive + text).expanduser()
    looks_like_one = "/" in text or "\\" in text
    if path.is_dir() and (looks_like_one or (path / "env.py").is_file()):  # else `folder:attr` may be a package
        return path / "env.py", attr
    return (path, attr) if path.suffix == ".py" or looks_like_one else (None, attr)


def _module_and_attr(value: str) -> tuple[str, str]:
    module, _, attr = value.partition(":")
    return module, attr or DEFAULT_ATTR


def _split_options(spec: str) -> tuple[str, dict[str, Any]]:
    if Path(spec).exists():  # a folder may be called a:b=c
        return spec, {}
    found = _OPTIONS.search(spec)
    if found is None:
        return spec, {}
    options: dict[str, Any] = {}
    for pair in spec[found.end() :].split(","):
        key, equals, text = pair.partition("=")
        if not equals or not key.strip().isidentifier():
            raise EnvError(f"'{spec}': the option '{pair}' is not key=value. Cure: write them as :key=value,key=value.")
        if key.strip() in options:
            raise EnvError(f"'{spec}': the option '{key.strip()}' is given twice. Cure: keep one of them.")
        options[key.strip()] = _value(text.strip())
    return spec[: found.start()], options


def _value(text: str) -> int | float | bool | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.?\d+)([eE][+-]?\d+)?", text):
        return float(text)
    return text


def _build(value: Any, where: str, options: Mapping[str, Any]) -> Benchmark:
    if isinstance(value, Benchmark):
        return _replaced(value, where, options)
    if inspect.isclass(value):
        raise EnvError(
            f"{where} is the class {value.__name__}, not a Benchmark. Cure: write "
            f"benchmark = Benchmark(name=..., make_env={value.__name__}, splits=fixed(tasks)) and name that."
        )
    if not callable(value):
        raise EnvError(f"{where} is a {type(value).__name__}. Cure: name a Benchmark or a function that returns one.")
    for_factory = _taken(value, options)
    try:
        inspect.signature(value).bind(**for_factory)
    except TypeError as error:
        raise EnvError(f"{where} does not take these options: {error}. Cure: see its signature.") from error
    try:
        made = value(**for_factory)
    except (EnvFault, EnvError):
        raise
    except Exception as error:
        place = where_raised(error)
        raise EnvError(
            f"{where} failed: {type(error).__name__}: {error} (at {place}). Cure: mend it, or the options."
        ) from error
    if not isinstance(made, Benchmark):
        if inspect.iscoroutine(made):
            made.close()
        raise EnvError(
            f"{where} returned a {type(made).__name__}, not a Benchmark. Cure: return one, from a plain function."
        )
    return _replaced(made, where, {key: option for key, option in options.items() if key not in for_factory})


def _taken(factory: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(factory).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(options)
    return {key: option for key, option in options.items() if key in parameters}


def _replaced(benchmark: Benchmark, where: str, options: Mapping[str, Any]) -> Benchmark:
    fields = {field.name for field in dataclasses.fields(Benchmark)}
    for key, option in options.items():
        if key not in fields:
            close = difflib.get_close_matches(key, fields, 1)
            meant = f" Did you mean '{close[0]}'?" if close else ""
            raise EnvError(
                f"{where} has no option '{key}'.{meant} Cure: use one of its factory's, or {', '.join(sorted(fields))}."
            )
        present = getattr(benchmark, key)
        wanted = (int, float) if type(present) is float else type(present)
        if isinstance(present, (int, float, str)) and (not isinstance(option, wanted) or isinstance(option, bool)):
            raise EnvError(
                f"{where}: {key}={option!r} is a {type(option).__name__}. Cure: give a {type(present).__name__}."
            )
    try:
        return dataclasses.replace(benchmark, **options)
    except TypeError as error:
        raise EnvError(f"{where}: {error}; what no text can say belongs in the code.") from error


def _one_line(value: Any) -> str:
    text = value.description if isinstance(value, Benchmark) else inspect.getdoc(value) or ""
    return text.strip().partition("\n")[0].strip()


def _cure_for_names(target: str) -> str:
    known = sorted({entry.name for entry in _entries()})
    close = difflib.get_close_matches(target.lower(), known, 1, cutoff=0.5)
    meant = f"Did you mean '{close[0]}'? " if close else ""
    return (
        f"{meant}Known: {', '.join(known)}. Cure: use one of these, MODULE:ATTR, a FILE.py or a folder with an env.py."
    )
