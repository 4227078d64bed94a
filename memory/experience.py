"""A finished episode becomes items: one for each step, and one for the whole.

It takes plain data, because memory knows nothing of harnesses. Small models learn from single situations ("this goal,
this view: that action"), larger ones from whole examples; abstraction (names to placeholders) is the caller's, before
it comes here. Only what was seen and done enters an item, so the same experience made twice is the same item.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from memory.embed import clean
from memory.item import Item, Stats


@dataclass(frozen=True, slots=True)
class Situation:
    """One step: what the agent saw (`text`), and what it did."""

    text: str
    action: str


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished attempt. `id` is the trajectory's; `score` None means unscored."""

    id: str
    goal: str
    situations: Sequence[Situation]
    success: bool
    score: float | None = None


def situation_key(goal: str, text: str) -> str:
    """What a step is remembered under, and what to retrieve by at the same point of another episode."""
    return clean(f"Goal: {goal}\n{text}".strip())


def step_items(episode: Episode, scope: str, *, kind: str = "step", stats: Stats | None = None) -> list[Item]:
    """One item a distinct (situation, action), in order: key = goal and situation, body = action.

    Whether the steps of a failure are worth keeping is the caller's choice; they are not told apart here.
    """
    made: dict[str, Item] = {}
    for situation in episode.situations:
        item = Item.make(
            kind,
            scope,
            situation_key(episode.goal, situation.text),
            clean(situation.action),
            provenance=(episode.id,),
            stats=stats or Stats(),
        )
        made.setdefault(item.id, item)
    return list(made.values())


def trajectory_item(episode: Episode, scope: str, *, kind: str = "experience", stats: Stats | None = None) -> Item:
    """The whole attempt under its goal: body = every situation and action, data = success, score and steps."""
    lines = [f"Goal: {episode.goal}"]
    for situation in episode.situations:
        lines += [situation.text.strip(), f"> {situation.action}"]
    lines.append("Outcome: solved" if episode.success else "Outcome: not solved")
    return Item.make(
        kind,
        scope,
        clean(episode.goal.strip()) or "(no goal)",
        clean("\n".join(lines)),
        data={"success": episode.success, "score": episode.score, "steps": len(episode.situations)},
        provenance=(episode.id,),
        stats=stats or Stats(),
    )
