"""Every form of spec leads to a benchmark, and every wrong one to an error that says what to do."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from envs import Benchmark, EnvFault
from envs.registry import EnvError, load, names

FILE = '''
from envs import Benchmark, Env, Observation, Step, Task, fixed

class World(Env):
    async def reset(self, task, seed):
        return Observation("start")
    async def step(self, action):
        return Step(Observation("end"), 1.0, True)

TASKS = [Task(id="a", split="train", goal="g"), Task(id="b", split="test", goal="h")]
benchmark = Benchmark("mine", World, fixed(TASKS), description="Mine.")

def made(level: int = 1, name: str = "made"):
    """Made at a level.

    More text."""
    return Benchmark(f"{name}-{level!r}", World, fixed(TASKS))

def keyed(**options):
    return Benchmark("keyed", World, fixed(TASKS), description=repr(options))

def failing(level: int = 1):
    raise ValueError(f"there is no level {level}")

def down():
    raise EnvFault("no docker")

def nothing():
    return None

async def late():
    return benchmark

class space:
    inner = benchmark
'''.replace("Env, Observation", "Env, EnvFault, Observation")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_env.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "registry_probe.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "registry_probe", raising=False)
    return "registry_probe"


def plugin(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, points: str) -> None:
    """Install a distribution that offers environments, as pip would leave it on disk."""
    info = folder / "site" / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[instar.envs]\n{dedent(points)}\n")
    monkeypatch.syspath_prepend(str(folder / "site"))


# ---------------------------------------------------------------- the forms of a spec


def test_a_file_is_loaded_by_its_path_with_and_without_an_attribute(file: Path) -> None:
    assert load(str(file)).name == "mine"
    assert load(f"{file}:made").name == "made-1"
    assert load(f"{file}:space.inner").name == "mine"


def test_a_folder_means_its_env_file(file: Path) -> None:
    file.rename(file.parent / "env.py")
    assert load(str(file.parent)).name == "mine"
    assert load(f"{file.parent}{os.sep}:made:level=3").name == "made-3"


def test_a_package_in_the_current_folder_is_still_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registry_local").mkdir()
    (tmp_path / "registry_local" / "__init__.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("registry_local:made").name == "made-1"


def test_a_relative_path_is_loaded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load("my_env.py").name == "mine"
    assert load("./my_env.py:benchmark").name == "mine"


def test_a_module_is_loaded_with_and_without_an_attribute(module: str, tmp_path: Path) -> None:
    assert load(f"{module}:benchmark").name == "mine"
    (tmp_path / "site" / "registry_package").mkdir()
    (tmp_path / "site" / "registry_package" / "inner.py").write_text(FILE)
    assert load("registry_package.inner").name == "mine"
    assert load("registry_package.inner:made:level=2").name == "made-2"


def test_a_name_of_an_installed_package_is_loaded(tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(tmp_path, monkeypatch, "some-worlds", f"some-world = {module}:made")
    assert load("some-world:level=4").name == "made-4"
    known = {entry.name: entry for entry in names()}
    assert known["some-world"] == ("some-world", "some-worlds 1.0", "Made at a level.")


def test_the_built_in_name_is_known_without_any_package_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    assert [(entry.name, entry.source) for entry in names()] == [("household", "instar")]


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("-3", -3),
        ("2.5", 2.5),
        ("1e-3", 0.001),
        ("true", True),
        ("False", False),
        ("hard", "hard"),
        ("", ""),
        ("a=b", "a=b"),
        ("http://host:80/x", "http://host:80/x"),
        ("1_000", "1_000"),
        ("nan", "nan"),
    ],
)
def test_an_option_is_read_as_what_it_looks_like(file: Path, text: str, value: object) -> None:
    assert load(f"{file}:keyed:key={text}").description == repr({"key": value})


def test_options_are_separated_by_commas_and_overrides_win(file: Path) -> None:
    assert load(f"{file}:keyed:a=1,b=x", b=2, c=None).description == "{'a': 1, 'b': 2, 'c': None}"


def test_what_the_factory_does_not_take_replaces_a_field(file: Path) -> None:
    made = load(f"{file}:made:level=2,max_steps=7,success_at=1")
    assert (made.name, made.max_steps, made.success_at) == ("made-2", 7, 1)
    assert load(f"{file}:max_steps=9").max_steps == 9
    assert load(f"{file}:made:name=own").name == "own-1"


def test_a_path_with_a_colon_and_an_equals_sign_is_still_a_path(tmp_path: Path) -> None:
    odd = tmp_path / "run:level=2.py"
    odd.write_text(FILE)
    assert load(str(odd)).name == "mine"


# ---------------------------------------------------------------- what the file may rely on, and what it leaves behind


def test_a_neighbour_is_found_and_two_folders_do_not_share_theirs(tmp_path: Path) -> None:
    before = list(sys.path)
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "pieces").mkdir(parents=True)
        (folder / "pieces" / "__init__.py").write_text("")
        (folder / "pieces" / "inner.py").write_text(f"NAME = {name!r}\n")
        (folder / "neighbour.py").write_text("from pieces.inner import NAME\n")
        (folder / "env.py").write_text(f"from neighbour import NAME\n{FILE}\nbenchmark = made(0, NAME)\n")
    assert load(str(tmp_path / "one")).name == "one-0"
    assert load(str(tmp_path / "two")).name == "two-0"
    assert sys.path == before
    assert not {"neighbour", "pieces", "pieces.inner", "env"} & set(sys.modules)


def test_a_neighbour_does_not_shadow_the_standard_library(file: Path) -> None:
    (file.parent / "colorsys.py").write_text("raise RuntimeError('shadowed')\n")
    sys.modules.pop("colorsys", None)
    file.write_text(f"import colorsys\n{FILE}")
    assert load(str(file)).name == "mine"


def test_a_file_edited_in_the_same_second_is_read_anew_and_leaves_no_bytecode(file: Path) -> None:
    assert load(str(file)).name == "mine"
    file.write_text(FILE.replace('"mine"', '"self"'))
    assert load(str(file)).name == "self"
    assert not (file.parent / "__pycache__").exists()


def test_a_class_of_a_loaded_file_can_look_its_module_up(file: Path) -> None:
    world = type(load(str(file)).make_env())
    assert sys.modules[world.__module__].World is world
    assert world.__module__.startswith("_instar_env_")


def test_importing_envs_loads_no_world_and_no_registry() -> None:
    code = "import sys, envs; print([m for m in sys.modules if m.startswith('envs.') or m == 'numpy'])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "household" not in out
    assert "registry" not in out
    assert "numpy" not in out


# ---------------------------------------------------------------- errors


def refused(spec: str, **overrides: object) -> str:
    with pytest.raises(EnvError) as caught:
        load(spec, **overrides)
    assert "Cure: " in str(caught.value) or "Cure: " in str(caught.value.__cause__)
    return str(caught.value)


def test_an_unknown_name_is_told_with_the_nearest_and_all_known_ones() -> None:
    said = refused("houshold:level=2")
    assert "no environment is called 'houshold'" in said
    assert "Did you mean 'household'?" in said
    assert "Known: household" in said


@pytest.mark.parametrize("spec", ["", "  ", ":level=2", "no such thing", "9lives", "a..b", ":benchmark"])
def test_a_spec_that_means_nothing_is_refused(spec: str) -> None:
    refused(spec)


def test_a_missing_file_folder_attribute_or_module_is_named(file: Path, module: str) -> None:
    assert f"there is no file {file.parent / 'other.py'}" in refused(str(file.parent / "other.py"))
    assert f"there is no file {file.parent / 'env.py'}" in refused(str(file.parent))
    assert "has no 'bench'" in refused(f"{file}:bench")
    assert "no module 'no_such_module_here'" in refused("no_such_module_here:benchmark")
    assert "has no 'bench'" in refused(f"{module}:bench")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("x = 1 / 0", "ZeroDivisionError"),
        ("def broken(:", "SyntaxError"),
        ("import sys; sys.exit(2)", "SystemExit"),
        ("from envs import NoSuchName", "ImportError"),
    ],
)
def test_an_error_in_the_users_file_is_told_with_its_file_and_line(
    file: Path, module: str, line: str, said: str
) -> None:
    text = f"# one\n# two\n{line}\n"
    file.write_text(text)
    message = refused(str(file))
    assert said in message
    assert f"{file}:3" in message
    (file.parent / "site" / f"{module}.py").write_text(text)
    message = refused(f"{module}:benchmark")
    assert said in message
    assert f"{module}.py:3" in message


def test_an_error_in_a_neighbour_is_told_with_both_places(file: Path) -> None:
    (file.parent / "neighbour.py").write_text("\n\n1 / 0\n")
    file.write_text("import neighbour\n")
    message = refused(str(file))
    assert f"{file}:1" in message
    assert f"{file.parent / 'neighbour.py'}:3" in message


def test_a_factory_that_fails_is_told_with_its_line_and_a_broken_world_stays_a_fault(file: Path) -> None:
    message = refused(f"{file}:failing:level=9")
    assert "ValueError: there is no level 9" in message
    assert f"{file}:" in message
    with pytest.raises(EnvFault, match="no docker"):
        load(f"{file}:down")


def test_what_is_no_benchmark_is_refused_with_the_way_to_make_one(file: Path) -> None:
    assert "make_env=World" in refused(f"{file}:World")
    assert "is a list" in refused(f"{file}:TASKS")
    assert "returned a NoneType" in refused(f"{file}:nothing")
    assert "returned a coroutine" in refused(f"{file}:late")


def test_a_wrong_option_is_refused(file: Path) -> None:
    assert "Did you mean 'max_steps'?" in refused(f"{file}:max_step=3")
    assert "max_steps='many' is a str" in refused(f"{file}:max_steps=many")
    assert "max_steps=True" in refused(f"{file}:max_steps=true")
    assert "given twice" in refused(f"{file}:level=1,level=2")
    assert "'oops' is not key=value" in refused(f"{file}:made:level=1,oops")
    assert "no option 'speed'" in refused(f"{file}:made", speed=1)


def test_a_broken_package_costs_its_own_line_in_the_list_only(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(tmp_path, monkeypatch, "broken-worlds", "gone = no_such_module_here:benchmark\nodd = registry_broken:b")
    (tmp_path / "site" / "registry_broken.py").write_text("1 / 0\n")
    plugin(tmp_path, monkeypatch, "fine-worlds", f"fine = {module}:benchmark")
    known = {entry.name: entry.description for entry in names()}
    assert known["gone"].startswith("broken: there is no module")
    assert "registry_broken.py:1" in known["odd"]
    assert known["fine"] == "Mine."
    assert "household" in known
    assert load("fine").name == "mine"
    assert "Known: fine, gone, household, odd." in refused("nope")


def test_a_name_that_two_packages_claim_is_refused_and_ours_cannot_be_taken(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(tmp_path, monkeypatch, "a-worlds", f"twin = {module}:benchmark\nhousehold = {module}:benchmark")
    plugin(tmp_path, monkeypatch, "b-worlds", f"twin = {module}:made")
    said = refused("twin")
    assert "a-worlds 1.0" in said
    assert "b-worlds 1.0" in said
    hidden = [entry for entry in names() if entry.name == "household" and entry.source == "a-worlds 1.0"]
    assert len(hidden) == 1
    assert f"load it as {module}:benchmark" in hidden[0].description


def test_the_built_in_household_loads_by_its_name() -> None:
    loaded = load("household")
    assert isinstance(loaded, Benchmark)
    assert loaded.tasks("train", 1)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("reward_range=5", "reward_range is two numbers"),
        ("splits=3", "splits is a mapping"),
        ("metric=abc", "metric is a function of the rewards"),
        ("make_env=x", "make_env is a function that makes an Env"),
        ("policies=1", "policies is a mapping"),
    ],
)
def test_an_option_that_no_text_can_say_is_one_clear_line(module: str, option: str, said: str) -> None:
    with pytest.raises(EnvError, match=said) as caught:
        load(f"{module}:benchmark:{option}")
    assert "\n" not in str(caught.value)
