"""What the code of a job prints and logs: its end, to be kept with the job.

It still goes where it went before. What threads that its code starts write is not collected, nor what is
written between jobs, where this package itself logs.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

MOST_LETTERS = 64 << 10
"""Characters that are kept of one attempt: the last ones."""


class Output:
    """The output of the attempt that a task runs at present. Belongs to the task's thread."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether the code of a job runs."""
        self._pieces: deque[str] = deque()
        self._letters = 0

    def add(self, text: str) -> None:
        """Add what was written; what exceeds the limit is dropped from the beginning."""
        if not self.is_open or not text:
            return
        self._pieces.append(text[-MOST_LETTERS:])
        self._letters += len(self._pieces[-1])
        while self._letters - len(self._pieces[0]) >= MOST_LETTERS:
            self._letters -= len(self._pieces.popleft())

    def take(self) -> str:
        """What was written since the last call; mostly nothing."""
        if not self._pieces:
            return ""
        text = "".join(self._pieces)[-MOST_LETTERS:]
        self._pieces.clear()
        self._letters = 0
        return text


_present: ContextVar[Output | None] = ContextVar("output", default=None)


class _Tee:
    """A stream that also adds what is written to the output of the present job."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        written = self.stream.write(text)  # raises for what is no text
        if (output := _present.get()) is not None:
            output.add(text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        output = _present.get()
        if output is not None and output.is_open and record.name.partition(".")[0] != "distop":
            try:
                output.add(f"{self.format(record)}\n")
            except Exception:
                self.handleError(record)  # as handlers do: a line that cannot be formatted fails no job


_handler = _Handler()
_handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
_lock, _tasks = threading.Lock(), 0


@contextmanager
def collected() -> Iterator[Output]:
    """The output of the jobs of one task, which this thread runs."""
    global _tasks
    output = Output()
    token = _present.set(output)
    with _lock:
        _tasks += 1
        if _tasks == 1:
            _begin()
    try:
        yield output
    finally:
        _present.reset(token)
        with _lock:
            _tasks -= 1
            if _tasks == 0:
                _end()


def _begin() -> None:
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is not None:
            setattr(sys, name, _Tee(stream))
    root = logging.getLogger()
    # A first handler would silence the one that Python uses where there is none.
    if root.handlers:
        root.addHandler(_handler)


def _end() -> None:
    # Whatever the code of a job has put in their place stays.
    for name in ("stdout", "stderr"):
        if isinstance(tee := getattr(sys, name), _Tee):
            setattr(sys, name, tee.stream)
    logging.getLogger().removeHandler(_handler)
