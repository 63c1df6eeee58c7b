"""Command output for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from distop.cli.output.base import Listing, Output
from distop.cli.output.findings import doctor_lines, some_hosts, worker_lines
from distop.cli.output.progress import follow
from distop.cli.output.schedules import schedule_pairs, schedules_grid
from distop.cli.output.screen import Screen, grid_of
from distop.cli.output.style import (
    STATE_STYLES,
    broken_rules,
    counts,
    duration,
    paused,
    printable,
)
from distop.cli.output.texts import (
    became,
    completion_line,
    content_pairs,
    failed_partitions,
    in_series,
    index_line,
    number_of,
    seconds_since,
    series_line,
    text_of,
    when,
)
from distop.client import (
    AuditEntry,
    Batch,
    Diagnosis,
    Enqueued,
    Explanation,
    Grants,
    Leader,
    Member,
    Operation,
    OperationUpdate,
    Ordering,
    Schedule,
    Snapshot,
    Table,
    Trace,
    Watermarks,
)
from distop.errors import DistopError

if TYPE_CHECKING:
    from distop.executor.checking.findings import Finding as WorkerFinding


class HumanOutput(Output):
    """Tables and progress bars."""

    def __init__(self) -> None:
        self._screen = Screen()
        self._out, self._err = self._screen.out, self._screen.err

    def show(self, result: Any) -> None:
        show: Mapping[type, Callable[[Any], None]] = {
            Operation: self._operation,
            Table: self._table,
            Diagnosis: self._diagnosis,
            Enqueued: self._enqueued,
            Ordering: self._ordering,
            Explanation: self._explanation,
            Grants: self._grants,
            Schedule: self._schedule,
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
            "schedules": self._schedules,
        }
        lists[what](items, more)

    def _operation(self, operation: Operation) -> None:
        error = f"{operation.error.code}: {operation.error.message}" if operation.error else ""
        took = (
            duration(operation.duration_s)
            if operation.done
            else duration(seconds_since(operation.started_at))
        )
        asked = " (cancel requested)" if operation.cancel_requested and not operation.done else ""
        if operation.completion is not None and operation.parked:
            asked = f" (parked: distop resolve {operation.name} {operation.completion.decisions})"
        asked = asked or (" (paused)" if operation.pause else "")
        told = dict(operation.facts)
        failed = told.pop("failedPartitions", None) or {}
        series = told.pop("series", None) or {}
        broken = broken_rules(told)
        told.pop("violations", None)
        facts = [(name, text_of(value)) for name, value in sorted(told.items())]
        self._screen.pairs(
            [
                ("operation", operation.name),
                ("state", Text(operation.state.value + asked, STATE_STYLES[operation.state])),
                ("jobs", counts(operation.jobs)),
                ("error", error),
                ("failed", failed_partitions(failed, operation.jobs.failed)),
                ("broken rules", broken),
                ("completion", completion_line(operation)),
                ("paused", paused(operation.pause)),
                ("started", when(operation.started_at)),
                ("started by", operation.started_by),
                ("finished", when(operation.finished_at)),
                ("took" if operation.done else "running for", took),
                ("runner", operation.runner),
                ("series", series_line(series)),
                ("last of it", "\n".join(map(text_of, series.get("last", ())))),
                ("follows", operation.follows),
                ("again, after", operation.retry_of),
                ("request id", operation.request_id),
                (
                    "asked for",
                    "\n".join(f"{name}: {text_of(value)}" for name, value in operation.argument.items()),
                ),
                *facts,
            ]
        )

    def started(self, operation: Operation) -> None:
        self._out.print(printable(operation.name))
        said = "had been started before by the same request" if operation.found else "started"
        if operation.retry_of and not operation.found:
            said += f" again: {operation.retry_of} has ended without success"
        self.note(f"{said}; follow it with: distop watch {operation.name}")

    def preview(self, preview: Mapping[str, Any]) -> None:
        told = dict(preview)
        columns, rows = told.pop("columns", []), told.pop("rows", [])
        warnings, bad = told.pop("warnings", []), told.pop("badRows", [])
        self._screen.pairs([(name, text_of(value)) for name, value in told.items()])
        grid = grid_of("COLUMN", "TYPE", "FROM", *(f"ROW {number + 1}" for number in range(len(rows))))
        for column in columns:
            values = (row.get(column["name"]) for row in rows)
            shown = ("NULL" if value is None else str(value) for value in values)
            grid.add_row(*map(printable, (column["name"], column["type"], column["from"], *shown)))
        self._out.print(grid)
        for text in (*warnings, *(f"bad row: {row}" for row in bad)):
            self._out.print(Text(printable(f"warning: {text}"), "yellow"), soft_wrap=True)
        self.note("nothing was started")

    def _operations(self, operations: Sequence[Operation], more: bool) -> None:
        grid = grid_of("OPERATION", "STATE", "JOBS", "ROWS", "STARTED", "TOOK", "BY", "ERROR")
        for operation in operations:
            grid.add_row(
                printable(operation.name) + in_series(operation),
                Text(
                    operation.state.value + (" (paused)" if operation.pause else ""),
                    STATE_STYLES[operation.state],
                ),
                counts(operation.jobs),
                text_of(operation.facts.get("rows", "")),
                when(operation.started_at),
                duration(operation.duration_s),
                printable(operation.started_by),
                printable(operation.error.code) if operation.error else "",
            )
        self._screen.list(grid, "no operations", more, ("BY", "TOOK", "STARTED", "ROWS", "JOBS"))

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
                ("created", when(table.created_at)),
                ("created by", table.created_by),
            ]
        )

    def _traces(self, traces: Sequence[Trace], more: bool) -> None:
        for one in traces:
            where = f"job {one.partition}, attempt {one.attempt}" if one.partition else "completion"
            self._out.print(Text(printable(f"{when(one.at)} {where}: {one.error}"), "bold"), soft_wrap=True)
            for line in one.trace.rstrip().split("\n"):
                self._out.print(Text(f"    {printable(line)}"), soft_wrap=True)
        if not traces:
            self.note(
                "no stack trace is stored: no user code has raised; distop show has errors of distop itself"
            )

    def _snapshots(self, snapshots: Sequence[Snapshot], more: bool) -> None:
        grid = grid_of("SNAPSHOT", "COMMITTED", "CHANGE", "ROWS", "ADDED", "OPERATION", "STATE")
        for one in snapshots:
            state = "present" if one.present else "" if one.in_history else "not in the history"
            grid.add_row(
                str(one.snapshot_id),
                when(one.committed_at),
                one.change,
                number_of(one.rows),
                number_of(one.added_rows),
                printable(one.operation or "another program"),
                printable(", ".join(filter(None, [state, *one.refs]))),
            )
        spare = ("ADDED", "CHANGE", "STATE", "COMMITTED")
        self._screen.list(grid, "no snapshot: nothing has been published yet", more, spare)

    def _tables(self, tables: Sequence[Table], more: bool) -> None:
        grid = grid_of("TABLE", "LOCATION", "FORMAT", "RUNNING", "LED BY", "SNAPSHOT")
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
        self._screen.list(grid, "no tables: distop tables create NAME --location URL", more, spare)

    def watermarks(self, watermarks: Watermarks) -> None:
        grid = grid_of("SOURCE", "PARTITION", "WATERMARK")
        for source, partitions in sorted(watermarks.items()):
            for partition, value in sorted(partitions.items()):
                grid.add_row(printable(source), printable(partition), printable(value))
        self._screen.list(grid, "no watermarks: nothing has been ingested yet", more=False)

    def members(self, members: Iterable[Member], leaders: Iterable[Leader]) -> None:
        led: dict[str, int] = {}
        for leader in leaders:
            led[leader.member] = led.get(leader.member, 0) + 1
        grid = grid_of("MEMBER", "ROLE", "ADDRESS", "HOST", "PID", "SINCE", "TYPES", "LEADS")
        for member in members:
            leads = str(led.get(member.id, 0)) if member.role == "coordinator" else ""
            grid.add_row(
                printable(member.id),
                member.role + (" (draining)" if member.draining else ""),
                printable(member.address),
                printable(member.host),
                str(member.pid or ""),
                when(member.started_at),
                printable(", ".join(member.types)),
                leads,
            )
        self._screen.list(grid, "no members", False, ("SINCE", "PID", "HOST", "TYPES", "LEADS"))

    def _diagnosis(self, diagnosis: Diagnosis) -> None:
        looked = f"{diagnosis.tables:,} tables and {diagnosis.operations:,} operations"
        self._found(doctor_lines(diagnosis.findings), looked)

    def checked(self, workers: Sequence[Mapping[str, Any]], findings: Sequence[WorkerFinding]) -> None:
        hosts = some_hosts(sorted({one["host"] for one in workers}))
        self._found(worker_lines(findings), f"executors of Spark: {len(workers):,}, on {hosts or 'no host'}")

    def _found(self, lines: Iterable[Text], looked: str) -> None:
        found = list(lines)
        for line in found:
            self._out.print(line, soft_wrap=True)
        self.note(f"looked at {looked}" + ("" if found else ": no problem found"))

    def _audit(self, entries: Sequence[AuditEntry], more: bool) -> None:
        grid = grid_of("WHEN", "WHO", "FROM", "WHAT", "TO", "ASKED FOR", "WHY", "BECAME")
        for entry in entries:
            grid.add_row(
                when(entry.at),
                printable(entry.by),
                printable(entry.address),
                printable(entry.action if entry.outcome != "denied" else f"{entry.action} (denied)"),
                printable(entry.target),
                printable(text_of(entry.argument)),
                printable(entry.reason),
                became(entry),
            )
        self._screen.list(grid, "nothing yet", more, ("ASKED FOR", "WHY", "BECAME", "WHO"))

    def _grants(self, told: Grants) -> None:
        grid = grid_of("WHO", "ROLE", "TABLES")
        for grant in told.grants:
            grid.add_row(printable(grant.who), grant.role, printable(", ".join(grant.tables)))
        self._screen.list(
            grid,
            "no grant that you can see" if told.enforced else "no policy: every caller may do everything",
            False,
        )
        groups = f", of {', '.join(told.groups)}" if told.groups else ""
        self.note(
            f"you are {printable(told.subject + groups)}"
            if told.subject
            else "the service does not know who you are"
        )

    def _audit_entry(self, entry: AuditEntry) -> None:
        told = (
            when(entry.at),
            printable(f"{entry.by or 'unknown'} {entry.outcome} {entry.action} {entry.target}"),
            printable(f"({entry.reason})" if entry.reason else ""),
        )
        self._out.print(*filter(None, told), soft_wrap=True, markup=False, highlight=False)

    def _enqueued(self, answer: Enqueued) -> None:
        self._out.print(f"{printable(answer.batch)}: {answer.became}")
        if answer.operation:
            self.note(f"by {answer.operation}")
        if answer.late:
            self.note(
                f"it is late and blocks the table: distop backlog retry|skip {answer.table} {answer.batch}"
            )

    def _backlog(self, batches: Sequence[Batch], more: bool) -> None:
        grid = grid_of("BATCH", "STATE", "TYPE", "SINCE", "BY", "FAILED", "OPERATION")
        for batch in batches:
            grid.add_row(
                printable(batch.name),
                batch.state,
                printable(batch.type),
                when(batch.finished_at or batch.queued_at),
                printable(batch.queued_by),
                str(batch.attempts or ""),
                printable(batch.operation),
            )
        self._screen.list(grid, "no batches", more, ("BY", "SINCE", "TYPE"))

    def _schedules(self, schedules: Sequence[Schedule], more: bool) -> None:
        self._screen.list(schedules_grid(schedules), "no schedules", more, ("STARTED", "LAST", "OPERATION"))

    def _schedule(self, schedule: Schedule) -> None:
        self._screen.pairs(schedule_pairs(schedule))

    def _ordering(self, ordering: Ordering) -> None:
        block = ordering.blocked
        blocked = f"batch {block.batch}: {block.error.code}: {block.error.message}" if block else ""
        failed = [f"{one.batch}: {one.error.code}: {one.error.message}" for one in ordering.failed]
        self._screen.pairs(
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
                ("waits for approval", ordering.awaiting),
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
        self._screen.pairs([(name, text_of(value)) for name, value in facts.items()])
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
