"""The end of a run in a terminal: the verdict first, then where it came from, in 80 columns and plain text alike.

Nothing is said by colour alone, and what a model or a world said is never read as markup.
"""

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from evolve import wording
from evolve.page import NAME, visible
from evolve.report import ReportData, read_report
from evolve.stats import Mean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_BARS = "▁▂▃▄▅▆▇█"
_MOST = 8  # values of rounds that are printed
_PLAIN = "_.-~=+*#"  # where the terminal's encoding has no blocks


def show(
    run: str | os.PathLike[str] | ReportData, console: "Console | None" = None, *, page: Path | None = None
) -> None:
    """Print the summary of the run in `run`; `page` is where its page is, if not in the folder. Raises JournalError."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    data = run if isinstance(run, ReportData) else read_report(run)
    if console is None:
        console = Console(highlight=False, soft_wrap=False)
    style = {"Evolved is better": "bold green", "Evolved is worse": "bold red"}.get(wording.headline(data), "bold")
    console.print()
    console.print(Text(wording.headline(data), style=style))
    console.print(Padding(Text(visible(wording.sentence(data))), (0, 0, 0, 2)))
    for caveat in wording.caveats(data):
        console.print(Padding(Text(visible(f"note: {caveat}"), style="dim"), (0, 0, 0, 2)))
    console.print()
    console.print(_arms(data))
    for line in _lines(data, bars=_BARS if _draws(console, _BARS) else _PLAIN, page=page):
        console.print(Text(visible(line)), soft_wrap=True)


def _arms(data: ReportData) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("where", "mean", "95 % interval", "episodes", "gaps"):
        table.add_column(name, justify="left" if name == "where" else "right", no_wrap=name != "where")
    means: list[tuple[str, Mean]] = []
    if data.evaluation is not None:
        means.append((f"{data.plan.get('split')}", data.evaluation))
    if data.explored is not None:
        means.append(("random moves, before", data.explored))
    if data.rounds:
        last = data.rounds[-1]
        means.append((f"round {last.number}, evolved", last.evolved))
        if last.control is not None:
            means.append((f"round {last.number}, control", last.control))
    means += [(f"exam, {wording.arm(arm)}", mean) for arm, mean in data.exam.items()]
    for name, mean in means:
        ends = "none" if mean.low is None or mean.high is None else f"{mean.low:.3f} to {mean.high:.3f}"
        table.add_row(visible(name), wording.number(mean.mean), ends, str(mean.episodes), str(mean.missing))
    return table


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _lines(data: ReportData, bars: str, page: Path | None) -> list[str]:
    lines = []
    if data.rates:
        lines.append(wording.rates(data.rates))
    if data.rounds:
        evolved = [r.evolved.mean for r in data.rounds]
        control = [r.control.mean if r.control else None for r in data.rounds]
        top = max([1e-9, *(v for v in (*evolved, *control) if v is not None)])
        top = data.facts.reward_range[1] if data.facts.reward_range else top
        low = data.facts.reward_range[0] if data.facts.reward_range else 0.0
        for name, values in (("evolved", evolved), ("control", control)):
            ends = _MOST // 2
            shown = [wording.number(value) for value in values]
            shown = shown if len(shown) <= _MOST else [*shown[:ends], "...", *shown[-ends:]]
            lines.append(f"rounds, {name}: {spark(values, low, top, bars)}  {', '.join(shown)}")
    if data.changes:
        states = ("kept", "rejected", "undecided", "unusable", "pending")
        counts = [f"{data.changes.count(state)} {state}" for state in states if data.changes.count(state)]
        lines.append(f"changes: {', '.join(counts) or 'none proposed'}")
    if data.memory:
        decided = data.memory.verdict
        fate = "" if decided is None else "kept, " if decided.decision == "accept" else "not kept, "
        lines.append(f"memory: {fate}{wording.remembered(data.memory)}")
    if data.outcome:
        overlap = data.outcome.overlap
        shared = overlap.get("shared", 0)
        lines.append(f"exam tasks that also taught or decided: {shared} of {overlap.get('examined', 0)}")
    total = data.spending.total
    asked = f"{total.cached:,} repeats answered from this run's record, {total.calls - total.cached:,} asked"
    lines.append(
        f"cost: {total.calls:,} calls{f' ({asked})' if total.cached else ''}, {total.tokens:,} tokens, "
        f"money {wording.dollars(total.dollars)}"
    )
    lines.append(
        f"time: {wording.span(total.seconds)} in episodes (summed), {wording.span(data.ended - data.started)} "
        "from first to last event"
    )
    lines += data.faults.sentences()
    if data.gaps or data.truncated or data.episodes.unfinished:
        lines.append(f"gaps: {len(data.gaps)}, truncated: {len(data.truncated)}, not ended: {data.episodes.unfinished}")
    for what, rows in (("gap", data.gaps), ("truncated", data.truncated)):
        for reason, times in Counter(row.reason or "no reason given" for row in rows).most_common(3):
            lines.append(f"  {what}, {times:,} times: {_brief(reason)}" if times > 1 else f"  {what}: {_brief(reason)}")
    page = page or data.folder / NAME
    lines.append(f"run: {data.folder}")
    lines.append(f"page: {page}" if page.exists() else f"page: none yet; make it with: instar report {data.folder}")
    return lines


def spark(values: list[float | None], low: float, high: float, bars: str = _BARS) -> str:
    """One character a value, `?` for a gap, from the lowest to the highest of `bars`."""
    width = (high - low) or 1.0
    top = len(bars) - 1
    return "".join("?" if v is None else bars[max(0, min(top, round((v - low) / width * top)))] for v in values)


def _draws(console: "Console", text: str) -> bool:
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
