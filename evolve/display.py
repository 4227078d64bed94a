"""Progress of long work: what is being played, how far it is, how long it may take, and the score so far.

On a terminal it is one live line; in a pipe or a log it is a plain line now and then, so that silence never looks like
a hang.
"""

import re
import sys
import time
from types import TracebackType
from typing import Any, Self

from evolve.wording import arm
from harness.runner import Progress

_EVERY = 15.0  # seconds between plain lines


class Display:
    """Shows progress on standard error; `quiet` shows nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._live: Any = None
        self._task: Any = None
        self._phase = self._waiting = ""
        self._began = self._last = time.monotonic()

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Live

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
            rest = (TextColumn("{task.fields[score]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
            self._live = Live(*columns, *rest, console=Console(stderr=True), transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def watch(self, progress: Progress) -> None:
        """One more episode has ended, or a long wait has begun or ended."""
        if self.quiet:
            return
        scored = progress.done - progress.gaps
        score = f"mean {progress.scores / scored:.2f}" if scored else "no score yet"
        score += f", {progress.gaps} missing" if progress.gaps else ""
        score += f", {progress.waiting}" if progress.waiting and self._live is not None else ""
        what = _what(progress)
        if what != self._phase:
            self._phase, self._began, self._task = what, time.monotonic(), None
        if self._live is not None:
            if self._task is None:
                for task in list(self._live.task_ids):
                    self._live.remove_task(task)
                self._task = self._live.add_task(what, total=progress.total, score=score)
            self._live.update(self._task, completed=progress.done, total=progress.total, score=score)
            return
        now = time.monotonic()
        if progress.waiting and progress.waiting != self._waiting:
            print(f"{what}: {progress.waiting}", file=sys.stderr, flush=True)
        self._waiting = progress.waiting or self._waiting
        if now - self._last >= _EVERY:
            self._last = now
            left = (now - self._began) / max(1, progress.done) * (progress.total - progress.done)
            print(
                f"{what}: {progress.done}/{progress.total}, {score}, about {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def say(self, text: str) -> None:
        """A line worth keeping."""
        if self.quiet:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)


def _what(progress: Progress) -> str:
    """What is being played, as people read it: 'round 1, evolved', 'exam, random moves'."""
    phase = re.sub(r"^(round|gate)-([0-9]+)", r"\1 \2", progress.phase)
    return phase if progress.arm in ("", "agent") or phase == "explore" else f"{phase}, {arm(progress.arm)}"
