"""What a server prints decides nothing: output that is closed, full or stuck is dropped, and the work goes on.

A pipe whose reader has gone, or a terminal that was stopped with Ctrl-S, must not end or hold up a recording. So lines
are written by a thread of their own, and not through `sys.stdout`, whose lock would be held at the end.
"""

import contextlib
import os
import queue
import sys
from json import dumps
from threading import Thread
from typing import Any, TextIO

from evolve.cli_look import FORMAT
from evolve.page import visible

MOST = 1000  # lines that may wait; more are dropped
CLOSING = 2.0  # seconds for the last of them


class Teller:
    """Prints lines as they come, as text or as JSON. Never raises for the output's sake, and never waits for it."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        self._out, self._error = _number(sys.stdout), _number(sys.stderr)
        self._lines: queue.Queue[bytes | None] = queue.Queue(MOST)
        self._writing = Thread(target=self._write, name="teller", daemon=True)
        self._writing.start()

    def __call__(self, data: dict[str, Any], text: str) -> None:
        """Print `text`, or `data` where JSON is wanted."""
        line = dumps({"format": FORMAT, **data}) if self._json else visible(text)
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(f"{line}\n".encode(self._encoding, "backslashreplace"))

    def close(self) -> None:
        """Wait a moment for what is not written yet."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._writing.join(CLOSING)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._out is None:
                continue
            try:
                _whole(self._out, line)
            except OSError as error:
                self._out = None
                notice = f"nothing more is printed ({error.strerror}); the recording goes on\n"
                if self._error is not None:
                    with contextlib.suppress(OSError):  # then nobody is there to be told
                        _whole(self._error, notice.encode())


def _number(stream: TextIO | None) -> int | None:
    """Its file descriptor; None where it was closed before we began: the number may be another file's by now."""
    return None if stream is None else stream.fileno()


def _whole(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
