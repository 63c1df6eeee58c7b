"""Cheap measures of a table, and conditions on them.

All of them are in the metadata file of the published snapshot: nothing is listed, and no manifest is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from distop.commit.files.storage import storage_of
from distop.errors import InvalidArgument, PreconditionFailed
from distop.metastore.records.table import Head, TableRecord

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_WRITTEN = re.compile(r"\s*([a-z_]+)\s*>\s*([0-9][0-9_]{0,17})\s*")


def parse_condition(text: str) -> tuple[str, int]:
    """The measure and its limit; raises
    :class:`~distop.errors.InvalidArgument`."""
    found = _WRITTEN.fullmatch(text)
    if found is None or found[1] not in MEASURES:
        raise InvalidArgument(
            f"{text[:100]!r} is not a condition",
            hint=f"such as 'small_files > 200'; measures: {', '.join(sorted(MEASURES))}",
            details={"field": "when"},
        )
    return found[1], int(found[2])


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
    from distop.commit.layout.model import load_metadata

    metadata = load_metadata(head.metadata_location, storage=storage_of(table))
    snapshot = metadata.current_snapshot()
    summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    return {name: measure(metadata, summary) for name, measure in MEASURES.items()}


def _small_files(metadata: TableMetadata, summary: Mapping[str, Any]) -> int:
    """Data files in excess of the number that the target size of writers would give."""
    from pyiceberg.table import TableProperties

    name, default = (
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
    )
    size = max(1, _number(metadata.properties, name) or default)
    return max(0, _number(summary, "total-data-files") - -(-_number(summary, "total-files-size") // size))


def _number(summary: Mapping[str, Any], name: str) -> int:
    text = str(summary.get(name, ""))
    return int(text) if text.isascii() and text.isdecimal() else 0


MEASURES: dict[str, Callable[[TableMetadata, Mapping[str, Any]], int]] = {
    "small_files": _small_files,
    "data_files": lambda _, summary: _number(summary, "total-data-files"),
    "delete_files": lambda _, summary: _number(summary, "total-delete-files"),
    "snapshots": lambda metadata, _: len(metadata.snapshots),
}
"""The measures by their names in conditions."""
