"""Conditions: on cheap measures of a table, and on watermarks of any table.

All measures are in the metadata file of the published snapshot: nothing is listed, and no manifest is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from distop.coordinator.schedules.times import rendered
from distop.errors import InvalidArgument, PreconditionFailed
from distop.lake.iceberg.measures import MEASURES
from distop.lake.iceberg.watermarks import is_after
from distop.lake.storage.storage import storage_of
from distop.metastore.records.names import check_table_name
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.tables.schedules import After, ScheduleRecord

_WRITTEN = re.compile(r"\s*([a-z_]+)\s*>\s*([0-9][0-9_]{0,17})\s*")


_AFTER = re.compile(
    r"\s*watermark\(\s*([^,()\s]+)\s*,\s*(\S.*?)\s*,\s*([^,\s][^,]*?)\s*\)\s*>=\s*(\S.*?)\s*", re.DOTALL
)


@dataclass(frozen=True)
class Condition:
    """What stands in the record of a schedule: a measure with its limit, or a watermark."""

    measure: str = ""
    above: int = 0
    after: After | None = None

    def __str__(self) -> str:
        if (after := self.after) is not None:
            return f"watermark({after.table}, {after.source}, {after.partition}) >= {after.value}"
        return f"{self.measure} > {self.above}" if self.measure else ""


def parse_condition(text: str) -> Condition:
    """Parse the text of ``--when``; raises :class:`~distop.errors.InvalidArgument`."""
    if (match := _AFTER.fullmatch(text)) is not None:
        table = check_table_name(match[1], "when")
        return Condition(after=After(table=table, source=match[2], partition=match[3], value=match[4]))
    match = _WRITTEN.fullmatch(text)
    if match is None or match[1] not in MEASURES:
        raise InvalidArgument(
            f"{text[:100]!r} is not a condition",
            hint=f"such as 'small_files > 200'; measures: {', '.join(sorted(MEASURES))}; or "
            "'watermark(TABLE, SOURCE, PARTITION) >= VALUE', as distop watermark list TABLE shows them",
            details={"field": "when"},
        )
    return Condition(measure=match[1], above=int(match[2]))


def condition_of(record: ScheduleRecord) -> Condition:
    """The condition of a schedule; of one without: an empty one."""
    return Condition(record.measure, record.above, record.after)


def after_at(after: After, tick: float, timezone: str) -> After:
    """A condition with its templates rendered for a tick; raises :class:`~distop.errors.InvalidArgument`."""
    parts = rendered([after.source, after.partition, after.value], tick, timezone, "when")
    return After(table=after.table, source=parts[0], partition=parts[1], value=parts[2])


def is_reached(after: After, current: str | None) -> bool:
    """Whether a watermark is at the value of a condition, or beyond it, in the order of watermarks."""
    return current is not None and not is_after(after.value, current)


def state_of(current: str) -> int:
    """A number for a watermark's value: a record has no room for long ones."""
    return int.from_bytes(sha256(current.encode()).digest()[:6], "big")


def check_measured(table: TableRecord) -> None:
    """Raise :class:`~distop.errors.PreconditionFailed` for a table without measures."""
    if table.format != "iceberg":
        raise PreconditionFailed(
            f"table {table.name!r} has format {table.format}: conditions need the metadata of Iceberg tables",
            hint="give a cron expression instead",
            details={"field": "when", "table": table.name},
        )


def measured(table: TableRecord, head: Head) -> dict[str, int]:
    """All measures of a published state. Reads its metadata file."""
    from distop.lake.layout.model import load_metadata

    metadata = load_metadata(head.metadata_location, storage=storage_of(table))
    snapshot = metadata.current_snapshot()
    summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    return {name: measure(metadata, summary) for name, measure in MEASURES.items()}
