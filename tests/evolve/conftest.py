"""Small finished runs of every kind, made once with models that are plain functions, for whoever reads runs."""

from pathlib import Path

import pytest

from evolve import evolve, run
from harness.starter import starter

MODELS = '''
import random
from harness.model import Completion, Usage

def answer(request):
    """Wanders; with examples or memories before it, knows what to do."""
    text, choices = request.prompt, list(request.choices)
    rng = random.Random(f"{request.seed}{text}")
    if "Action: " in text:
        for move in ("move <A> to <B>", "take <A> from <here>"):
            if move in choices:
                return move
        if "take <A>" in text.rsplit("\\n\\n", 1)[-1] and "go to <B>" in choices:
            return "go to <B>"
        if "open <here>" in choices and rng.random() < 0.8:
            return "open <here>"
    return rng.choice(choices)

def priceless(request):
    return Completion(text=answer(request), usage=Usage(prompt_tokens=3, output_tokens=1))

def nonsense(request):
    return "I would rather not <script>alert(1)</script>"

def hostile(request):
    bad = "</code><img src=x onerror=alert(1)><script>document.title='owned'</script>[bold red]\\u202egnp\\x1b[31m"
    return f"{bad}\\nAction: {bad}"
'''
WORLD = """
from envs import Benchmark, Env, Observation, Step, Task
from envs.env import EnvFault

GOAL = "say </title><script>document.title='owned'</script> & [bold]\\u202eyes\\x07"

class World(Env):
    async def reset(self, task, seed):
        self.task = task
        return Observation("You see <script>alert(2)</script> and [red]\\x00\\ud800nothing.")
    async def step(self, action):
        if self.task.data["broken"]:
            raise EnvFault("the <b>container</b> died")
        return Step(Observation("<i>done</i>"), 1.0, True)

def tasks(split):
    def first(n):
        return [Task(id=f"{split}-{i}<b>", split=split, goal=GOAL, data={"broken": i == 1}) for i in range(n or 6)]
    return first

benchmark = Benchmark(name="hostile", make_env=World, splits={s: tasks(s) for s in ("train", "valid", "test")})
"""
SETTINGS = {"rounds": 2, "batch": 6, "explore": 60, "proposer": "compose", "max_pairs": 24, "look": 8}


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "models.py").write_text(MODELS)
    (folder / "world.py").write_text(WORLD)
    return folder


@pytest.fixture(scope="session")
def reflected(home: Path) -> Path:
    """An evolution by reflect whose first change is kept."""
    model, out = f"scripted:{home}/models.py:answer", home / "reflected"
    evolve(starter("small"), "household", recipe="reflect", settings=SETTINGS, model=model, n=12, seed=1, out=str(out))
    return out


@pytest.fixture(scope="session")
def remembering(home: Path) -> Path:
    """An evolution by memrl."""
    settings = {"explore": 60, "rounds": 2, "batch": 6}
    model, out = f"scripted:{home}/models.py:answer", home / "remembering"
    evolve(starter("small"), "household", recipe="memrl", settings=settings, model=model, n=10, seed=1, out=str(out))
    return out


@pytest.fixture(scope="session")
def played(home: Path) -> Path:
    """A benchmark run with a model whose price nobody knows."""
    out = home / "played"
    run(starter("small"), "household", model=f"scripted:{home}/models.py:priceless", n=6, out=str(out))
    return out


@pytest.fixture(scope="session")
def attacked(home: Path) -> Path:
    """A run in a hostile world with a hostile model; one episode of six is a gap."""
    out = home / "attacked"
    run(starter("react"), f"{home}/world.py", model=f"scripted:{home}/models.py:hostile", n=6, out=str(out))
    return out
