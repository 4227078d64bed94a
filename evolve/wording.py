"""The verdict in one plain sentence with its numbers, and beside it what a sceptic would ask next.

The sentence claims no more than the paired comparison does: without a significant difference it says that none was
shown, and how large one would have had to be; with too many gaps it says that nothing can be decided.
"""

import shlex
from typing import Any

from evolve.evolver import Outcome
from evolve.recollection import Recollection
from evolve.report import ReportData
from evolve.stats import Comparison, Mean, PassRates
from harness.folder import SETTINGS_FILE
from harness.settings import parse_settings


def number(value: float | None, sign: bool = False) -> str:
    """A score to three places; 'none' when there is none."""
    return "none" if value is None else f"{value:+.3f}" if sign else f"{value:.3f}"


def interval(mean: Mean) -> str:
    """Mean and interval, as in 0.480 [0.348, 0.615]."""
    if mean.mean is None:
        return "no score"
    return f"{mean.mean:.3f}{_ends(mean.low, mean.high)}"


def dollars(amount: float | None) -> str:
    """Money; unknown is not free."""
    return (
        "unknown" if amount is None else "$0" if amount == 0 else f"${amount:.4f}" if amount < 1 else f"${amount:,.2f}"
    )


def span(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def p_text(p: float) -> str:
    """A p-value as people write it."""
    return f"p = {p:.2g}"


def rates(found: PassRates) -> str:
    """pass@k and pass^k with what they are over."""
    if found.missing or not found.decided:
        return found.summary()
    k = found.k
    short = f"; {counted(found.short, 'task')} had fewer than {k} scored episodes" if found.short else ""
    return (
        f"pass@{k} {number(found.any_of_k)}{_ends(found.any_low, found.any_high)} (some of {k} episodes solved), "
        f"pass^{k} {number(found.all_of_k)}{_ends(found.all_low, found.all_high)} (all of them), "
        f"over {counted(found.tasks, 'task')}{short}"
    )


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"


def arm(name: str) -> str:
    """An arm as people read it."""
    return {"wander": "random moves", "recalled": "memory alone"}.get(name, name)


def shares(data: ReportData) -> str:
    """What the evolving side asked against its control, which has no counterpart to exploring and gate."""
    evolving, control = data.spending.arms
    ratio = f", {evolving / control:.1f} to 1" if control else ""
    return (
        f"Before the exam the evolving side made {counted(evolving, 'call')}, its control {control:,}{ratio}: they "
        "share the rounds, and what else the evolving side does (exploring, gate, proposer) has no counterpart."
    )


def headline(data: ReportData) -> str:
    """The verdict in a few words."""
    if not data.finished:
        return "Unfinished: no verdict yet"
    if not data.evolving or data.outcome is None:
        if data.evaluation is not None and not data.evaluation.decided:
            return (
                f"Undecided: {data.evaluation.missing} of {data.evaluation.episodes + data.evaluation.missing} missing"
            )
        return f"Mean score {number(data.evaluation.mean)}" if data.evaluation else "No episodes"
    found = data.outcome.comparison
    if not found.decided:
        return "Undecided"
    return {"candidate": "Evolved is better", "baseline": "Evolved is worse", None: "No difference shown"}[found.winner]


def sentence(data: ReportData) -> str:
    """The verdict in one sentence with its numbers."""
    if data.evolving and data.outcome is not None:
        return _of_outcome(data.outcome.evolved, data.outcome.control, data.outcome.comparison, data.outcome.split)
    if not data.evolving and data.evaluation is not None:
        mean, split = data.evaluation, data.plan.get("split")
        solved = f", {data.solved} of them solved" if data.solved is not None else ""
        text = f"The agent scored {interval(mean)} on {mean.episodes} episodes of {mean.tasks} {split} tasks{solved}"
        return text + _gaps("", mean) + ("." if data.finished else "; the run is unfinished.")
    if not data.evolving:
        return "The run is unfinished: no episode has ended yet."
    played = [f"{arm(name)} {interval(mean)} on {mean.episodes} episodes" for name, mean in data.exam.items()]
    if played:
        return f"The run is unfinished, in the middle of its exam: {'; '.join(played)} so far."
    if data.rounds:
        last = data.rounds[-1]
        control = f", its control {interval(last.control)}" if last.control else ""
        scored = f"in round {last.number} the evolved agent scored {interval(last.evolved)}{control}"
        return f"The run is unfinished: {scored}; there was no exam yet."
    return f"The run is unfinished: {len(data.episodes.rows)} episodes have ended, none of them in a round yet."


def _of_outcome(evolved: Mean, control: Mean, found: Comparison, split: str) -> str:
    arms = (
        f"the evolved agent scored {interval(evolved)} on {evolved.episodes} {split} episodes, "
        f"its control {interval(control)} on {control.episodes}"
    )
    if found.difference is None or found.low is None or found.high is None or found.p_value is None:
        return f"Undecided: {arms}; {found.reason}{_gaps('evolved', evolved)}{_gaps('control', control)}."
    paired = (
        f"paired difference {found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}], "
        f"{p_text(found.p_value)} ({found.test}); "
        f"{found.wins} won, {found.losses} lost, {found.ties} tied of {found.pairs} pairs"
    )
    gaps = _gaps("evolved", evolved) + _gaps("control", control)
    if not found.decided:
        return f"Undecided: {found.reason}; {arms}; {paired}{gaps}."
    if found.winner is None:
        power = ""
        if found.minimum_detectable is not None:
            power = f"; a true difference of {found.minimum_detectable:.3f} would have been shown with 80 % power"
        return f"No difference shown: {arms}; {paired}{power}{gaps}."
    return f"{'Better' if found.winner == 'candidate' else 'Worse'}: {arms}; {paired}{gaps}."


def remembered(memory: Recollection) -> str:
    """How much a memory holds and how much of it was used; of one that was lent, which."""
    gone = f", {memory.forgotten:,} forgotten by hand" if memory.forgotten else ""
    if memory.owner is None:
        items = counted(memory.held, "item")
        return f"{items}{gone}, {memory.credited:,} credited, {memory.never_recalled:,} never recalled"
    share = f"{memory.recalled:,} of {counted(memory.held, 'item')}" if memory.whole else counted(memory.held, "item")
    return f"recalled {share} of {memory.owner}{gone}"


def ended_by_budget(data: ReportData) -> list[str]:
    """What the budget cut off, of a finished run."""
    budget = data.plan.get("budget")
    if not budget or not data.finished:
        return []
    if not data.evolving:
        played = len(data.episodes.of("run"))
        if data.asked is None or played >= data.asked:
            return []
        return [f"The budget ({budget}) ended first: {played} of {counted(data.asked, 'episode')} were played."]
    settings = data.plan.get("settings", {})
    rounds, batch, played = settings.get("rounds"), settings.get("batch"), len(data.rounds)
    if data.outcome is None or data.outcome.stopped or not isinstance(rounds, int):
        return []
    last = len(data.episodes.of(f"round-{data.rounds[-1].number}", "evolved")) if data.rounds else 0
    short = bool(data.rounds) and isinstance(batch, int) and last < batch
    if played >= rounds and not short:
        return []
    cut = f", the last with {last} of {counted(batch, 'episode')}" if short else ""
    return [
        f"The budget ({budget}) ended first: {played} of {counted(rounds, 'round')} were played{cut}. "
        "The control and the exam are outside of the budget."
    ]


def counted(n: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _gaps(arm: str, mean: Mean) -> str:
    if not mean.missing:
        return ""
    missing = counted(mean.missing, f"{arm} episode is".lstrip(), f"{arm} episodes are".lstrip()) + " missing"
    if mean.worst is None or mean.best is None:
        return f"; {missing}"
    return f"; {missing}, with which its mean could be from {mean.worst:.3f} (all lost) to {mean.best:.3f} (all won)"


def caveats(data: ReportData) -> list[str]:
    """What limits the claim; each a full sentence."""
    found: list[str] = ended_by_budget(data)
    outcome = data.outcome
    if outcome is not None:
        if outcome.stopped:
            outside = " The control and the exam are outside of the budget." if "budget" in outcome.stopped else ""
            found.append(f"The evolution stopped early: {outcome.stopped}.{outside}")
        if outcome.overlap.get("shared"):
            found.append(
                f"{outcome.overlap['shared']} exam tasks are the same as tasks that taught or decided: "
                "the exam is not clean."
            )
        if not kept(data):
            found.append("Nothing was kept: the evolved agent is the unedited one, so any difference is noise.")
        if outcome.forgotten:
            found.append(
                f"{counted(outcome.forgotten, 'item was', 'items were')} taken out of the memory by hand before the "
                "exam was over, so the same command in another folder may give other numbers."
            )
        if outcome.comparison.unpaired:
            found.append(f"{outcome.comparison.unpaired} exam episodes have no partner and count in no pair.")
        found += [*_against_chance(outcome, data.explored), *_without_model(outcome)]
    if data.taught:
        found.append(
            f"{data.taught} of these tasks taught the memory that the agent recalled from: their scores prove nothing."
        )
    if not data.evolving and data.finished and data.plan.get("memory") is not None and data.taught is None:
        found.append("Whether these tasks taught the memory that the agent recalled from is not known.")
    if data.evolving:
        found.append(
            "This is one evolution with one seed: the intervals are over tasks, not over repeats of the evolution. "
            "Run other seeds to see how much it varies."
        )
    if data.facts.evaluator is None:
        found.append("What kind of evaluator gave the scores is not recorded.")
    elif data.facts.evaluator <= 2:
        found.append(f"Scores come from {rank(data)}: weak evidence, whatever the statistics say.")
    return found


def _against_chance(outcome: Outcome, explored: Mean | None) -> list[str]:
    """Where random moves did better than an agent: on the exam itself, or else on the training tasks before it."""
    chance, where = (outcome.wander, "the same tasks") if outcome.wander else (explored, "training tasks")
    if chance is None or chance.mean is None:
        return []
    found = []
    control, evolved = outcome.control.mean, outcome.evolved.mean
    if control is not None and control < chance.mean:
        found.append(
            f"The control scored less ({control:.3f}) than random moves did on {where} ({chance.mean:.3f}), "
            "so beating it alone is a low bar."
        )
    if outcome.wander and evolved is not None and evolved <= chance.mean:
        found.append(f"Random moves scored no less ({chance.mean:.3f}) than the evolved agent on the same tasks.")
    return found


def _without_model(outcome: Outcome) -> list[str]:
    """What the memory did alone: each time the best recalled move, or a random one, and no model is asked."""
    alone, evolved = outcome.recalled.mean if outcome.recalled else None, outcome.evolved.mean
    if alone is None or evolved is None or alone < evolved:
        return []
    return [
        f"The memory alone, taking the best recalled move without asking the model, scored no less ({alone:.3f}): "
        "what was learnt is in the memory, and this exam does not show that the model adds to it."
    ]


def kept(data: ReportData) -> bool:
    """Whether the examined agent differs from its control: by its files, or by what it remembers."""
    outcome = data.outcome
    return outcome is not None and (outcome.remembers or outcome.chosen != data.plan.get("harness"))


def rank(data: ReportData) -> str:
    """The evaluator's rank in words."""
    kind = data.facts.evaluator
    return "not recorded" if kind is None else f"{kind.name.lower().replace('_', ' ')} (rank {int(kind)} of 5)"


def command_line(data: ReportData) -> str:
    """The command that repeats the run; the harness folder is the user's to name."""
    plan = data.plan
    parts = ["instar", str(plan["command"]), "HARNESS", "--env", str(plan["env"])]
    if data.evolving:
        parts += ["--recipe", str(plan["recipe"])]
        for key, value in plan.get("settings", {}).items():
            parts += ["--set", f"{key}={value}"]
    if not _from_harness(plan):
        parts += ["--model", str(plan["model"])]
        for key in ("api_base", "api_key_env"):
            if key in plan.get("options", {}):
                parts += [f"--{key.replace('_', '-')}", str(plan["options"][key])]
    for key in ("proposer", "memory", "budget", "split", "n", "episodes", "seed"):
        if plan.get(key) is not None:
            parts += [f"--{key}", str(plan[key])]
        if key == "proposer":
            for option in ("api_base", "api_key_env"):
                if option in plan.get("proposer_options", {}):
                    parts += [f"--proposer-{option.replace('_', '-')}", str(plan["proposer_options"][option])]
    return shlex.join(parts)


def _from_harness(plan: dict[str, Any]) -> bool:
    """Whether model and options are those of the harness's own settings."""
    files = plan.get("files", {})
    if SETTINGS_FILE not in files:
        return False
    own = parse_settings(files[SETTINGS_FILE], SETTINGS_FILE).model
    options = {key: value for key, value in own.options.items() if key != "instances"}
    return bool(plan["model"] == own.name and plan.get("options", {}) == options)


def python_lines(data: ReportData) -> str:
    """Python that repeats the run from this folder alone: the harness's files are in the journal."""
    plan = data.plan
    names = ["model", "options", "seed", "budget", "split", "n"]
    names += ["recipe", "settings", "proposer", "proposer_options"] if data.evolving else ["episodes", "memory"]
    given = [f"    {name}={plan[name]!r}," for name in names if plan.get(name) not in (None, {}, [])]
    lines = [
        f"from evolve import {plan['command']}",
        "from harness.folder import Harness",
        "from harness.journal import Journal",
        "",
        f"with Journal({str(data.folder)!r}, readonly=True) as journal:",
        '    files = journal.last("plan").body["files"]',
        f"{plan['command']}(",
        f'    Harness.from_files(files), {plan["env"]!r}, out="again",',
        *given,
        ")",
    ]
    return "\n".join(lines)
