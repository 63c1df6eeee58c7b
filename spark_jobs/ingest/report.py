"""What callers are shown of an ingest: before it starts a preview (its columns and types, some rows, its
size, and suspicions); at its end a report, and whether too many of its rows were bad."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

import msgspec

from distop.commit.contract import Contribution, FinishContext, TransactionalStep
from distop.errors import TooManyBadRows
from distop.lake.layout.model import Layout, file_io
from distop.lake.layout.staging import ICEBERG, format_of, quarantine_folder
from distop.lake.rows import table_layout
from distop.lake.storage.quarantine import LIST_SUFFIX, QuarantineList
from distop.lake.storage.storage import StorageOptions, storage_of
from distop.operations import OperationArg, PlanRequest, convert
from distop.operations.job import staging_folder, staging_stem
from distop.sources.formats.bad_rows import BadRowPolicy, RowPosition, first_of
from distop.sources.formats.files import check_markers
from distop.spark_jobs.ingest.argument import NOTHING, REPORTED
from distop.spark_jobs.ingest.job import QUARANTINE, Conversion, FilesSplit, GoodRows
from distop.spark_jobs.ingest.plan import IngestPlan
from distop.spark_jobs.ingest.planning import plan_ingest

ROWS = 5
"""Rows shown, good and bad ones."""
MAX_TEXT = 200
"""Characters shown of a value."""
UNCHECKED = (
    "the query of transform is not checked, and its rows are not shown: only Spark, on an executor, reads it"
)


def preview_ingest(request: PlanRequest) -> dict[str, Any]:
    """``format``, ``files``, ``bytes``, ``jobs``, ``columns`` (``name``, ``type``, and the origin of that,
    ``from``: ``table``, ``schema``, ``path`` or ``files``), ``ignoredColumns`` if there are any, ``rows``,
    ``warnings``, ``badRows``; for a topic without ``files``, ``bytes`` and rows. For an ingest that would do
    nothing: only ``jobs``.

    Planned as a start is, with the same errors.
    """
    plan = plan_ingest(request)
    left_out = ("filesSkipped", "filesRemaining")
    skipped = {name: plan.argument[name] for name in left_out if name in plan.argument}
    if "cuts" not in plan.argument:
        held = plan.argument.get("warnings")
        return {"jobs": 0, **skipped, **({"warnings": held} if held else {})}
    ingest = convert(plan.argument, IngestPlan)
    shown: dict[str, Any] = {"format": ingest.format}
    if ingest.kafka is None:
        shown |= {"files": len(ingest.files), "bytes": sum(file.size for file in ingest.files), **skipped}
    if not plan.dynamic:
        shown["jobs"] = plan.partition_count
    shown["columns"] = _columns(ingest, table_layout(request), request.argument.get("schema") or {})
    if ingest.kafka is None and ingest.transform is None:
        rows, bad = _some_rows(ingest, storage_of(request.table))
        shown |= {"rows": rows, "badRows": bad}
    if ingest.ignored_columns:
        shown["ignoredColumns"] = ingest.ignored_columns
    unchecked = [] if ingest.transform is None else [UNCHECKED]
    return shown | {"warnings": [*ingest.warnings, *unchecked]}


def _columns(plan: IngestPlan, table: Layout | None, declared: dict[str, str]) -> list[dict[str, str]]:
    present = () if table is None else table.schema.column_names

    def known(name: str) -> str:
        if name in present or name in declared:
            return "table" if name in present else "schema"
        return "path" if name in plan.path_columns else "files"

    fields = plan.table_layout.schema.columns
    return [
        {"name": field.name, "type": str(field.field_type), "from": known(field.name)} for field in fields
    ]


class _Enough(Exception):
    """Enough rows have been read."""


class _Noted(BadRowPolicy):
    """Bad rows are only shown."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def reject(self, position: RowPosition, reason: str, kept: Mapping[str, Any]) -> None:
        self.reasons.append(f"{position}: {reason}"[:MAX_TEXT])
        if len(self.reasons) >= ROWS:
            raise _Enough


def _some_rows(plan: IngestPlan, storage: StorageOptions) -> tuple[list[dict[str, Any]], list[str]]:
    """The first rows as the table would have them, and the reasons why others would be missing."""
    noted = _Noted()
    rows = GoodRows(Conversion.to_table(plan), noted, lambda: None)
    shown: list[dict[str, Any]] = []
    split = FilesSplit(plan, "0", rows, lambda: None, storage)
    with suppress(_Enough), closing(split.rows()) as blocks:
        shown = next((block.table.slice(0, ROWS).to_pylist() for block in blocks), [])
    return [{name: _shown(value) for name, value in row.items()} for row in shown], noted.reasons


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 1 << 53:
        return value
    return str(value)[:MAX_TEXT]


class IngestReport(TransactionalStep):
    """Adds to the facts of an operation the number of bad rows and the folder of its quarantine files; for a
    topic also the number of records without a value, of missing offsets and of those that open transactions
    hold back; for files signs that they were misinterpreted.

    Changes nothing but the list of quarantine files, which only the facts lead to; they become visible in the
    transaction that finishes the operation. Precedes the steps that publish.
    """

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`TransactionalStep`.

        Raises
        ------
        TooManyBadRows
        SourceIncomplete
            The source was written again since its rows were read, or is being written. Only checked where
            all steps belong to the transaction: others may have been executed already.
        """
        operation = context.view.arg
        results = [job.result for job in context.view.jobs.values() if job.state == "success"]

        def total(name: str) -> int:
            return sum(int(result.get(name, 0)) for result in results)

        bad = total("badRows")
        if excess := _excess(operation, bad, total("rowsRead")):
            first = next((str(result[QUARANTINE]) for result in results if QUARANTINE in result), "")
            shown = first_of(file_io(operation.location, operation.storage), f"{operation.location}/{first}")
            raise TooManyBadRows(f"{excess}; the first: {shown}" if shown else excess, facts={"badRows": bad})
        if format_of(operation) == ICEBERG:
            check_markers(operation.argument.get("markers", {}))
        facts: dict[str, Any] = {
            name: operation.argument[name] for name in REPORTED if name in operation.argument
        }
        if "kafka" in operation.argument or operation.argument.get("onBadRows") == "quarantine":
            facts["badRows"] = bad
        if operation.argument.get(NOTHING):
            facts["rows"] = 0
        if (source := operation.argument.get("kafka")) is not None:
            facts["tombstones"] = total("tombstones")
            facts["offsetsSkipped"] = total("offsetsSkipped") + int(source.get("skipped", 0))
            if held := int(source.get("held", 0)):
                facts["offsetsHeldBack"] = held
        # With mode "ignore" it is unknown here whether the files are kept.
        if bad and operation.argument.get("mode") != "ignore" and _listed(context):
            folder = staging_folder(operation, quarantine_folder(format_of(operation)))
            facts[QUARANTINE] = folder.removeprefix(operation.location).lstrip("/")
        return Contribution(facts=facts)


def _listed(context: FinishContext) -> bool:
    """Write the list of the quarantine files that count, as often as the commit is prepared: always the same
    content under the same name. The name begins as those of an attempt that counts, so its files and the list
    are kept, or swept, together. False: there are none.
    """
    arg = context.view.arg
    folder = staging_folder(arg, quarantine_folder(format_of(arg)))
    counted = ((name, job) for name, job in context.selection.jobs.items() if QUARANTINE in job.result)
    jobs = sorted(counted, key=lambda named: named[0])
    if not jobs:
        return False
    argument, no_text = _how_read(IngestPlan.of(arg))
    listed = QuarantineList(
        operation=str(arg.id),
        argument=argument,
        no_text=no_text,
        files=[
            (str(job.result[QUARANTINE]).rpartition("/")[2], int(job.result["badRows"])) for _, job in jobs
        ],
    )
    name, first = jobs[0]
    location = f"{folder}/{staging_stem(name, first.attempt)}{LIST_SUFFIX}"
    with file_io(arg.location, arg.storage).new_output(location).create(overwrite=True) as stream:
        stream.write(listed.encoded())
    return True


def _how_read(plan: IngestPlan) -> tuple[dict[str, Any], str]:
    """The argument of an ingest that reads rows as this one did, and why their text is not all of them;
    empty: it is."""
    file_format = plan.format.replace("kafka/json", "jsonl").removeprefix("kafka/")
    argument: dict[str, Any] = {"format": file_format, "on_bad_rows": "quarantine"}
    if file_format == "csv":
        argument |= msgspec.structs.asdict(plan.csv)
        argument.pop("encoding")  # what was kept is UTF-8, unless it was not even that
    if plan.on_new_columns == "ignore":
        argument["columns"] = plan.targets
    elif plan.on_new_columns != "fail":
        argument["on_new_columns"] = plan.on_new_columns
    for name in ("filter", "epoch_units", "branch"):
        if value := getattr(plan, name):
            argument[name] = value
    if plan.path_columns:
        argument["partition_columns_from_path"] = True
        return argument, f"the folders of their files name {plan.path_columns[0]!r}"
    outside = set(plan.kafka.metadata.values()).intersection(plan.targets) if plan.kafka is not None else ()
    if outside:
        return argument, f"{min(outside)!r} is no part of a record's value"
    if file_format not in ("csv", "jsonl"):
        return argument, f"they are no text, but {file_format}"
    return argument, ""


def _excess(operation: OperationArg, bad: int, good: int) -> str:
    """Why there are too many bad rows; empty: there are not."""
    most, share = operation.argument.get("maxBadRows"), operation.argument.get("maxBadShare")
    counted = f"{bad:,} of {bad + good:,} rows are bad"
    if most is not None and bad > most:
        return f"{counted}, at most {most:,} may be"
    if share is not None and bad > share * (bad + good):
        return f"{counted}, at most {share:.4%} may be"
    return f"{counted}: all of them" if share is None and bad and not good else ""
