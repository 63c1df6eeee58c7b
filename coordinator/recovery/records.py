"""Restores etcd's records of one operation that had published before etcd was restored.

Its history line, its request, its batches, the next instance number: written in one transaction, and the
history line proves it. If that exists there is nothing to do.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from distop.commit.contract import BRANCH
from distop.coordinator.backlog.applying import share_of
from distop.errors import Busy, LeadershipLost
from distop.lake.iceberg.ahead import AheadSnapshot
from distop.metastore.backlog.batches import (
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    AppliedRecord,
    BatchRecord,
    ordering_of,
    without_block,
    without_failed,
)
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import (
    Compare,
    DeleteRange,
    Get,
    KeyValue,
    Op,
    Put,
    Txn,
    TxnResult,
    unchanged,
)
from distop.metastore.etcd.update import settle, update
from distop.metastore.members.election import Epoch
from distop.metastore.operations.ending import Finished, FinishParts, finish, finish_txn
from distop.metastore.operations.starting import done_before
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import COMMITTING, SUCCESS, HistoryRecord, OperationArg, RequestNote
from distop.metastore.records.record import decode, encode

RACES = 10
"""Attempts at the end of an operation while another process changes its table: none should."""


async def publish_again(
    client: EtcdClient, keys: TableKeys, epoch: Epoch, snapshot: AheadSnapshot, now: float
) -> bool:
    """Make sure that etcd knows a publication; return whether it did not. Idempotent.

    Raises :class:`~distop.errors.LeadershipLost` when another process leads the table.
    """
    # The table may have had another name then.
    operation = replace(OperationId.parse(snapshot.operation), table=keys.name)
    op = keys.operation(operation)
    read = await client.read_at_once(
        [Get(op.arg), Get(op.state), Get(keys.history(operation)), Get(keys.ordering)]
    )
    if read.got(2) and not _has_staged(read.single(3, keys.ordering), operation):
        return False
    if read.got(0) and read.got(1):
        arg = decode(read.single(0, op.arg).value, OperationArg, op.arg)
        if arg.uuid == snapshot.uuid:
            await _finish(client, keys, op, epoch, arg, snapshot, now)
            return True
    await _remember(client, keys, epoch, operation, snapshot)
    return True


async def _finish(
    client: EtcdClient,
    keys: TableKeys,
    op: OperationKeys,
    epoch: Epoch,
    arg: OperationArg,
    snapshot: AheadSnapshot,
    now: float,
) -> None:
    """End an operation that runs, according to etcd, as its leader did then."""
    # A cancellation, pause or decision around the backup came too late.
    held = (DeleteRange(op.waiting), DeleteRange(op.cancel), DeleteRange(op.resolve))
    await settle(client, Txn((epoch.held(),), (Put(op.state, COMMITTING), *held)))
    for _ in range(RACES):
        staged = ordering_of(await client.get(keys.ordering)).staged
        line = _history(snapshot, arg)
        if staged is not None and not snapshot.on_main:
            line.facts[BRANCH] = staged.branch
        share = await share_of(client, keys, arg, failure=None, now=now, result=line)
        plan = FinishParts(
            sealed=COMMITTING,
            run_ops=await client.get(keys.run_ops),
            history=line,
            arg=arg,
            publication=share,
            leave_keys=True,
        )
        txn = finish_txn(keys, op, epoch, plan)
        if (await finish(client, keys, op, epoch, txn))[0] is not Finished.MOVED:
            return
    raise Busy(f"{arg.id} could not be ended: another process changes its table")


def _history(snapshot: AheadSnapshot, arg: OperationArg | None) -> HistoryRecord:
    line = HistoryRecord(
        outcome=SUCCESS,
        uuid=snapshot.uuid,
        request_id=snapshot.request.id if snapshot.request else "",
        started_by=snapshot.started_by,
        finished_at=snapshot.at,
        facts={"rows": snapshot.rows, "snapshotId": str(snapshot.snapshot_id), "restored": True},
    )
    if arg is None:
        return line
    return msgspec.structs.replace(
        line,
        request_id=arg.request_id,
        started_at=arg.started_at,
        started_by=arg.started_by,
        partition_count=arg.partition_count,
        succeeded=arg.partition_count,
        argument=arg.asked,
        batches=arg.applies,
        retry_of=arg.retry_of,
        follows=arg.follows,
    )


async def _remember(
    client: EtcdClient, keys: TableKeys, epoch: Epoch, operation: OperationId, snapshot: AheadSnapshot
) -> None:
    line, number = keys.history(operation), keys.next_instance(operation.type)
    states = [keys.unordered(state, snapshot.unordered) for state in (WAITING, RUNNING, FAILED, DONE)]
    places = states if snapshot.unordered else []
    places += [key for batch in snapshot.batches for key in (keys.backlog(batch), keys.applied(batch))]
    wanted = [line, number, keys.ordering, epoch.key, *places]

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        current = {key: read.single(index, key) for index, key in enumerate(wanted)}
        if current[line].exists and not _has_staged(current[keys.ordering], operation):
            return None, None
        if current[epoch.key].create_revision != epoch.revision:
            raise LeadershipLost(f"table {keys.name!r} is led by another process: is a coordinator running?")
        ops: list[Op] = [] if current[line].exists else [Put(line, encode(_history(snapshot, None)))]
        following = max(int(current[number].value or b"1"), operation.instance + 1)
        ops.append(Put(number, str(following).encode()))
        if snapshot.request is not None:
            ops += done_before(keys, _asked(operation, snapshot))
        ordering = ordering_of(current[keys.ordering])
        changed = ordering
        # One that was only written to a branch, to be looked at, is written to another one.
        batches = snapshot.batches if snapshot.on_main or not ordering.before else ()
        if ordering.staged is not None and ordering.staged.batch in batches:
            changed = ordering.unstaged()
        for batch in batches:
            entry, applied = current[keys.backlog(batch)], current[keys.applied(batch)]
            if not applied.exists:
                changed = changed.done_with(batch)
                ops.append(Put(applied.key, _applied(operation, entry, snapshot)))
            ops.append(DeleteRange(entry.key))
        if snapshot.unordered:
            *open_ones, done = (current[key] for key in states)
            queued = next((kv for kv in open_ones if kv.exists), done)
            ops += [DeleteRange(kv.key) for kv in open_ones]
            if not done.exists:
                ops.append(Put(done.key, _applied(operation, queued, snapshot)))
            changed = without_failed(changed, snapshot.unordered)
        changed = without_block(changed, *batches)
        if batches or changed != ordering:
            ops += [Put(keys.ordering, encode(changed)), Put(keys.backlog_index, b"{}")]
        compares: tuple[Compare, ...] = (epoch.held(),)
        compares += tuple(unchanged(kv) for key, kv in current.items() if key != epoch.key)
        return Txn(compares, tuple(ops)), None

    reads = [Get(key) for key in wanted]
    await update(client, reads, decide, subject=f"table {keys.name!r}")


def _has_staged(ordering: KeyValue, operation: OperationId) -> bool:
    """Whether an operation had ended before the backup, and what it had staged was published after it."""
    staged = ordering_of(ordering).staged
    return staged is not None and staged.operation == str(operation)


def _asked(operation: OperationId, snapshot: AheadSnapshot) -> OperationArg:
    request = snapshot.request
    assert request is not None
    note = RequestNote(digest=request.digest, call=request.call, forget_at=request.forget_at)
    return OperationArg(
        table=operation.table,
        type=operation.type,
        object=operation.object,
        instance=operation.instance,
        request_id=request.id,
        request_note=note,
        started_at=snapshot.at,
    )


def _applied(operation: OperationId, queued: KeyValue, snapshot: AheadSnapshot) -> bytes:
    """Of a batch; ``queued``: as it was queued before the backup, if it was."""
    record = decode(queued.value, BatchRecord, queued.key) if queued.exists else BatchRecord(type="")
    together = max(1, len(snapshot.batches))
    return encode(AppliedRecord.of(operation, record, snapshot.at, _history(snapshot, None), together))


async def number_beyond(client: EtcdClient, keys: TableKeys, epoch: Epoch, operation: OperationId) -> None:
    """Make sure that no instance number up to an operation's is reused: a Delta table identifies operations
    by it."""
    key = keys.next_instance(operation.type)

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        current = read.single(0, key)
        if int(current.value or b"1") > operation.instance:
            return None, None
        put = Put(key, str(operation.instance + 1).encode())
        return Txn((unchanged(current), epoch.held()), (put,)), None

    await update(client, [Get(key)], decide, subject=f"table {keys.name!r}")
