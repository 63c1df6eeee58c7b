"""Tables that are partitioned by a column of any type, also in Hive's layout: programs add such files to a
table as they are, and the column has its values from the partition alone."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import TableProperties
from pyiceberg.typedef import Record

from distop.lake.layout.model import Layout
from distop.lake.layout.partitioning import columns_in_files
from distop.lake.layout.schemas import parse_schema
from distop.lake.writing.file_lists import IcebergFileList
from distop.lake.writing.writer import StagedWriter
from distop.metastore.records.operation import JobRecord
from distop.operations.job import staging_folder, staging_stem
from support.tables.publishing import Table

VALUES: dict[str, tuple[Any, Any]] = {
    "boolean": (True, False),
    "int": (-1, 2**31 - 1),
    "long": (-1, 2**62),
    "float": (0.5, -0.25),
    "double": (0.1, -1 / 3),
    "date": (date(1, 1, 1), date(9999, 12, 31)),
    "time": (time(0, 0, 0, 1), time(23, 59, 59, 999_999)),
    "timestamp": (
        datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001 - a timestamp without zone
        datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    ),
    "timestamptz": (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)),
    "string": ("", "\U0010ffff/=%"),
    "uuid": (UUID(int=1), UUID(int=2**128 - 1)),
    "fixed[3]": (b"abc", b"\x00\xff\x80"),
    "binary": (b"", b"\x00\xff"),
    "decimal(38, 2)": (Decimal("-0.01"), Decimal("9" * 36 + ".99")),
}
"""Two values of each type."""


def by_partition(folder: Path, kind: str) -> tuple[Table, dict[int, Any]]:
    """A table without rows by ``p``, a column of a type; and the values of the ids 0 to 3: the first, the
    second, NULL, the first."""
    layout = Layout.create(parse_schema({"id": "long", "p": kind}), ["p"])
    first, second = VALUES[kind]
    return Table("t", f"file://{folder}/t", layout), {0: first, 1: second, 2: None, 3: first}


def literal_of(value: Any) -> str:
    """A value in a filter."""
    if isinstance(value, bytes):
        return f"'{''.join(f'{chr(92)}x{byte:02x}' for byte in value)}'"
    if isinstance(value, bool | int | float | Decimal):
        return str(value).lower()
    return f"'{value.isoformat() if isinstance(value, date | time) else value}'"


def rows_of(layout: Layout, values: Mapping[int, Any]) -> pa.Table:
    """Rows of these ids, with these values of ``p``."""
    plain = [value.bytes if isinstance(value, UUID) else value for value in values.values()]
    wanted = layout.arrow_schema.field("p").type
    stored = pa.array(plain, wanted.storage_type if isinstance(wanted, pa.ExtensionType) else wanted)
    return pa.table({"id": list(values), "p": stored.cast(wanted)}, schema=layout.arrow_schema)


def append_values(table: Table, values: Mapping[int, Any], *, hive: bool) -> None:
    """Publish such rows; ``hive``: the files do not have the column."""
    rows = rows_of(table.layout, values)
    if hive:
        append_as_hive(table, rows)
    else:
        table.publish(table.staged(rows.to_batches()))


class HiveFileList(IcebergFileList):
    """Files without the columns of the partition."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        kept = columns_in_files(layout.schema, layout.spec)
        self._kept = pa.schema([layout.arrow_schema.field(name) for name in kept])

    @property
    def schema(self) -> pa.Schema:
        return self._kept


def append_as_hive(table: Table, rows: pa.Table) -> None:
    """Publish rows in files without the columns of the partition."""
    operation = table.start()

    def path_for(suffix: str, within: str) -> str:
        return f"{staging_folder(operation.arg, within)}/{staging_stem('0', '7-0')}{suffix}"

    with StagedWriter(table.layout, path_for, files=HiveFileList(table.layout), inline=True) as writer:
        writer.write(rows)
        operation.jobs["0"] = JobRecord(state="success", attempt="7-0", result=writer.finish())
    table.publish(operation)


def add_files(table: Table, files: Mapping[str, Any], *, hive: bool) -> None:
    """Add files that have no field ids to a table by one column, each with the value of its partition.

    Parameters
    ----------
    hive:
        As Spark's procedure ``add_files`` does, by the names of folders; otherwise as pyiceberg does, by the
        column in the files.
    """
    transaction = table.iceberg().transaction()
    if not hive:
        transaction.add_files(list(files))
    else:
        mapping = table.iceberg().schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        with transaction._append_snapshot_producer({}) as appended:
            for path, value in files.items():
                file = parquet_file_to_data_file(table.iceberg().io, transaction.table_metadata, path)
                file[_PARTITION] = Record(value)
                appended.append_data_file(file)
    snapshot = transaction.table_metadata.current_snapshot_id
    table.replace(table.draft().write(*transaction._updates), snapshot)


_PARTITION = 3
"""The place of a data file's partition in its record."""
