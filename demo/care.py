"""Second act: what a table needs once it is full: rows validated, a column indexed, small files compacted."""

from __future__ import annotations

from typing import Any

from distop.cli.demo.stage import TABLE, Stage
from distop.client import Operation
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head, IndexRecord
from distop.spark_jobs.tables import TableSnapshot, open_snapshot

RULES = [
    "distance > 0",
    {"not_null": ["carrier", "time_hour"]},
    {"unique": ["time_hour", "carrier", "flight"]},
    {"not_null": "dep_time", "name": "departed"},
]
"""All hold but the last one: some flights were cancelled."""


def care(stage: Stage, tailnum: str) -> None:
    """Validate the table, index it, look up one aeroplane, compact."""
    facts = run(stage, "validate", {"rules": RULES, "report_only": True}).facts
    broken = [f"{rule['rule']} by {rule['rows']:,.0f}" for rule in facts["violations"]]
    checked, rules = int(facts["checkedRows"]), int(facts["rules"])
    stage.say(f"validate: {checked:,} rows keep {rules - len(broken)} of {rules} rules; broken: {broken[0]}")

    run(stage, "build_index", {"column": "tailnum"})
    snapshot = _present(stage)
    where = f"tailnum == '{tailnum}'"
    files = snapshot.plan_files(where)
    rows = sum(batch.num_rows for batch in snapshot.batches(files, where=where))
    all_files = len(snapshot.plan_files(where, use_indexes=False))
    stage.say(
        f"build_index: {tailnum} flew {rows} times; of {all_files} files {len(files)} are opened to see that"
    )

    facts = run(stage, "compact", {"min_files": 2, "sort_by": ["time_hour"]}).facts
    stage.say(f"compact: {facts['filesBefore']:.0f} small files became {facts['filesAfter']:.0f}")


def run(stage: Stage, type: str, argument: dict[str, Any]) -> Operation:
    """An operation from its start to its end."""
    operation = stage.client.start(TABLE, type, argument)
    ended = operation.wait(timeout_s=120)
    ended.raise_for_outcome()
    return ended


def _present(stage: Stage) -> TableSnapshot:
    """The table as it is now, with its indexes."""
    with SyncEtcd(stage.config) as etcd:
        keys = etcd.keyspace.table(TABLE)
        head = decode(etcd.get(keys.head).value, Head, keys.head)
        indexes = [decode(kv.value, IndexRecord, kv.key) for kv in etcd.scan(keys.index_prefix).kvs]
    return open_snapshot(head.metadata_location, indexes=indexes)
