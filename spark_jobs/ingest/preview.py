"""What an ingest would do: its columns and types, some rows, its size, and suspicions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

from distop.lake.layout.model import Layout
from distop.lake.rows import table_layout
from distop.lake.storage.storage import StorageOptions, storage_of
from distop.metastore.records.record import convert
from distop.operations.api import PlanRequest
from distop.sources.formats.bad_rows import BadRowPolicy, RowPosition
from distop.spark_jobs.ingest.job import FilesSplit
from distop.spark_jobs.ingest.plan import IngestPlan
from distop.spark_jobs.ingest.planning import plan_ingest
from distop.spark_jobs.ingest.rows import Conversion, GoodRows

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

    def reject(self, place: RowPosition, reason: str, kept: Mapping[str, Any]) -> None:
        self.reasons.append(f"{place}: {reason}"[:MAX_TEXT])
        if len(self.reasons) >= ROWS:
            raise _Enough


def _some_rows(plan: IngestPlan, storage: StorageOptions) -> tuple[list[dict[str, Any]], list[str]]:
    """The first rows as the table would have them, and the reasons why others would be missing."""
    noted = _Noted()
    rows = GoodRows(Conversion.to_table(plan), noted, lambda: None)
    found: list[dict[str, Any]] = []
    split = FilesSplit(plan, "0", rows, lambda: None, storage)
    with suppress(_Enough), closing(split.rows()) as blocks:
        found = next((block.table.slice(0, ROWS).to_pylist() for block in blocks), [])
    return [{name: _shown(value) for name, value in row.items()} for row in found], noted.reasons


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 1 << 53:
        return value
    return str(value)[:MAX_TEXT]
