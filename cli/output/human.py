"""Command output for people."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from distop.cli.output.base import Listing, Output, some_more
from distop.cli.output.grids import GRANTS, STYLES, WATERMARKS, ListStyle, grid_of
from distop.cli.output.texts import (
    STATE_STYLES,
    arguments_of,
    broken_rules,
    completion_line,
    content_pairs,
    counts,
    doctor_lines,
    event_lines,
    failed_partitions,
    fields_of,
    index_line,
    lines_of,
    paused,
    seconds_since,
    series_line,
    shown,
    some_hosts,
    state_of,
    when,
    worker_lines,
)
from distop.client import (
    Diagnosis,
    Enqueued,
    Explanation,
    Grants,
    Operation,
    OperationUpdate,
    QuarantinedRow,
    Table,
    Trace,
    Watermarks,
)
from distop.errors import DistopError
from distop.proto.commands import to_unblock
from distop.proto.json_text import LINKS, duration, links_of, printable, series_of, text_of

if TYPE_CHECKING:
    from distop.executor.checking.spark_setup import WorkerFinding

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


_WIDE = 10_000
"""Width where there is no terminal: programs that read a pipe need whole names."""


def _console(file: Any, *, wide: bool = False) -> Console:
    if isinstance(file, io.TextIOWrapper):  # a name that the terminal cannot show must not cause a failure
        file.reconfigure(errors="backslashreplace")
    width = None if file.isatty() and not wide else _WIDE
    return Console(file=file, width=width, markup=False, highlight=False, emoji=False)


class Screen:
    """The two streams of a command: results go to ``out``, everything else to ``err``.

    Parameters
    ----------
    wide:
        Whether lists have all their columns, also where the terminal is narrower.
    """

    def __init__(self, *, wide: bool = False) -> None:
        self.out = _console(sys.stdout, wide=wide)
        self.err = _console(sys.stderr)

    def note(self, text: str) -> None:
        """Print a remark to stderr."""
        self.err.print(Text(printable(text), "dim"), soft_wrap=True)

    def pairs(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Print names and values, those that are not empty; a text has lines, a ``Text`` stays as it is."""
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in pairs:
            text = value if isinstance(value, Text) else "\n".join(map(printable, shown(value).split("\n")))
            if text:
                grid.add_row(printable(name), text)
        self.out.print(grid)

    def list(self, grid: Grid, empty: str, more: int, spare: Sequence[str] = ()) -> None:
        """Print a list. Drops columns in ``spare``, one after the other, until the list fits."""
        if not grid.rows:
            self.note(empty)
            return
        left_out = []
        for header in spare:
            if (
                Measurement.get(self.out, self.out.options.update(max_width=_WIDE), grid).maximum
                <= self.out.width
            ):
                break
            grid.columns = [column for column in grid.columns if column.header != header]
            left_out.append(header)
        self.out.print(grid)
        if left_out:
            self.note(f"not shown: {', '.join(left_out)}; use --output wide")
        if more:
            self.note(f"{some_more(more)}: --limit 0 shows all")


T = TypeVar("T")


class HumanOutput(Output):
    """Tables and progress bars."""

    def __init__(self, *, wide: bool = False) -> None:
        self._screen = Screen(wide=wide)
        self._out, self._err = self._screen.out, self._screen.err

    def show(self, result: Any) -> None:
        show: Mapping[type, Callable[[Any], None]] = {
            Operation: self._operation,
            Table: self._table,
            Diagnosis: self._diagnosis,
            Enqueued: self._enqueued,
            Explanation: self._explanation,
            Grants: self._grants,
        }
        if (special := show.get(type(result))) is not None:
            special(result)
        else:
            self._screen.pairs(fields_of(result))

    def listed(self, listing: Listing, items: Sequence[Any], more: int) -> None:
        if listing == "traces":
            self._traces(items)
            return
        if listing == "quarantined":
            self._quarantined(items, more)
            return
        self._list(STYLES[listing], items, more=more)

    def _list(self, style: ListStyle[T], items: Iterable[T], *, more: int = 0, empty: str = "") -> None:
        self._screen.list(style.grid(items), empty or style.empty, more, style.spare)

    def _operation(self, operation: Operation) -> None:
        error = f"{operation.error.code}: {operation.error.message}" if operation.error else ""
        seconds = operation.duration_s if operation.done else seconds_since(operation.started_at)
        others = dict(operation.facts)
        failed = failed_partitions(others.get("failedPartitions"), operation.jobs.failed)
        series, broken, links = series_of(others), broken_rules(others), links_of(others)
        own = (failed, "failedPartitions"), (series, "series"), (broken, "violations"), (links, LINKS)
        for value, name in own:
            if value:
                del others[name]
        facts = [(name, text_of(value)) for name, value in sorted(others.items())]
        self._screen.pairs(
            [
                ("operation", operation.name),
                ("state", Text(state_of(operation, decide=True), STATE_STYLES[operation.state])),
                ("jobs", counts(operation.jobs)),
                ("error", error),
                ("failed", failed),
                ("broken rules", broken),
                ("completion", completion_line(operation)),
                ("paused", paused(operation.pause)),
                ("started", operation.started_at),
                ("started by", operation.started_by),
                ("finished", operation.finished_at),
                ("duration" if operation.done else "running for", duration(seconds)),
                ("runner", operation.runner),
                ("series", series_line(series)),
                ("last of it", "\n".join(map(text_of, series.get("last", ())))),
                ("follows", operation.follows),
                ("again, after", operation.retry_of),
                ("run", operation.run),
                ("batches", ", ".join(operation.batches)),
                *arguments_of(operation.argument),
                *facts,
                ("job outcomes", operation.job_outcomes),
                ("links", "\n".join(f"{name}: {url}" for name, url in sorted(links.items()))),
                ("events", event_lines(operation)),
            ]
        )

    def started(self, operation: Operation) -> None:
        self._out.print(printable(operation.name))
        message = "started"
        if operation.found:
            message = f"had been started before by the same request, at {when(operation.started_at)}"
        if operation.found and operation.state.value == "succeeded":
            message += "; if its source has changed since, --again runs it anew in place of that run"
        if operation.retry_of and not operation.found:
            message += f" again: {operation.retry_of} has ended without success"
        self.note(f"{message}; follow it with: distop operation watch {operation.name}")

    def preview(self, preview: Mapping[str, Any]) -> None:
        fields = dict(preview)
        columns, rows = fields.pop("columns", []), fields.pop("rows", [])
        warnings, bad = fields.pop("warnings", []), fields.pop("badRows", [])
        self._screen.pairs([(name, text_of(value)) for name, value in fields.items()])
        grid = grid_of("COLUMN", "TYPE", "FROM", *(f"ROW {number + 1}" for number in range(len(rows))))
        for column in columns:
            values = (row.get(column["name"]) for row in rows)
            shown = ("NULL" if value is None else str(value) for value in values)
            grid.add_row(*map(printable, (column["name"], column["type"], column["from"], *shown)))
        self._out.print(grid)
        for text in (*warnings, *(f"bad row: {row}" for row in bad)):
            self._out.print(Text(printable(f"warning: {text}"), "yellow"), soft_wrap=True)
        self.note("nothing was started")

    def updates(self, updates: Iterable[OperationUpdate]) -> Operation:
        return self.progress(updates)

    def progress(self, updates: Iterable[OperationUpdate]) -> Operation:
        ended = follow(self._err, updates)
        self._operation(ended)
        return ended

    def _table(self, table: Table) -> None:
        options = [(name, text_of(value)) for name, value in sorted(table.options.items())]
        self._screen.pairs(
            [
                ("table", table.name),
                ("location", table.location),
                ("format", table.format),
                *options,
                *content_pairs(table.content),
                ("snapshot", "" if table.snapshot_id is None else str(table.snapshot_id)),
                ("metadata", table.metadata_location),
                ("paused", paused(table.pause)),
                ("indexes", "\n".join(map(index_line, table.indexes))),
                ("running", "\n".join(map(printable, table.running))),
                ("led by", table.leader),
                ("created", table.created_at),
                ("created by", table.created_by),
            ]
        )

    def _traces(self, traces: Sequence[Trace]) -> None:
        for trace in traces:
            where = f"job {trace.partition}, attempt {trace.attempt}" if trace.partition else "completion"
            self._out.print(
                Text(printable(f"{when(trace.at)} {where}: {trace.error or 'succeeded'}"), "bold"),
                soft_wrap=True,
            )
            for text in filter(None, (trace.output, trace.trace)):
                for line in text.rstrip().split("\n"):
                    self._out.print(Text(f"    {printable(line)}"), soft_wrap=True)
        if not traces:
            self.note(
                "nothing is stored: no user code has raised, printed or logged; "
                "distop operation show has errors of distop itself"
            )

    def _quarantined(self, rows: Sequence[QuarantinedRow], more: int) -> None:
        for row in rows:
            self._out.print(Text(printable(f"{row.position}: {row.reason}"), "bold"), soft_wrap=True)
            self._out.print(Text(f"    {printable(row.raw)}"), soft_wrap=True)
        if not rows:
            self.note("no row is in quarantine")
        elif more:
            self.note(f"{some_more(more)}: --limit 0 shows all")

    def watermarks(self, watermarks: Watermarks) -> None:
        marks = (
            (source, partition, value)
            for source, partitions in sorted(watermarks.items())
            for partition, value in sorted(partitions.items())
        )
        self._list(WATERMARKS, marks)

    def _diagnosis(self, diagnosis: Diagnosis) -> None:
        looked = f"{diagnosis.tables:,} tables and {diagnosis.operations:,} operations"
        self._findings(doctor_lines(diagnosis.findings), looked)

    def checked(self, workers: Sequence[Mapping[str, Any]], findings: Sequence[WorkerFinding]) -> None:
        hosts = some_hosts(sorted({worker["host"] for worker in workers}))
        self._findings(
            worker_lines(findings), f"executors of Spark: {len(workers):,}, on {hosts or 'no host'}"
        )

    def _findings(self, lines: Iterable[Text], looked: str) -> None:
        printed = list(lines)
        for line in printed:
            self._out.print(line, soft_wrap=True)
        self.note(f"looked at {looked}" + ("" if printed else ": no problem found"))

    def _grants(self, grants: Grants) -> None:
        open_to_all = "" if grants.enforced else "no policy: every caller may do everything"
        self._list(GRANTS, grants.grants, empty=open_to_all)
        groups = f", of {', '.join(grants.groups)}" if grants.groups else ""
        self.note(
            f"you are {printable(grants.subject + groups)}"
            if grants.subject
            else "the service does not know who you are"
        )

    def _enqueued(self, answer: Enqueued) -> None:
        self._out.print(f"{printable(answer.batch)}: {answer.became}")
        if answer.operation:
            self.note(f"by {answer.operation}")
        if answer.late:
            self.note(f"it is late and blocks the table: {to_unblock(answer.table, answer.batch)}")

    def _explanation(self, explanation: Explanation) -> None:
        self._out.print(printable(f"{explanation.table}: {explanation.sentence}"), soft_wrap=True)

    def facts(self, title: str, facts: Mapping[str, Any], hints: Iterable[str] = ()) -> None:
        if list(facts) == ["version"]:
            self._out.print(f"{title} {facts['version']}")
            return
        self._out.print(Text(title, "bold"))
        self._screen.pairs([(name, lines_of(value)) for name, value in facts.items()])
        for hint in hints:
            self._out.print(hint, soft_wrap=True)

    def result_for_programs(self, facts: Mapping[str, Any]) -> None:
        pass

    def note(self, text: str) -> None:
        self._screen.note(text)

    def error(self, error: DistopError) -> None:
        if "traceback" in error.details:
            self._err.out(error.details["traceback"], end="")
        self._err.print(
            Text.assemble(("error: ", "bold red"), (f"{error.code}: ", "red"), printable(error.message)),
            soft_wrap=True,
        )
        if error.hint:
            self._err.print(Text.assemble(("hint: ", "bold"), printable(error.hint)), soft_wrap=True)
