"""What cannot be played elsewhere is refused before anything is started."""

import pytest

from evolve import run
from harness.models.scripted import ScriptedModel
from harness.starter import starter


def test_a_model_that_is_an_object_cannot_be_made_again_elsewhere() -> None:
    model = ScriptedModel(lambda request: "look", name="mine")
    with pytest.raises(ValueError, match=r"mine is a model of this process.*Cure: name it"):
        run(starter("small", "agent"), "household", n=2, model=model, on="ray")


def test_workers_are_asked_for_with_a_place() -> None:
    with pytest.raises(ValueError, match="Cure: --on ray"):
        run(starter("small", "agent"), "household", n=2, model=ScriptedModel(lambda request: "look"), workers=2)
