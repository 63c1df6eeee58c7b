"""Progress of a running operation: a cell per partition, or one bar for many partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from distop.cli.output.texts import STATE_STYLES, counts, duration, paused, printable
from distop.client import Operation, OperationUpdate

MOST_CELLS = 200
"""Largest number of partitions that are shown one by one."""

_CELLS_PER_ROW = 50
_MOST_FAILURES = 5
_LINE_EVERY_S = 10.0
"""Without a terminal: interval between lines; every change of state prints one, too."""

_STYLES = {"success": "green", "failed": "bold red", "": "dim"}


def follow(
    console: Console, updates: Iterable[OperationUpdate], clock: Callable[[], float] = time.monotonic
) -> Operation:
    """Show an operation until it ends; return its final state."""
    view = ProgressView(clock)
    if console.is_terminal:
        with Live(view, console=console, refresh_per_second=8, transient=True):
            for update in updates:
                view.apply(update)
        return view.last
    printed: object = None
    printed_at = 0.0
    for update in updates:
        view.apply(update)
        now = (update.operation.state, update.operation.pause)
        if now != printed or clock() - printed_at >= _LINE_EVERY_S:
            printed, printed_at = now, clock()
            console.print(view.headline(), soft_wrap=True)
    return view.last


class ProgressView:
    """The known state of an operation that is followed. A rich renderable."""

    last: Operation

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = clock()
        self._cells: dict[int, str] = {}
        self._failures: list[str] = []

    def apply(self, update: OperationUpdate) -> None:
        """Apply an update."""
        self.last = update.operation
        for job in update.jobs:
            if job.partition.isdecimal() and int(job.partition) < MOST_CELLS:
                self._cells[int(job.partition)] = job.state
            if job.state == "failed" and len(self._failures) < _MOST_FAILURES:
                self._failures.append(f"partition {job.partition}: {job.error}")

    def headline(self) -> Text:
        """``flights/ingest/17  running  40/100  12.3 s``"""
        operation = self.last
        style = STATE_STYLES[operation.state]
        text = Text.assemble((printable(operation.name), "bold"), "  ", (operation.state.value, style))
        text.append(f"  {counts(operation.jobs)}  {duration(self._clock() - self._begin)}")
        if operation.cancel_requested and not operation.done:
            text.append("  cancel requested", "yellow")
        elif operation.pause is not None:
            text.append(f"  paused {printable(paused(operation.pause))}", "yellow")
        elif _waits(operation):
            text.append("  waiting for an executor", "dim")
        return text

    def cells(self) -> list[str]:
        """One word per partition: ``success``, ``failed`` or empty.

        Each in its own place if the numbers of all finished partitions are known. Otherwise, since updates
        may be truncated and partitions may have names, as many as the counts say, from the left.
        """
        jobs = self.last.jobs
        if len(self._cells) == jobs.done and all(index < jobs.total for index in self._cells):
            return [self._cells.get(index, "") for index in range(jobs.total)]
        rest = jobs.total - jobs.done
        return ["success"] * jobs.succeeded + ["failed"] * jobs.failed + [""] * rest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not hasattr(self, "last"):
            return
        jobs = self.last.jobs
        lines: list[Text | ProgressBar] = [self.headline()]
        if 0 < jobs.total <= MOST_CELLS:
            full, empty = "#." if options.ascii_only else "■·"
            row = max(1, min(_CELLS_PER_ROW, options.max_width // 2))
            cells = self.cells()
            for begin in range(0, len(cells), row):
                words = cells[begin : begin + row]
                marks = [(f"{full if word else empty} ", _STYLES[word]) for word in words]
                lines.append(Text.assemble(*marks))
        elif jobs.total:
            lines.append(ProgressBar(jobs.total, jobs.done, width=min(options.max_width, 80)))
        lines += [Text(printable(failure), "red") for failure in self._failures]
        yield Group(*lines)


def _waits(operation: Operation) -> bool:
    """Whether jobs wait and no executor has taken the operation."""
    jobs = operation.jobs
    return bool(jobs.total or jobs.counting) and not (operation.runner or jobs.done or operation.done)
