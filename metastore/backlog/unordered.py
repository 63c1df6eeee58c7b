"""Unordered batches: each is applied as soon as possible, concurrently with others (checklist B13).

``<table>.unordered.<state>.<batch>`` is one such batch: ``waiting`` to be applied, ``running``, ``failed``,
which needs a decision, or ``done``. One transaction moves it to the next state: the one that starts its
operation, or finishes it. So it is applied once, and failures are counted and not lost. Batches that have
failed for good are also named in ``<table>.ordering``, where users of the table see
them.
"""

from __future__ import annotations

import msgspec

from distop.metastore.backlog.batches import FAILED, BatchRecord, Block, OrderingRecord, ordering_of
from distop.metastore.etcd.txn import Delete, KeyValue, Put, Txn, unchanged
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.record import encode


def without_failed(ordering: OrderingRecord, batch: str) -> OrderingRecord:
    """This batch no longer needs a decision."""
    left = [block for block in ordering.failed if block.batch != batch]
    return msgspec.structs.replace(ordering, failed=left)


def without_block(ordering: OrderingRecord, *batches: str) -> OrderingRecord:
    """None of these blocks the table."""
    blocks = ordering.blocked is not None and ordering.blocked.batch in batches
    return msgspec.structs.replace(ordering, blocked=None) if blocks else ordering


def gave_up(
    keys: TableKeys, ordering_kv: KeyValue, at: KeyValue, batch: str, record: BatchRecord, block: Block
) -> Txn:
    """The batch with this key has failed for good: it needs a decision."""
    ordering = without_failed(ordering_of(ordering_kv), batch)
    changed = msgspec.structs.replace(ordering, failed=[*ordering.failed, block])
    ops = (
        Delete(at.key),
        Put(keys.unordered(FAILED, batch), encode(record)),
        Put(keys.ordering, encode(changed)),
    )
    return Txn((unchanged(ordering_kv), unchanged(at)), ops)
