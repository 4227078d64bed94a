"""What a proposer and a reader see of an episode: its turns, an evaluator's words, answers that were no action."""

from pathlib import Path

from reading import read

from evolve import run
from evolve.view import transcript
from harness.journal import Journal
from harness.starter import starter

WORLD = """
from envs import Benchmark, Env, Observation, Step, Task

class World(Env):
    async def reset(self, task, seed):
        return Observation("A door.")
    async def step(self, action):
        return Step(Observation("It opens."), 1.0, True, {"feedback": "you might have <b>knocked</b>"})

benchmark = Benchmark("door", World, {"valid": lambda n: [Task(id="t", split="valid", goal="Get in.")]})

def answer(request):
    return "Action: push" if len(request.messages) > 2 else "I wonder."
"""


def test_an_evaluators_words_and_a_useless_answer_are_shown(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text(WORLD)
    spec = f"{tmp_path}/world.py"
    run(starter("react"), spec, model=f"scripted:{spec}:answer", n=1, out=str(tmp_path / "run"))
    with Journal(tmp_path / "run", readonly=True) as journal:
        (found,) = journal.trajectories()
    told = "Get in.\nA door.\n(no usable action)\nA door.\n> push\nFeedback: you might have <b>knocked</b>\nIt opens."
    assert told in transcript(found)
    page = read(tmp_path / "run").text
    assert "feedback you might have <b>knocked</b>" in page
    assert "the answer was no usable action" in page
    assert "[assistant] I wonder. [user] No action was found in your answer." in page
