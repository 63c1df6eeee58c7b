"""Cheap measures of an Iceberg table: all are in its metadata file, for each of its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


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
