"""What commands print for people."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from distop.cli.output.base import Listing, Output
from distop.cli.output.progress import follow
from distop.cli.output.style import (
    SEVERITY_STYLES,
    STATE_STYLES,
    broken_rules,
    counts,
    duration,
    in_bytes,
    paused,
    printable,
)
from distop.client import (
    AuditEntry,
    Batch,
    Diagnosis,
    Enqueued,
    Explanation,
    Grants,
    Index,
    Leader,
    Member,
    Operation,
    OperationUpdate,
    Ordering,
    Snapshot,
    Table,
    TableContent,
    Trace,
    Watermarks,
)
from distop.errors import DistopError

_WIDE = 10_000
"""Columns where there is no terminal: readers of a pipe want whole names."""


_MOST_FAILED = 20
"""Failed partitions that are shown of an operation."""


class HumanOutput(Output):
    """Tables and progress bars."""

    def __init__(self) -> None:
        self._out = _console(sys.stdout)
        self._err = _console(sys.stderr)

    def show(self, result: Any) -> None:
        show: Mapping[type, Callable[[Any], None]] = {
            Operation: self._operation,
            Table: self._table,
            Diagnosis: self._diagnosis,
            Enqueued: self._enqueued,
            Ordering: self._ordering,
            Explanation: self._explanation,
            Grants: self._grants,
            AuditEntry: self._audit_entry,
        }
        show[type(result)](result)

    def listed(self, what: Listing, items: Sequence[Any], more: bool) -> None:
        lists: Mapping[Listing, Callable[[Any, bool], None]] = {
            "operations": self._operations,
            "tables": self._tables,
            "audit": self._audit,
            "backlog": self._backlog,
            "snapshots": self._snapshots,
            "traces": self._traces,
        }
        lists[what](items, more)

    def _operation(self, operation: Operation) -> None:
        error = f"{operation.error.code}: {operation.error.message}" if operation.error else ""
        took = duration(operation.duration_s) if operation.done else duration(_since(operation.started_at))
        asked = " (cancel requested)" if operation.cancel_requested and not operation.done else ""
        if operation.completion is not None and operation.parked:
            asked = f" (parked: distop resolve {operation.name} {operation.completion.decisions})"
        asked = asked or (" (paused)" if operation.pause else "")
        told = dict(operation.facts)
        failed = told.pop("failedPartitions", None) or {}
        series = told.pop("series", None) or {}
        broken = broken_rules(told)
        told.pop("violations", None)
        facts = [(name, _text(value)) for name, value in sorted(told.items())]
        self._pairs(
            [
                ("operation", operation.name),
                ("state", Text(operation.state.value + asked, STATE_STYLES[operation.state])),
                ("jobs", counts(operation.jobs)),
                ("error", error),
                ("failed", _failed_partitions(failed, operation.jobs.failed)),
                ("broken rules", broken),
                ("completion", _completion(operation)),
                ("paused", paused(operation.pause)),
                ("started", _when(operation.started_at)),
                ("started by", operation.started_by),
                ("finished", _when(operation.finished_at)),
                ("took" if operation.done else "running for", took),
                ("runner", operation.runner),
                ("series", _series(series)),
                ("last of it", "\n".join(map(_text, series.get("last", ())))),
                ("follows", operation.follows),
                ("again, after", operation.retry_of),
                ("request id", operation.request_id),
                (
                    "asked for",
                    "\n".join(f"{name}: {_text(value)}" for name, value in operation.argument.items()),
                ),
                *facts,
            ]
        )

    def started(self, operation: Operation) -> None:
        self._out.print(printable(operation.name))
        said = "was started before by this request" if operation.found else "started"
        if operation.retry_of and not operation.found:
            said += f" again: {operation.retry_of} has ended without success"
        self.note(f"{said}; follow it with: distop watch {operation.name}")

    def preview(self, preview: Mapping[str, Any]) -> None:
        told = dict(preview)
        columns, rows = told.pop("columns", []), told.pop("rows", [])
        warnings, bad = told.pop("warnings", []), told.pop("badRows", [])
        self._pairs([(name, _text(value)) for name, value in told.items()])
        grid = _grid("COLUMN", "TYPE", "FROM", *(f"ROW {number + 1}" for number in range(len(rows))))
        for column in columns:
            values = (row.get(column["name"]) for row in rows)
            shown = ("NULL" if value is None else str(value) for value in values)
            grid.add_row(*map(printable, (column["name"], column["type"], column["from"], *shown)))
        self._out.print(grid)
        for text in (*warnings, *(f"bad row: {row}" for row in bad)):
            self._out.print(Text(printable(f"warning: {text}"), "yellow"), soft_wrap=True)
        self.note("nothing was started")

    def _operations(self, operations: Sequence[Operation], more: bool) -> None:
        grid = _grid("OPERATION", "STATE", "JOBS", "ROWS", "STARTED", "TOOK", "BY", "ERROR")
        for operation in operations:
            grid.add_row(
                printable(operation.name) + _counted(operation),
                Text(
                    operation.state.value + (" (paused)" if operation.pause else ""),
                    STATE_STYLES[operation.state],
                ),
                counts(operation.jobs),
                _text(operation.facts.get("rows", "")),
                _when(operation.started_at),
                duration(operation.duration_s),
                printable(operation.started_by),
                printable(operation.error.code) if operation.error else "",
            )
        self._list(grid, "no operations", more, ("BY", "TOOK", "STARTED", "ROWS", "JOBS"))

    def updates(self, updates: Iterable[OperationUpdate]) -> Operation:
        return self.progress(updates)

    def progress(self, updates: Iterable[OperationUpdate]) -> Operation:
        ended = follow(self._err, updates)
        self._operation(ended)
        return ended

    def _table(self, table: Table) -> None:
        options = [(name, _text(value)) for name, value in sorted(table.options.items())]
        self._pairs(
            [
                ("table", table.name),
                ("location", table.location),
                ("format", table.format),
                *options,
                *_content(table.content),
                ("snapshot", "" if table.snapshot_id is None else str(table.snapshot_id)),
                ("metadata", table.metadata_location),
                ("paused", paused(table.pause)),
                ("indexes", "\n".join(map(_index, table.indexes))),
                ("running", "\n".join(map(printable, table.running))),
                ("led by", table.leader),
                ("created", _when(table.created_at)),
                ("created by", table.created_by),
            ]
        )

    def _traces(self, traces: Sequence[Trace], more: bool) -> None:
        for one in traces:
            where = f"job {one.partition}, attempt {one.attempt}" if one.partition else "completing it"
            self._out.print(Text(printable(f"{_when(one.at)} {where}: {one.error}"), "bold"), soft_wrap=True)
            for line in one.trace.rstrip().split("\n"):
                self._out.print(Text(f"    {printable(line)}"), soft_wrap=True)
        if not traces:
            self.note(
                "no stack trace is kept: no user code has raised; distop show has errors of distop itself"
            )

    def _snapshots(self, snapshots: Sequence[Snapshot], more: bool) -> None:
        grid = _grid("SNAPSHOT", "COMMITTED", "CHANGE", "ROWS", "ADDED", "OPERATION", "STATE")
        for one in snapshots:
            state = "present" if one.present else "" if one.in_history else "not in the history"
            grid.add_row(
                str(one.snapshot_id),
                _when(one.committed_at),
                one.change,
                _number(one.rows),
                _number(one.added_rows),
                printable(one.operation or "another program"),
                printable(", ".join(filter(None, [state, *one.refs]))),
            )
        spare = ("ADDED", "CHANGE", "STATE", "COMMITTED")
        self._list(grid, "no snapshot: nothing was published yet", more, spare)

    def _tables(self, tables: Sequence[Table], more: bool) -> None:
        grid = _grid("TABLE", "LOCATION", "FORMAT", "RUNNING", "LED BY", "SNAPSHOT")
        for table in tables:
            grid.add_row(
                printable(table.name),
                printable(table.location),
                printable(table.format),
                " ".join(filter(None, [str(len(table.running) or ""), "paused" if table.pause else ""])),
                printable(table.leader),
                "" if table.snapshot_id is None else str(table.snapshot_id),
            )
        spare = ("LED BY", "SNAPSHOT", "FORMAT")
        self._list(grid, "no tables: distop tables create NAME --location URL", more, spare)

    def watermarks(self, watermarks: Watermarks) -> None:
        grid = _grid("SOURCE", "PARTITION", "WATERMARK")
        for source, partitions in sorted(watermarks.items()):
            for partition, value in sorted(partitions.items()):
                grid.add_row(printable(source), printable(partition), printable(value))
        self._list(grid, "no watermarks: nothing was ingested yet", more=False)

    def members(self, members: Iterable[Member], leaders: Iterable[Leader]) -> None:
        led: dict[str, int] = {}
        for leader in leaders:
            led[leader.member] = led.get(leader.member, 0) + 1
        grid = _grid("MEMBER", "ROLE", "ADDRESS", "HOST", "PID", "SINCE", "TYPES", "LEADS")
        for member in members:
            leads = str(led.get(member.id, 0)) if member.role == "coordinator" else ""
            grid.add_row(
                printable(member.id),
                member.role + (" (draining)" if member.draining else ""),
                printable(member.address),
                printable(member.host),
                str(member.pid or ""),
                _when(member.started_at),
                printable(", ".join(member.types)),
                leads,
            )
        self._list(grid, "no members", False, ("SINCE", "PID", "HOST", "TYPES", "LEADS"))

    def _diagnosis(self, diagnosis: Diagnosis) -> None:
        for one in diagnosis.findings:
            mark = "fixed" if one.fixed else one.severity.value
            style = "green" if one.fixed else SEVERITY_STYLES[one.severity]
            line = Text.assemble((f"{mark}: ", style), (f"{one.code}: ", "bold"), printable(one.sentence))
            self._out.print(line, soft_wrap=True)
            told = [one.outcome, "" if one.fixed else one.remedy]
            for text in filter(None, told):
                self._out.print(Text(f"    {printable(text)}"), soft_wrap=True)
        looked = f"{diagnosis.tables:,} tables and {diagnosis.operations:,} operations"
        self.note(f"looked at {looked}" + ("" if diagnosis.findings else ": everything is as it should be"))

    def _audit(self, entries: Sequence[AuditEntry], more: bool) -> None:
        grid = _grid("WHEN", "WHO", "FROM", "WHAT", "TO", "ASKED FOR", "WHY", "BECAME")
        for entry in entries:
            grid.add_row(
                _when(entry.at),
                printable(entry.by),
                printable(entry.address),
                printable(entry.action if entry.outcome != "denied" else f"{entry.action} (denied)"),
                printable(entry.target),
                printable(_text(entry.argument)),
                printable(entry.reason),
                _became(entry),
            )
        self._list(grid, "nothing yet", more, ("ASKED FOR", "WHY", "BECAME", "WHO"))

    def _grants(self, told: Grants) -> None:
        grid = _grid("WHO", "ROLE", "TABLES")
        for grant in told.grants:
            grid.add_row(printable(grant.who), grant.role, printable(", ".join(grant.tables)))
        self._list(
            grid, "no grant that you can see" if told.enforced else "no policy: everybody may do all", False
        )
        groups = f", of {', '.join(told.groups)}" if told.groups else ""
        self.note(
            f"you are {printable(told.subject + groups)}" if told.subject else "nobody knows who you are"
        )

    def _audit_entry(self, entry: AuditEntry) -> None:
        told = (
            _when(entry.at),
            printable(f"{entry.by or 'somebody'} {entry.outcome} {entry.action} {entry.target}"),
            printable(f"({entry.reason})" if entry.reason else ""),
        )
        self._out.print(*filter(None, told), soft_wrap=True, markup=False, highlight=False)

    def _enqueued(self, answer: Enqueued) -> None:
        self._out.print(f"{printable(answer.batch)}: {answer.became}")
        if answer.operation:
            self.note(f"by {answer.operation}")
        if answer.late:
            self.note(
                f"it is late, and blocks the table: distop backlog retry|skip {answer.table} {answer.batch}"
            )

    def _backlog(self, batches: Sequence[Batch], more: bool) -> None:
        grid = _grid("BATCH", "STATE", "TYPE", "SINCE", "BY", "FAILED", "OPERATION")
        for batch in batches:
            grid.add_row(
                printable(batch.name),
                batch.state,
                printable(batch.type),
                _when(batch.finished_at or batch.queued_at),
                printable(batch.queued_by),
                str(batch.attempts or ""),
                printable(batch.operation),
            )
        self._list(grid, "no batch is there", more, ("BY", "SINCE", "TYPE"))

    def _ordering(self, ordering: Ordering) -> None:
        block = ordering.blocked
        blocked = f"batch {block.batch}: {block.error.code}: {block.error.message}" if block else ""
        failed = [f"{one.batch}: {one.error.code}: {one.error.message}" for one in ordering.failed]
        self._pairs(
            [
                ("table", ordering.table),
                ("gate", ordering.gate),
                ("validation", "after each batch" if ordering.validation else ""),
                ("late batches", ordering.late),
                ("together", str(ordering.together)),
                ("attempts", str(ordering.max_attempts)),
                ("remembers", f"{ordering.remember:,} batches"),
                ("forgotten up to", ordering.forgotten),
                ("last batch", ordering.last),
                ("running", ordering.running),
                ("waits for approval of", ordering.awaiting),
                ("blocked by", Text(printable(blocked), "red") if blocked else ""),
                ("failed", Text(printable("; ".join(failed)), "red") if failed else ""),
            ]
        )

    def _explanation(self, explanation: Explanation) -> None:
        self._out.print(printable(f"{explanation.table}: {explanation.sentence}"), soft_wrap=True)

    def facts(self, title: str, facts: Mapping[str, Any], hints: Iterable[str] = ()) -> None:
        if list(facts) == ["version"]:
            self._out.print(f"{title} {facts['version']}")
            return
        self._out.print(Text(title, "bold"))
        self._pairs([(name, _text(value)) for name, value in facts.items()])
        for hint in hints:
            self._out.print(hint, soft_wrap=True)

    def result_for_programs(self, facts: Mapping[str, Any]) -> None:
        pass

    def note(self, text: str) -> None:
        self._err.print(Text(printable(text), "dim"), soft_wrap=True)

    def error(self, error: DistopError) -> None:
        if "traceback" in error.details:
            self._err.out(error.details["traceback"], end="")
        self._err.print(
            Text.assemble(("error: ", "bold red"), (f"{error.code}: ", "red"), printable(error.message)),
            soft_wrap=True,
        )
        if error.hint:
            self._err.print(Text.assemble(("hint: ", "bold"), printable(error.hint)), soft_wrap=True)

    def _pairs(self, pairs: Iterable[tuple[str, str | Text]]) -> None:
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in pairs:
            if value:
                lines = value if isinstance(value, Text) else "\n".join(map(printable, value.split("\n")))
                grid.add_row(printable(name), lines)
        self._out.print(grid)

    def _list(self, grid: Grid, empty: str, more: bool, spare: Sequence[str] = ()) -> None:
        """Print a list. Columns in ``spare`` are left out, one after the other, until it fits."""
        if not grid.rows:
            self.note(empty)
            return
        left_out = []
        for header in spare:
            if (
                Measurement.get(self._out, self._out.options.update(max_width=_WIDE), grid).maximum
                <= self._out.width
            ):
                break
            grid.columns = [column for column in grid.columns if column.header != header]
            left_out.append(header)
        self._out.print(grid)
        if left_out:
            self.note(f"left out: {', '.join(left_out)}; --output json, or a wider terminal, has them")
        if more:
            self.note("there are more: --limit 0 shows all")


def _failed_partitions(errors: Any, count: int) -> str:
    """One line for each that is named, and how many more there are."""
    if not isinstance(errors, Mapping) or not errors:  # none are named of an operation that was aborted
        return ""
    lines = [f"{name}: {error}" for name, error in sorted(errors.items())[:_MOST_FAILED]]
    more = count - len(lines)
    return "\n".join([*lines, f"and {more:,} more: --output json names up to 100"] if more > 0 else lines)


def _console(file: Any) -> Console:
    if isinstance(file, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to fail
        file.reconfigure(errors="backslashreplace")
    width = None if file.isatty() else _WIDE
    return Console(file=file, width=width, markup=False, highlight=False, emoji=False)


def _grid(*columns: str) -> Grid:
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        grid.add_column(column, no_wrap=index == 0, overflow="fold")
    return grid


def _content(content: TableContent | None) -> list[tuple[str, str]]:
    if content is None:
        return []
    columns = [
        f"{column.name}: {column.type}{' not null' if column.required else ''}" for column in content.columns
    ]
    size = "" if content.bytes is None else f"{in_bytes(content.bytes)} in {_number(content.files)} files"
    loaded = (
        f"{_when(content.loaded_at)}, {_number(content.loaded_rows)} rows, by {content.loaded_by}"
        if content.loaded_by
        else ""
    )
    return [
        ("columns", "\n".join(columns)),
        ("partitioned by", ", ".join(content.partition_by)),
        ("rows", _number(content.rows)),
        ("size", size),
        ("last load", loaded),
        ("not known", content.missing),
    ]


def _became(entry: AuditEntry) -> str:
    rows = "" if entry.rows is None else f"{_number(entry.rows)} rows"
    size = "" if entry.bytes is None else in_bytes(entry.bytes)
    return ", ".join(filter(None, (entry.outcome, printable(entry.error_code), rows, size)))


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _index(index: Index) -> str:
    behind = index.commits_behind
    state = "how far behind is unknown" if behind is None else f"{behind} behind" if behind else "up to date"
    left_out = f", {index.left_out} left out" if index.left_out else ""
    return f"{index.column}: snapshot {index.snapshot_id}, {state}, {index.files:,} files{left_out}"


def _series(told: Mapping[str, Any]) -> str:
    """How many operations of a series there were."""
    if not told:
        return ""
    return f"{told['name']}: {told['operations']:,} since {told['since']}, {told['rows']:,} rows"


def _counted(operation: Operation) -> str:
    """Behind the name of a series' last operation."""
    told = operation.facts.get("series")
    return f" ({told['operations']:,} of {printable(told['name'])})" if told else ""


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, bool):
        return str(value).lower()  # as it is written in an argument
    if isinstance(value, int) and abs(value) < 1 << 53:
        return f"{value:,}"
    return str(value)


def _completion(operation: Operation) -> str:
    """How completing it fails or hangs, if it does."""
    completion = operation.completion
    if completion is None or operation.done:
        return ""
    skipped = f", {completion.skipped} steps skipped" if completion.skipped else ""
    if completion.running:
        return f"{completion.running} takes long{skipped}"
    if completion.error is None:
        return f"tried again{skipped}"
    step = f" at step {completion.step}" if completion.step else ""
    error = f"{completion.error.code}: {completion.error.message}"
    return f"{completion.attempts} failed attempts{step}{skipped}: {error}"


def _when(moment: datetime | None) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ") if moment else ""


def _since(moment: datetime | None) -> float | None:
    return (datetime.now(UTC) - moment).total_seconds() if moment else None
