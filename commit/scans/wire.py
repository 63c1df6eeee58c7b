"""Planned files as Iceberg's REST protocol has them (``ScanTasks`` of its OpenAPI document).

Least and greatest values are left out, also for columns whose statistics are asked for: the document has them
as values of the columns, Iceberg's Java library writes and reads them as hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pyiceberg.conversions import to_json
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import KeyDefaultDict
from pyiceberg.types import IcebergType, PrimitiveType, UnknownType

from distop.commit.iceberg.deletes import only_file_of
from distop.commit.scans.pages import Task

_CONTENTS = {
    DataFileContent.DATA: "data",
    DataFileContent.POSITION_DELETES: "position-deletes",
    DataFileContent.EQUALITY_DELETES: "equality-deletes",
}
_COUNTS = {
    "column-sizes": "column_sizes",
    "value-counts": "value_counts",
    "null-value-counts": "null_value_counts",
    "nan-value-counts": "nan_value_counts",
}


class Wire:
    """For answers to one scan.

    Parameters
    ----------
    metadata:
        Of the table, for the types of partitions.
    residual:
        The filter as it was asked for, for files of which not all rows are wanted.
    stats:
        Ids of the columns whose statistics are asked for.
    """

    def __init__(self, metadata: TableMetadata, residual: Any, stats: Collection[int] = ()) -> None:
        self._specs, self._residual, self._stats = metadata.specs(), residual, frozenset(stats)
        self._schemas = (metadata.schema(), *metadata.schemas)
        self._kinds = KeyDefaultDict(self._kinds_of)

    def tasks(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """``delete-files`` and ``file-scan-tasks``."""
        deletes = {file.file_path: file for task in tasks for file in task.deletes}
        places = {path: place for place, path in enumerate(deletes)}
        found: dict[str, Any] = {"file-scan-tasks": [self._task(task, places) for task in tasks]}
        if deletes:
            found["delete-files"] = [self._file(file) for file in deletes.values()]
        return found

    def _task(self, task: Task, places: dict[str, int]) -> dict[str, Any]:
        message: dict[str, Any] = {"data-file": self._file(task.file)}
        if task.deletes:
            message["delete-file-references"] = sorted({places[file.file_path] for file in task.deletes})
        message["residual-filter"] = True if task.all_rows else self._residual
        return message

    def _file(self, file: DataFile) -> dict[str, Any]:
        message: dict[str, Any] = {
            "spec-id": file.spec_id,
            "content": _CONTENTS[file.content],
            "file-path": file.file_path,
            "file-format": file.file_format.value.lower(),
            "partition": self._partition(file),
            "file-size-in-bytes": file.file_size_in_bytes,
            "record-count": file.record_count,
        }
        message |= {
            name: found for name, attribute in _COUNTS.items() if (found := self._counts(file, attribute))
        }
        if file.key_metadata is not None:
            message["key-metadata"] = file.key_metadata.hex()
        if file.split_offsets:
            message["split-offsets"] = file.split_offsets
        if file.equality_ids:
            message["equality-ids"] = file.equality_ids
        if file.sort_order_id is not None:
            message["sort-order-id"] = file.sort_order_id
        if (only := only_file_of(file)) is not None:
            message["referenced-data-file"] = only
        return message

    def _counts(self, file: DataFile, attribute: str) -> dict[str, list[int]] | None:
        if file.content != DataFileContent.DATA or not self._stats:
            return None
        kept = {id: count for id, count in (getattr(file, attribute) or {}).items() if id in self._stats}
        return {"keys": list(kept), "values": list(kept.values())} if kept else None

    def _partition(self, file: DataFile) -> list[Any]:
        return [_json(kind, file.partition[place]) for place, kind in enumerate(self._kinds[file.spec_id])]

    def _kinds_of(self, spec_id: int) -> list[IcebergType]:
        """The types of a partition's values, also of columns that the table does not have any more."""
        kinds = []
        for field in self._specs[spec_id].fields:
            with_it = (one for one in self._schemas if field.source_id in one.field_ids)
            schema = next(with_it, None)
            column = UnknownType() if schema is None else schema.find_type(field.source_id)
            kinds.append(field.transform.result_type(column))
        return kinds


def _json(kind: IcebergType, value: Any) -> Any:
    if value is None or not isinstance(kind, PrimitiveType) or isinstance(kind, UnknownType):
        return value
    text = to_json(kind, value)
    return str(text) if text != text else text  # JSON has no NaN
