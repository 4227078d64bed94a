"""`evolve(harness, benchmark, recipe)`: a loop over batches of tasks, an evolving arm and its control, a last exam.

Both arms play the same tasks with the same luck, and the control pays the same number of episodes: it is the unedited
harness with an empty memory. The exam is on a split that nothing was learnt from; its overlap with what taught is
checked and written down.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from evolve.lab import Lab, fingerprint, scores
from evolve.recipes import Recipe
from evolve.stats import Comparison, Mean, compare
from harness.agent import Agent
from harness.runner import ProposerStopped

FORMAT = 1


class Outcome(BaseModel):
    """What an evolution found: both arms on the exam, their paired comparison, the chosen version, and the cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str
    chosen: str
    remembers: bool = False  # whether the chosen agent recalls from the run's memory
    evolved: Mean
    control: Mean
    comparison: Comparison
    split: str
    overlap: dict[str, int]
    cost: dict[str, dict[str, float | None]]
    stopped: str = ""


@dataclass(frozen=True)
class Plan:
    """How an evolution is examined: `n` tasks of `split`, `number` the episode number of each."""

    split: str = "test"
    n: int = 50


async def evolve(lab: Lab, recipe: Recipe, plan: Plan) -> Outcome:
    """Run `recipe` and its control in `lab`, then examine both. A finished run is read back from its journal."""
    done = lab.journal.last("outcome")
    if done is not None:
        return Outcome.model_validate(done.body)
    exam = [(task, 0) for task in lab.benchmark.tasks(plan.split, plan.n)]
    steps = lab.agent().steps(lab.benchmark)
    stopped = ""
    try:
        await recipe.begin(lab)
        for number, batch in enumerate(recipe.source.batches(lab.benchmark, lab.budget, steps)):
            evolved = await lab.learn_from(recipe.player(lab), batch, phase=f"round-{number}", arm="evolved")
            control = await lab.rollouts(
                lab.agent(), batch, phase=f"round-{number}", arm="control", budget=lab.control_spent
            )
            a, b = lab.mean(evolved), lab.mean(control)
            lab.say(f"round {number}: evolved {_shown(a)}, control {_shown(b)}; spent {lab.budget.describe()}")
            lab.record(
                "round", {"round": number, "evolved": a.model_dump(), "control": b.model_dump()}, key=str(number)
            )
            await recipe.learn(lab, number, evolved, control)
    except ProposerStopped as reason:
        stopped = str(reason)  # what was found until then is still examined and returned
        lab.say(f"stopped early: {stopped}")
    best = await recipe.choose(lab)
    lab.keep(best.harness)
    outcome = await _examine(lab, recipe, best, exam, plan, stopped)
    lab.record("outcome", outcome.model_dump(mode="json"))
    return outcome


def _shown(mean: Mean) -> str:
    return "no score" if mean.mean is None else f"{mean.mean:.2f}"


async def _examine(lab: Lab, recipe: Recipe, best: Agent, exam: list[Any], plan: Plan, stopped: str) -> Outcome:
    from evolve.budget import Budget

    cost = Budget()
    evolved = await lab.rollouts(best, exam, phase="exam", arm="evolved", budget=cost)
    control = await lab.rollouts(lab.agent(), exam, phase="exam", arm="control", budget=cost)
    shared = {fingerprint(task) for task, _ in exam} & lab.taught
    return Outcome(
        recipe=recipe.name,
        chosen=best.version,
        remembers=best.recall is not None,
        evolved=lab.mean(evolved),
        control=lab.mean(control),
        comparison=compare(scores(control), scores(evolved), reward_range=lab.benchmark.reward_range),
        split=plan.split,
        overlap={"taught": len(lab.taught), "examined": len(exam), "shared": len(shared)},
        cost={"evolving": lab.budget.cost(), "control": lab.control_spent.cost(), "exam": cost.cost()},
        stopped=stopped,
    )
