"""Marks jobs as an executor would: only while the operation runs, and only the first mark counts."""

import asyncio
from collections.abc import Iterable, Sequence

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Put, Txn, absent, equals
from distop.metastore.operations.jobs import failure_record, success_record
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import RUNNING

_GROUP = 100


async def mark(
    client: EtcdClient,
    operation: OperationId,
    partition: str,
    *,
    error: str = "",
    code: str = "JOB_FAILED",
    attempt: str = "a1",
) -> bool:
    """Mark one job successful, or failed with ``error``; whether this mark is the one that counts."""
    keys = client.keyspace.operation(operation)
    job = keys.job_state(partition)
    value = failure_record(attempt, code, error, 1.0) if error else success_record(attempt, {}, 1.0)
    return (await client.txn(Txn((equals(keys.state, RUNNING), absent(job)), (Put(job, value),)))).succeeded


async def mark_all(client: EtcdClient, operation: OperationId, partitions: Iterable[str]) -> None:
    """Mark many jobs successful, in groups."""
    names = list(partitions)
    groups = [names[start : start + _GROUP] for start in range(0, len(names), _GROUP)]
    await asyncio.gather(*(_mark_group(client, operation, group) for group in groups))


async def _mark_group(client: EtcdClient, operation: OperationId, group: Sequence[str]) -> None:
    keys = client.keyspace.operation(operation)
    value = success_record("a1", {}, 1.0)
    puts = tuple(Put(keys.job_state(name), value) for name in group)
    assert (await client.txn(Txn((equals(keys.state, RUNNING),), puts))).succeeded
