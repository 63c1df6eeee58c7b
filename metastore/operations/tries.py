"""Failed attempts at a job: counted in etcd, so that the count survives the process that made
them.

Only failures that are followed by another attempt are written, so a successful job costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from distop.errors import CorruptRecord, shortened
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.txn import Get, KeyValue, Put, Txn, TxnResult, absent, unchanged
from distop.metastore.etcd.update import PATIENCE_S, update
from distop.metastore.operations.runs import Run
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.record import Record, decode, encode

if TYPE_CHECKING:
    from distop.metastore.etcd.client import EtcdClient

log = logging.getLogger(__name__)

MAX_ERROR_CHARACTERS = 300
_READ_AT_ONCE = 60


class TriesRecord(Record, kw_only=True):
    """``<root>.<partition>.tries``: attempts at a job that failed and were not the last."""

    tries: int
    attempt: str
    """The one that was counted last; a repetition is recognised by it."""
    error: str = ""
    """``CODE: message`` of that one."""


async def count_try(client: EtcdClient, run: Run, partition: str, attempt: str, error: str) -> None:
    """IF the run is held AND the job has no result AND the count is as read THEN one more.

    For a run that is over, or a job that is done: nothing happens.
    """
    keys = run.keys
    key, job = keys.tries(partition), keys.job_state(partition)

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        standing = read.one(3, key)
        if read.got(2) or run.why_over(read.one(0, keys.state), read.one(1, keys.runner)):
            return None, None
        before = _read(standing)
        if before is not None and before.attempt == attempt:
            return None, None  # counted, by a copy whose reply was lost
        tries = (before.tries if before else 0) + 1
        count = TriesRecord(tries=tries, attempt=attempt, error=shortened(error, MAX_ERROR_CHARACTERS))
        reached("try.before")
        return Txn((*run.held(), absent(job), unchanged(standing)), (Put(key, encode(count)),)), None

    reads = [Get(one) for one in (keys.state, keys.runner, job, key)]
    what, replied = f"job {partition!r} of {keys.operation}", lambda: reached("try.after")
    await update(client, reads, decide, what=what, patience_s=PATIENCE_S, replied=replied)


class Tried(msgspec.Struct, frozen=True, array_like=True):
    """The result of the attempts at a job so far."""

    tries: int
    error: str = ""


async def read_tries(client: EtcdClient, keys: OperationKeys, kvs: Iterable[KeyValue]) -> dict[str, Tried]:
    """The counts among the keys of an operation, by partition; without any, nothing is read."""
    found = (keys.partition_of(kv.key) for kv in kvs)
    names = [job[0] for job in found if job is not None and job[1] == "tries"]
    tried = {}
    for start in range(0, len(names), _READ_AT_ONCE):
        some = names[start : start + _READ_AT_ONCE]
        result = await client.read_at_once([Get(keys.tries(name)) for name in some])
        for index, name in enumerate(some):
            record = _read(result.one(index, keys.tries(name)))
            if record is not None:
                tried[name] = Tried(record.tries, record.error)
    return tried


def _read(kv: KeyValue) -> TriesRecord | None:
    """A count; ``None`` if there is none. One that cannot be read is counted anew: it must not keep the job
    from running."""
    try:
        return decode(kv.value, TriesRecord, kv.key) if kv.exists else None
    except CorruptRecord as error:
        log.warning("tries_unreadable", extra={"error": str(error)})
        return None
