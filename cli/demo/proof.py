"""Is every row there exactly once? Looked at from outside: with pyiceberg, etcd, and a directory listing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from rich.table import Table

from distop.catalog import EtcdCatalog
from distop.client import Client, OperationState
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.sync import SyncEtcd

_AT_REST = re.compile(
    rb"_installation|_policy|(_coordinators|_executors|_places|_locations|_tables|_audit|_namespaces|_answers)\..+"
    rb"|[^.]+\.(table|head|watermarks|coordinator|ordering)"
    rb"|[^.]+\.(history|series|request|requestExpiry|auditTrail|applied|unordered\.done|index)\..+"
    rb"|[^.]+\.[^.]+\.nextInstanceId"
)
"""The keys that may stand when nothing runs."""

Check = tuple[str, bool, str]
"""What was looked at, whether it is as it should be, and what was found."""


def checks(
    config: EtcdConfig,
    client: Client,
    catalog: EtcdCatalog,
    table: str,
    expected: Counter[str],
    *,
    key: tuple[str, ...],
    day: tuple[str, ...],
) -> Iterator[Check]:
    """Everything a demo promises, one line each.

    Parameters
    ----------
    expected:
        How many rows each day has, by the name of its batch.
    key:
        The columns that tell one row from every other.
    day:
        The columns that make the name of the day: a date, or year, month and day.
    """
    iceberg = catalog.load_table(f"default.{table}")
    rows = iceberg.scan(selected_fields=(*day, *key)).to_arrow()
    yield "rows in the table", rows.num_rows == expected.total(), f"{rows.num_rows:,} of {expected.total():,}"
    different = rows.group_by(list(key)).aggregate([]).num_rows
    doubled = rows.num_rows - different
    yield "rows that stand there twice", doubled == 0, f"{doubled:,} (by {', '.join(key)})"
    counted = rows.group_by(list(day)).aggregate([([], "count_all")]).to_pylist()
    counts = Counter({"-".join(f"{row[part]!s:0>2}" for part in day): row["count_all"] for row in counted})
    wrong = [day for day in sorted(expected | counts) if expected[day] != counts[day]]
    yield f"days of {len(expected)} that differ from the source", not wrong, _some(wrong)

    marks = client.table(table).watermarks()
    ingested = sorted(partition for source in marks.values() for partition in source)
    yield "watermarks", ingested == sorted(expected), f"{len(ingested)} partitions of {len(marks)} source"

    with SyncEtcd(config) as etcd:
        prefix = etcd.keyspace.prefix
        kvs = etcd.scan(prefix, keys_only=True).kvs
        applied = etcd.keyspace.table(table).applied_prefix
        order = sorted((kv for kv in kvs if kv.key.startswith(applied)), key=lambda kv: kv.mod_revision)
        days = [kv.key[len(applied) :].decode() for kv in order]
    yield "batches, in the order they were applied", days == sorted(expected), f"{len(days)}, by name"
    keys = [kv.key[len(prefix) :] for kv in kvs]
    left = [key.decode() for key in keys if not _AT_REST.fullmatch(key)]
    yield "keys of operations left in etcd", not left, _some(left)

    known = {_path(path) for path in iceberg.inspect.all_data_files()["file_path"].to_pylist()}
    on_disk = {path for path in (_path(iceberg.location()) / "data").rglob("*") if path.is_file()}
    strange = sorted(str(path) for path in on_disk - known)
    yield "data files no snapshot knows", not strange, _some(strange)
    missing = sorted(str(path) for path in known - on_disk)
    yield f"data files missing of {len(known)}", not missing, _some(missing)
    succeeded = client.operations(table, states=[OperationState.SUCCEEDED])
    ended = [operation for operation in succeeded if operation.type in ("ingest", "compact")]
    # The line of a series, the batches here, counts those before it.
    operations = sum(operation.facts.get("series", {}).get("operations", 1) for operation in ended)
    snapshots = len(iceberg.snapshots())
    yield "snapshots, one an operation", snapshots == operations, str(snapshots)


def verdict(results: Sequence[Check]) -> Table:
    """What was looked at, as people read it."""
    table = Table("what", "", "found", box=None)
    for label, holds, value in results:
        table.add_row(label, "[green]ok[/]" if holds else "[red]WRONG[/]", value)
    return table


def _some(things: list[str]) -> str:
    return ", ".join([str(len(things)), *things[:3]])


def _path(location: str) -> Path:
    return Path(url2pathname(urlsplit(location).path))
