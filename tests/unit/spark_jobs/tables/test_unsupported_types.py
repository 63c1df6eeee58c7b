"""Tables with columns of types that distop does not read: newer formats have more of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from distop.coordinator.schedules.due import measured
from distop.coordinator.views.contents import content_of, snapshots_of
from distop.errors import CorruptRecord, UnsupportedType
from distop.lake.cleanup.inspection import view_table
from distop.lake.cleanup.purge import check_removal
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.layout.model import load_metadata
from distop.metastore.records.table import TableRecord
from distop.operations.api import DistributedOperation
from distop.spark_jobs.compact.operation import Compact
from distop.spark_jobs.delete.operation import Delete
from distop.spark_jobs.ingest.operation import Ingest
from distop.spark_jobs.maintenance.snapshots import ExpireSnapshots, RemoveOrphans, Rollback
from distop.spark_jobs.maintenance.validate import Validate
from distop.spark_jobs.tables import open_snapshot
from support.refusals import refused
from support.tables.formats import as_format_3
from support.tables.indexing import Indexing
from support.tables.maintaining import Run
from support.tables.publishing import Table, alter, local, new_table, rows

KINDS: list[tuple[Any, str, str]] = [
    ("variant", "x", "variant"),
    ("timestamp_ns", "x", "timestamp_ns"),
    ("timestamptz_ns", "x", "timestamptz_ns"),
    ("geometry(srid:3857)", "x", "geometry"),
    ("geography", "x", "geography"),
    ("unknown", "x", "unknown"),
    (
        {"type": "list", "element-id": 91, "element": "timestamp_ns", "element-required": False},
        "x.element",
        "timestamp_ns",
    ),
    (
        {"type": "struct", "fields": [{"id": 91, "name": "y", "type": "variant", "required": False}]},
        "x.y",
        "variant",
    ),
]
"""The type of a column; the column, or what is within it, that is refused, and its type."""


def newer_table(folder: Path, kind: Any, **properties: str) -> Table:
    """A table of some rows, with a column ``x`` of a type that no file has."""
    table = new_table(folder, **properties)
    table.publish(table.staged([rows(0, 3)]))
    table.replace(as_format_3(table, {"name": "x", "type": kind}))
    return table


def record_of(table: Table) -> TableRecord:
    return TableRecord(name=table.name, location=table.location)


def operations_on(table: Table, source: Path) -> Iterator[Callable[[], object]]:
    """The start of each operation that reads or changes a table."""
    source.write_text("id,kind\n1,k1\n")
    started: list[tuple[DistributedOperation, dict[str, Any]]] = [
        (Ingest(), {"paths": [str(source)]}),
        (Ingest(), {"paths": [str(source)], "mode": "overwrite"}),
        (Ingest(), {"paths": [str(source)], "mode": "merge", "keys": ["id"]}),
        (Compact(), {}),
        (Delete(), {"where": "id = 1"}),
        (Validate(), {"rules": ["id > 0"]}),
        (Rollback(), {"snapshot": str(table.record().snapshot_id)}),
        (ExpireSnapshots(), {}),
        (RemoveOrphans(), {}),
    ]
    for operation, argument in started:
        yield partial(Run.of, table, operation, **argument)
    yield partial(Indexing(table).start, "id")


def looks_at(table: Table) -> Iterator[Callable[[], object]]:
    """The ways to look at a table."""
    head, record = table.record(), record_of(table)
    location = head.metadata_location
    for look in (open_snapshot, load_metadata, TableFile.read, partial(view_table, deep=True)):
        yield partial(look, location)
    for view in (content_of, snapshots_of, measured, check_removal):
        yield partial(view, record, head)
    yield partial(alter, table, {"change": "drop", "column": "kind"})


@pytest.mark.parametrize(("kind", "column", "named"), KINDS, ids=str)
def test_a_table_with_such_a_column_is_refused_by_name(
    tmp_path: Path, kind: Any, column: str, named: str
) -> None:
    """V5: the table, the column and its type, whatever is asked of it."""
    table = newer_table(tmp_path, kind)
    for way in (*operations_on(table, tmp_path / "1.csv"), *looks_at(table)):
        with pytest.raises(UnsupportedType) as caught:
            way()
        found = caught.value
        assert f"the table at {table.location} has column {column!r} of the type {named}" in found.message
        assert (found.code, found.details["column"]) == ("UNSUPPORTED_TYPE", column)


def test_a_table_that_had_such_a_column_is_read_without_it(tmp_path: Path) -> None:
    """V5: its snapshots of that time are not."""
    table = newer_table(tmp_path, "timestamp_ns")
    written = json.loads(local(table.record().metadata_location).read_text())
    present = {**written["schemas"][0], "schema-id": 1, "fields": written["schemas"][0]["fields"][:2]}
    written |= {"schemas": [*written["schemas"], present], "current-schema-id": 1}
    dropped = local(table.record().metadata_location).with_name("00010-dropped.metadata.json")
    dropped.write_text(json.dumps(written))
    snapshot = open_snapshot(f"file://{dropped}")
    assert sum(batch.num_rows for batch in snapshot.batches(snapshot.plan_files("id > 0"))) == 3
    with refused(error=UnsupportedType, column="x", type="timestamp_ns"):
        open_snapshot(f"file://{dropped}", snapshot_id=table.record().snapshot_id)


@pytest.mark.parametrize(
    "schema",
    [7, {"fields": 7}, {"fields": [7, {"name": 7}]}, {"fields": [{"name": "a", "type": {"element": {}}}]}],
)
def test_metadata_that_is_none_is_still_called_so(tmp_path: Path, schema: Any) -> None:
    table = newer_table(tmp_path, "variant")
    path = local(table.record().metadata_location)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schemas": [schema]}))
    with pytest.raises(CorruptRecord, match="is not table metadata") as caught:
        load_metadata(table.record().metadata_location)
    assert caught.value.code == "CORRUPT_RECORD"
