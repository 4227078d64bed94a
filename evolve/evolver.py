"""`evolve(harness, benchmark, recipe)`: a loop over batches of tasks, an evolving arm and its control, a last exam.

Both arms play the rounds and the exam on the same tasks with the same luck; the control is the unedited harness with an
empty memory. The exam is on tasks that nothing was learnt from or decided on; the overlap is counted and written down.
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from envs import Task
from evolve.budget import Budget
from evolve.lab import Batch, Lab, fingerprint, scores
from evolve.rebuild import FILE as MEMORY
from evolve.recipes import Recipe
from evolve.stats import Comparison, Mean, compare
from harness.agent import Agent, Player, PolicyPlayer
from harness.runner import RecipeStopped
from harness.trajectory import Trajectory


class Outcome(BaseModel):
    """What an evolution found: both arms on the exam, their paired comparison, the chosen version, and the cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str
    chosen: str
    remembers: bool = False  # whether the chosen agent recalls from the run's memory
    evolved: Mean
    control: Mean
    wander: Mean | None = None  # random moves, where there is something to choose from
    recalled: Mean | None = None  # the memory without the model: the best recalled move, where memory was kept
    comparison: Comparison
    split: str
    overlap: dict[str, int]
    cost: dict[str, dict[str, float | None]]
    forgotten: int = 0  # items that a person made the memory forget before the exam was over
    stopped: str = ""


async def evolve(lab: Lab, recipe: Recipe, split: str, tasks: Sequence[Task]) -> Outcome:
    """Run `recipe` and its control in `lab`, then examine both on `tasks` of `split`.

    A finished run is read back from its journal, unless its exam has gaps: those are played again.
    """
    done = lab.journal.last("outcome")
    if done is not None and not done.body["comparison"]["missing"]:
        known = Outcome.model_validate(done.body)
        if not known.remembers or (lab.folder / MEMORY).exists():
            return known  # else the memory is made again from the journal
    exam = [(task, 0) for task in tasks]
    calls = lab.agent().calls(lab.benchmark)
    stopped = ""
    try:
        await recipe.begin(lab)
        for number, batch in enumerate(recipe.source.batches(lab.benchmark, lab.budget, calls)):
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
    except RecipeStopped as reason:
        stopped = str(reason)  # what was found until then is still examined and returned
        lab.say(f"stopped early: {stopped}")
    best = await recipe.choose(lab)
    lab.keep(best.harness)
    lab.record("taught", {"taught": sorted(lab.taught), "judged": sorted(lab.judged)})
    outcome = await _examine(lab, recipe, best, exam, split, stopped)
    body, last = outcome.model_dump(mode="json"), lab.journal.last("outcome")
    if last is None or last.body != body:
        lab.journal.append("outcome", body)
    return outcome


def _shown(mean: Mean) -> str:
    return "no score" if mean.mean is None else f"{mean.mean:.2f}"


async def _examine(lab: Lab, recipe: Recipe, best: Agent, exam: Batch, split: str, stopped: str) -> Outcome:
    """Both arms, and random moves if there are choices. Nothing builds on it, so its gaps can be filled later."""

    async def sits(player: Player, arm: str) -> list[Trajectory]:
        return await lab.rollouts(player, exam, phase="exam", arm=arm, budget=cost, settle=False)

    cost = Budget()
    evolved, control = await sits(best, "evolved"), await sits(lab.agent(), "control")
    choosing = lab.harness.settings.control.loop == "choice"
    wander = await sits(PolicyPlayer("wander", lab.harness), "wander") if choosing else None
    parrot = PolicyPlayer("recalled", best.harness, recall=best.recall) if choosing and best.recall else None
    recalled = await sits(parrot, "recalled") if parrot is not None else None
    examined = {fingerprint(task) for task, _ in exam}
    return Outcome(
        recipe=recipe.name,
        chosen=best.version,
        remembers=best.recall is not None,
        evolved=lab.mean(evolved),
        control=lab.mean(control),
        wander=None if wander is None else lab.mean(wander),
        recalled=None if recalled is None else lab.mean(recalled),
        comparison=compare(scores(control), scores(evolved), reward_range=lab.benchmark.reward_range),
        split=split,
        overlap={
            "taught": len(lab.taught),
            "judged": len(lab.judged),
            "examined": len(examined),
            "shared": len(examined & (lab.taught | lab.judged)),
        },
        cost={"evolving": lab.budget.cost(), "control": lab.control_spent.cost(), "exam": cost.cost()},
        forgotten=lab.forgotten(),
        stopped=stopped,
    )
