"""Is every row there exactly once? Looked at from outside: with pyiceberg, etcd, and a directory listing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from distop.client import Client
from distop.commit.catalog import EtcdCatalog
from distop.metastore.config import EtcdConfig
from distop.metastore.sync import SyncEtcd

_AT_REST = re.compile(
    rb"(_coordinators|_executors|_audit|_namespaces)\..+"
    rb"|[^.]+\.(table|head|watermarks|coordinator)"
    rb"|[^.]+\.(history|request|auditTrail)\..+"
    rb"|[^.]+\.[^.]+\.nextInstanceId"
)
"""The keys that may stand when nothing runs."""

_KEY = ("time_hour", "carrier", "flight")
"""What tells one flight of the data from every other."""

Check = tuple[str, bool, str]
"""What was looked at, whether it is as it should be, and what was found."""


def checks(config: EtcdConfig, client: Client, table: str, expected: Counter[str]) -> Iterator[Check]:
    """Everything the demo promises, one line each."""
    properties = {"etcd.endpoints": ",".join(config.endpoints), "etcd.prefix": config.prefix}
    iceberg = EtcdCatalog("demo", **properties).load_table(f"default.{table}")
    rows = iceberg.scan(selected_fields=("year", "month", *_KEY)).to_arrow()
    yield "rows in the table", rows.num_rows == expected.total(), f"{rows.num_rows:,} of {expected.total():,}"
    different = rows.group_by(list(_KEY)).aggregate([]).num_rows
    doubled = rows.num_rows - different
    yield "rows that stand there twice", doubled == 0, f"{doubled:,} (by {', '.join(_KEY)})"
    counted = rows.group_by(["year", "month"]).aggregate([([], "count_all")]).to_pylist()
    found = Counter({f"{row['year']:04}-{row['month']:02}": row["count_all"] for row in counted})
    wrong = [month for month in sorted(expected | found) if expected[month] != found[month]]
    yield f"months of {len(expected)} that differ from the source", not wrong, _some(wrong)

    marks = client.watermarks(table)
    ingested = sorted(partition for source in marks.values() for partition in source)
    yield "watermarks", ingested == sorted(expected), f"{len(ingested)} partitions of {len(marks)} source"

    with SyncEtcd(config) as etcd:
        prefix = etcd.keyspace.prefix
        keys = [kv.key[len(prefix) :] for kv in etcd.scan(prefix, keys_only=True).kvs]
    left = [key.decode() for key in keys if not _AT_REST.fullmatch(key)]
    yield "keys of operations left in etcd", not left, _some(left)

    known = {_path(task.file.file_path) for task in iceberg.scan().plan_files()}
    on_disk = {path for path in (_path(iceberg.location()) / "data").rglob("*") if path.is_file()}
    strange = sorted(str(path) for path in on_disk - known)
    yield "data files no snapshot knows", not strange, _some(strange)
    missing = sorted(str(path) for path in known - on_disk)
    yield f"data files missing of {len(known)}", not missing, _some(missing)
    snapshots = len(iceberg.snapshots())
    yield "snapshots, one an operation", snapshots == len(expected), str(snapshots)


def _some(things: list[str]) -> str:
    return ", ".join([str(len(things)), *things[:3]])


def _path(location: str) -> Path:
    return Path(url2pathname(urlsplit(location).path))
