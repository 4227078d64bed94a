"""Says where the code stands that does not let the others go on: all episodes share one event loop.

A world or a tool that computes without end, or waits without `await`, stops the whole run silently, and nothing inside
the loop can tell. So a thread outside looks whether the loop still turns, and names the line that it stands at.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SILENT = 30.0  # seconds for which the loop may stand still


@contextmanager
def watched(tell: Callable[[str], None], seconds: float | None = None) -> Iterator[None]:
    """Tell, from a thread, when the running event loop has stood still for `seconds`, and each time twice as late."""
    bound = SILENT if seconds is None else seconds
    loop, turning = asyncio.get_running_loop(), threading.get_ident()
    beat, over = [time.monotonic()], threading.Event()

    def turn() -> None:
        beat[0] = time.monotonic()
        timer[0] = loop.call_later(bound / 4, turn)

    def look() -> None:
        patience = bound
        while not over.wait(bound / 4):
            silent = time.monotonic() - beat[0]
            if silent < bound:
                patience = bound
            elif silent >= patience:
                patience = 2 * silent
                tell(f"nothing has moved for {silent:.0f} s: {_where(turning)} does not give way. Cure: --isolate")

    timer = [loop.call_later(0, turn)]
    thread = threading.Thread(target=look, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        timer[0].cancel()
        over.set()
        thread.join()


def _where(thread: int) -> str:
    """The innermost line of code that is neither Python's own nor a library's."""
    frames = traceback.extract_stack(sys._current_frames()[thread])
    ours = [frame for frame in frames if "site-packages" not in frame.filename and not _of_python(frame.filename)]
    frame = (ours or frames)[-1]
    return f"{frame.name} ({frame.filename}:{frame.lineno})"


def _of_python(file: str) -> bool:
    return file.startswith("<") or Path(asyncio.__file__).parent.parent in Path(file).parents
