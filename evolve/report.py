"""A report is plain data read from the journal alone: it can be made at any time, of a finished run or a live one.

Nothing is computed here that the run did not decide on: means, comparison and overlap of a finished run are those it
wrote down. Only what an unfinished run has not yet summed up is summed here, and said to be unfinished.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from envs.benchmark import Evaluator, solves
from evolve.changes import Changes, read_changes
from evolve.episodes import Episodes, natural, order, read_episodes, row_scores
from evolve.evolver import Outcome
from evolve.faults import Faults, read_faults
from evolve.recollection import Recollection, read_recollection
from evolve.spending import Spending, read_spending
from evolve.stats import TIE, Mean, PassRates, mean_interval
from harness.finished import Finished
from harness.journal import Journal, JournalError

Result = Literal["won", "lost", "tied", "gap", "alone"]


@dataclass(frozen=True)
class Facts:
    """What is known of the benchmark: `evaluator` and `reward_range` None where the journal does not tell."""

    name: str
    evaluator: Evaluator | None = None
    licence: str = "unknown"
    description: str = ""
    reward_range: tuple[float, float] | None = None
    success_at: float | None = None

    def solved(self, score: float) -> bool:
        """Whether `score` counts as solved; never where it is not recorded what does."""
        return self.success_at is not None and solves(score, self.success_at)


@dataclass(frozen=True)
class Round:
    """Both arms in one round; `control` None until it has played."""

    number: int
    evolved: Mean
    control: Mean | None


@dataclass(frozen=True)
class Pair:
    """One exam task in both arms; an arm that has not played it yet is None."""

    task: str
    number: int
    goal: str
    evolved: Finished | None
    control: Finished | None
    result: Result


@dataclass(frozen=True)
class Ending:
    """How often episodes of one part of the run ended for one reason."""

    times: int
    phase: str
    arms: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ReportData:
    """All that a page or a terminal shows, except the transcripts, which are read when needed."""

    folder: Path
    plan: dict[str, Any]
    facts: Facts
    model: str
    started: float
    ended: float
    finished: bool
    outcome: Outcome | None
    evaluation: Mean | None
    rates: PassRates | None  # of a benchmark run with several episodes a task
    solved: int | None
    asked: int | None  # episodes that a benchmark run was to play; a budget may have ended first
    taught: int | None  # tasks of a benchmark run that taught the memory it recalled from; None: not known
    exam: dict[str, Mean]  # by arm: evolved, control, wander (random moves), recalled (no model)
    pairs: tuple[Pair, ...]
    rounds: tuple[Round, ...]
    explored: Mean | None
    changes: Changes | None
    memory: Recollection | None
    spending: Spending
    episodes: Episodes
    faults: Faults

    @property
    def evolving(self) -> bool:
        """An evolution, not a benchmark run."""
        return self.plan.get("command") == "evolve"

    @property
    def gaps(self) -> list[Finished]:
        """Episodes that the infrastructure lost."""
        return [row for row in self.episodes.rows.values() if row.status == "gap"]

    @property
    def truncated(self) -> list[Finished]:
        """Episodes that a limit of ours ended; they are scored."""
        return [row for row in self.episodes.rows.values() if row.status == "truncated"]

    @property
    def solved_ties(self) -> int | None:
        """How many tied pairs both arms solved; None where it is not recorded what counts as solved."""
        if self.facts.success_at is None:
            return None
        tied = [pair.evolved.score for pair in self.pairs if pair.result == "tied" and pair.evolved]
        return sum(score is not None and self.facts.solved(score) for score in tied)

    def count(self, result: Result) -> int:
        """How many exam pairs ended so."""
        return sum(pair.result == result for pair in self.pairs)


def read_report(folder: str | os.PathLike[str]) -> ReportData:
    """The report of the run in `folder`. Raises JournalError naming the folder and the cure."""
    with Journal(folder, readonly=True) as journal:
        planned = journal.last("plan")
        if planned is None:
            raise JournalError(f"{journal.folder}: the run never began (its journal has no plan). Cure: start it again")
        plan = planned.body
        facts, episodes = _facts(plan), read_episodes(journal)
        done, evaluated = journal.last("outcome"), journal.last("evaluation")
        outcome = Outcome.model_validate(done.body) if done else None
        reach = facts.reward_range or _seen_range(episodes)
        evolving = plan.get("command") == "evolve"
        rows = episodes.of("run") if not evolving else []
        told = evaluated.body if evaluated else {}
        evaluation = Mean.model_validate(told["mean"]) if told else None
        if evaluation is None and rows:
            evaluation = mean_interval(row_scores(rows), reward_range=reach)
        exam = {"evolved": outcome.evolved, "control": outcome.control} if outcome else {}
        for arm, mean in (("wander", outcome.wander), ("recalled", outcome.recalled)) if outcome else ():
            if mean is not None:
                exam[arm] = mean
        for arm in ("evolved", "control", "wander", "recalled"):
            if arm not in exam and (played := episodes.of("exam", arm)):
                exam[arm] = mean_interval(row_scores(played), reward_range=reach)
        explored = episodes.of("explore")
        models = (row.model for row in episodes.rows.values() if not row.model.startswith("policy:"))
        return ReportData(
            folder=Path(folder),
            plan=plan,
            facts=facts,
            model=next(models, str(plan["model"])),
            started=planned.at,
            ended=_ended(journal),
            finished=(outcome is not None) if evolving else evaluated is not None or _recorded(plan, episodes),
            outcome=outcome,
            evaluation=evaluation,
            rates=PassRates.model_validate(told["rates"]) if told.get("rates") else None,
            solved=int(told["solved"]) if told else None,
            asked=told.get("asked"),
            taught=told.get("taught"),
            exam=exam,
            pairs=_pairs(episodes, reach),
            rounds=_rounds(journal, episodes, reach),
            explored=mean_interval(row_scores(explored), reward_range=reach) if explored else None,
            changes=read_changes(journal, plan["harness"], plan.get("files", {}), outcome.chosen if outcome else None)
            if plan.get("recipe") == "reflect" or journal.last("proposal", "0")
            else None,
            memory=read_recollection(journal, episodes, plan.get("memory"), plan.get("memory_digest")),
            spending=read_spending(journal, episodes),
            episodes=episodes,
            faults=read_faults(journal, episodes),
        )


def endings(rows: Iterable[Finished]) -> list[Ending]:
    """The rows by reason and phase, the most frequent first."""
    arms: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        arms.setdefault((row.phase, row.reason), Counter())[row.arm] += 1
    found = [Ending(by.total(), phase, tuple(sorted(by)), reason) for (phase, reason), by in arms.items()]
    return sorted(found, key=lambda one: (-one.times, natural(one.phase), one.reason))


def _facts(plan: Mapping[str, Any]) -> Facts:
    """From the plan if it says, else from a benchmark of our own. A journal may come from a stranger: none of the
    code that it names is run for a report."""
    env = str(plan["env"])
    told = plan.get("benchmark")
    if isinstance(told, dict):
        rank, ends = told.get("evaluator"), told.get("reward_range")
        return Facts(
            name=str(told.get("name", env)),
            evaluator=Evaluator[rank] if isinstance(rank, str) else Evaluator(rank) if rank is not None else None,
            licence=str(told.get("licence", "unknown")),
            description=str(told.get("description", "")),
            reward_range=(float(ends[0]), float(ends[1])) if ends else None,
            success_at=told.get("success_at"),
        )
    from envs.registry import BUILT_IN, load
    from envs.source import EnvError

    if env.split(":", 1)[0] not in BUILT_IN:
        return Facts(env)
    try:
        made = load(env)
    except EnvError:  # a later version may not know the options of an earlier one; the report then says "not recorded"
        return Facts(env)
    return Facts(made.name, made.evaluator, made.licence, made.description, made.reward_range, made.success_at)


def _recorded(plan: Mapping[str, Any], episodes: Episodes) -> bool:
    """Whether this is a recording of foreign agents with no episode open: it was to be no more than what it is."""
    return plan.get("command") == "proxy" and bool(episodes.rows) and not episodes.unfinished


def _seen_range(episodes: Episodes) -> tuple[float, float] | None:
    """(0, 1) when all scores lie in it, else unbounded."""
    scores = [row.score for row in episodes.rows.values() if row.score is not None]
    return (0.0, 1.0) if all(0 <= score <= 1 for score in scores) else None


def _pairs(episodes: Episodes, reach: tuple[float, float] | None) -> tuple[Pair, ...]:
    arms = {arm: {(r.task, r.episode): r for r in episodes.of("exam", arm)} for arm in ("evolved", "control")}
    evolved, control = arms["evolved"], arms["control"]
    tie = TIE * (reach[1] - reach[0] if reach else 1.0)
    keys = sorted(evolved.keys() | control.keys(), key=lambda key: order(evolved.get(key) or control[key])[2:])
    pairs = []
    for key in keys:
        a, b = evolved.get(key), control.get(key)
        result: Result
        if a is None or b is None:
            result = "alone"
        elif a.score is None or b.score is None:
            result = "gap"
        else:
            gain = a.score - b.score
            result = "won" if gain > tie else "lost" if gain < -tie else "tied"
        pairs.append(Pair(*key, (a or b or control[key]).goal, a, b, result))
    return tuple(pairs)


def _rounds(journal: Journal, episodes: Episodes, reach: tuple[float, float] | None) -> tuple[Round, ...]:
    rounds = {
        int(event.body["round"]): Round(
            int(event.body["round"]),
            Mean.model_validate(event.body["evolved"]),
            Mean.model_validate(event.body["control"]),
        )
        for event in journal.events("round")
    }
    begun = {int(p[6:]) for p, _, _ in episodes.parts() if p.startswith("round-") and p[6:].isdecimal()}
    for number in sorted(begun - rounds.keys()):  # the round that the run is in, or was cut off in
        arms = [
            mean_interval(row_scores(rows), reward_range=reach) if rows else None
            for rows in (episodes.of(f"round-{number}", arm) for arm in ("evolved", "control"))
        ]
        if arms[0] is not None:
            rounds[number] = Round(number, arms[0], arms[1])
    return tuple(rounds[number] for number in sorted(rounds))


def _ended(journal: Journal) -> float:
    last = journal.newest(("plan", "start", "episode", "batch", "verdict", "outcome", "evaluation"))
    return last.at if last else 0.0
