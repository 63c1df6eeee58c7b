"""The transactions that end an operation: cancel, seal, finish, collect.

*Seal* freezes the outcome: no mark can be written afterwards, since marks compare ``.state = running``.
*Finish* makes everything visible at once. Both carry the leader's epoch: a leader that was paused past its
TTL changes nothing. All are safe to send twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from distop.errors import (
    LeadershipLost,
    OperationNotFound,
    OperationPaused,
    OutcomeUnknown,
    TooLateToCancel,
)
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient, Windows
from distop.metastore.etcd.update import settle, update
from distop.metastore.members.election import Epoch
from distop.metastore.operations.runs import not_paused
from distop.metastore.operations.starting import FollowUpStart, answered, slots_with, slots_without
from distop.metastore.records import operation
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.tables.audit import operation_puts

MAX_KEYS_IN_FINISH = 1000
"""Up to this many keys are deleted in the finishing transaction itself; deleting 100,000 at once would block
etcd for 0.3 s, so larger operations leave theirs to :func:`collect`."""

COLLECT_BITE = 2000
"""Keys removed by one transaction of the collector."""


async def request_cancel(
    client: EtcdClient, keys: OperationKeys, cancel: operation.CancelRecord, audit: etcd.Put | None = None
) -> bool:
    """Request the cancellation of an operation; any coordinator may.

    Returns whether this call was the first to request it. The leader sees the record and aborts; a finish in
    progress compares it as absent, so either the request or the finish wins, never both.

    Raises
    ------
    OperationNotFound
        It has no state (any more).
    TooLateToCancel
        Its commit sequence is logged, and some steps of it may have been executed.
    """
    reads = [
        etcd.Get(keys.state),
        etcd.Get(keys.cancel),
        etcd.Get(keys.commit),
        *([etcd.Get(audit.key)] if audit else []),
    ]

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, bool]:
        state, existing = read.single(0, keys.state), read.single(1, keys.cancel)
        if not state.exists:
            raise OperationNotFound(f"operation {keys.operation} is not running")
        if existing.exists:
            return None, decode(existing.value, operation.CancelRecord, existing.key) == cancel
        if state.value == operation.ABORTING:
            return None, False
        if read.got(2):
            raise TooLateToCancel(
                f"the commit steps of operation {keys.operation} are being executed",
                hint=f"if its completion fails, undo them: distop operation resolve {keys.operation} abort",
            )
        reached("cancel.before")
        # The log of the commit steps compares .cancel as absent: one of the two wins, never both.
        compares = (etcd.unchanged(state), etcd.absent(keys.cancel), etcd.absent(keys.commit))
        return etcd.Txn(compares, (etcd.Put(keys.cancel, encode(cancel)), *([audit] if audit else []))), True

    def is_own_write(read: etcd.TxnResult) -> bool | None:
        # The audit entry of an earlier copy; the operation may be over by now.
        return True if audit and read.got(3) else None

    subject, replied = f"operation {keys.operation}", lambda: reached("cancel.after")
    return (await update(client, reads, decide, is_own_write, subject=subject, replied=replied))[0]


@dataclass(frozen=True)
class Sealed:
    """What became of an operation's state."""

    state: bytes
    """As requested, or what another process made of it; empty: the operation is gone."""
    revision: int


async def seal(
    client: EtcdClient,
    keys: OperationKeys,
    epoch: Epoch,
    *,
    before: bytes,
    after: bytes,
    error: operation.ErrorRecord | None = None,
    events: operation.EventsRecord | None = None,
) -> Sealed:
    """IF ``.state = before`` AND the epoch is held THEN ``.state = after``; if that is ``committing``, only
    while neither the operation nor its table is paused. A decision that was not acted on ends with it.

    Raises
    ------
    LeadershipLost
        The epoch is no longer held; nothing was written.
    OperationPaused
        It is paused; nothing was written.
    """
    then: tuple[etcd.Op, ...] = (
        etcd.Put(keys.state, after),
        etcd.DeleteRange(keys.waiting),
        etcd.DeleteRange(keys.resolve),
    )
    if error is not None:
        then += (etcd.Put(keys.error, encode(error)),)
    if events is not None:
        then += (etcd.Put(keys.events, encode(events)),)
    # Every mark compares .state = running, so from this transaction on the results of the jobs cannot change.
    compares: tuple[etcd.Compare, ...] = (etcd.equals(keys.state, before), epoch.held())
    if after == operation.COMMITTING:
        compares += not_paused(keys)
    txn = etcd.Txn(compares, then, (etcd.Get(keys.state), etcd.Get(epoch.key)), lane=keys.table_prefix)
    reached("seal.before")
    result = await settle(client, txn, replied=lambda: reached("seal.after"))
    if result.succeeded:
        return Sealed(after, result.revision)
    state, leader = result.single(0, keys.state), result.single(1, epoch.key)
    if leader.create_revision != epoch.revision:
        raise LeadershipLost(f"{keys.operation}: epoch {epoch.revision} is over")
    if state.value == before:
        raise OperationPaused(f"operation {keys.operation} is paused, or its table is")
    return Sealed(state.value, result.revision)


@dataclass(frozen=True, kw_only=True)
class FinishParts:
    """The parts of a finishing transaction."""

    sealed: bytes
    """The state that it was sealed with: ``committing`` or ``aborting``."""
    run_ops: etcd.KeyValue
    """The table's ``runOps`` as it was read; the finish compares it."""
    history: operation.HistoryRecord
    arg: operation.OperationArg | None = None
    """Of the operation, whose request gets its answer."""
    publication: etcd.Txn = etcd.Txn()
    """Contributions of the commit steps: head, watermarks."""
    follow_up: FollowUpStart | None = None
    """The operation that it starts."""
    leave_keys: bool = False
    """Leave the operation's other keys to the collector: there are many, or staged files to sweep."""


class Finished(Enum):
    """The result of a finish."""

    DONE = "done"
    """This transaction did it."""
    BEFORE = "before"
    """It happened before: by this transaction, whose reply was lost, or by another leader, perhaps on another
    state of the table."""
    MOVED = "moved"
    """It did not happen and never will in this form: something it compares has changed. Read again."""


def finish_txn(keys: TableKeys, op: OperationKeys, epoch: Epoch, finish: FinishParts) -> etcd.Txn:
    """The transaction itself, as a value."""
    # It deletes .state and changes runOps, which it compares: however often it is sent, it happens once.
    compares: tuple[etcd.Compare, ...] = (
        etcd.equals(op.state, finish.sealed),
        epoch.held(),
        etcd.unchanged(finish.run_ops),
    )
    if finish.sealed != operation.ABORTING:
        # A caller that was answered that it is cancelled, or aborted while a call hangs, stays right.
        compares += (etcd.absent(op.cancel), etcd.absent(op.resolve))
    left = slots_without(finish.run_ops, op.operation)
    publication = finish.publication
    if finish.follow_up is not None:
        left = slots_with(left or b"", finish.follow_up.arg.id)
        publication += finish.follow_up.txn(keys)
    run_ops: etcd.Op = etcd.DeleteRange(keys.run_ops) if left is None else etcd.Put(keys.run_ops, left)
    paused = keys.keyspace.paused_operation(op.operation)
    gone: tuple[etcd.Op, ...]
    if finish.leave_keys:
        # .runner stays: its owner removes it once its last attempt has stopped, and only then are staged
        # files swept.
        gone = (etcd.DeleteRange(op.state), etcd.DeleteRange(op.cancel), etcd.DeleteRange(paused))
    else:
        active = keys.keyspace.active_operation(op.operation)
        gone = (
            etcd.DeleteRange(op.prefix, prefix_end(op.prefix)),
            etcd.DeleteRange(active),
            etcd.DeleteRange(paused),
        )
    history = etcd.Put(keys.history(op.operation), encode(finish.history))
    record = finish.history
    notes: tuple[etcd.Op, ...] = ()
    if finish.arg is not None:
        notes = (
            *answered(keys, finish.arg, record.outcome, record.finished_at),
            *operation_puts(keys, finish.arg, record),
        )
    reads = (etcd.Get(op.state), etcd.Get(epoch.key), etcd.Get(history.key))
    return etcd.Txn(compares, (run_ops, history, *notes, *gone), reads, lane=keys.prefix) + publication


async def finish(
    client: EtcdClient, keys: TableKeys, op: OperationKeys, epoch: Epoch, txn: etcd.Txn
) -> tuple[Finished, int]:
    """Send a :func:`finish_txn` until its outcome is known; return it with its revision.

    The history resolves a lost reply: only this transaction writes the record of this operation, so if that
    exists, the operation is finished. It may have been removed since, with the end of the next operation of
    its series; then the outcome is unknown.

    Raises
    ------
    LeadershipLost
        The epoch is over and the operation is not finished. Nothing was written by this call.
    OutcomeUnknown
        etcd does not answer, or the operation's line is gone: nothing may be concluded, and no file may be
        deleted.
    """
    reached("finish.before")
    result = await settle(client, txn, replied=lambda: reached("finish.after"))
    if result.succeeded:
        return Finished.DONE, result.revision
    leader, history = result.single(1, epoch.key), result.single(2, keys.history(op.operation))
    if history.exists:
        return Finished.BEFORE, result.revision
    if result.doubt and not result.single(0, op.state).exists:
        raise OutcomeUnknown(f"{op.operation} has ended, and its outcome is no longer recorded")
    if leader.create_revision != epoch.revision:
        raise LeadershipLost(f"{op.operation}: epoch {epoch.revision} is over")
    return Finished.MOVED, result.revision


async def collect(client: EtcdClient, keys: TableKeys, op: OperationKeys) -> int:
    """Remove the keys of a finished operation, in bounded steps; the index entry and ``.arg`` go last.

    Can be interrupted and repeated by any process: it acts only while ``.state`` is absent, and a finished
    operation's state never comes back, since instance numbers are never reused. Returns the keys removed.
    """
    removed = 0
    windows, over = Windows(op.prefix, prefix_end(op.prefix), COLLECT_BITE), False
    while not over:
        page = await client.get_range(windows.start, windows.stop, keys_only=True, limit=COLLECT_BITE)
        paths = [kv.key for kv in page.kvs]
        over = windows.read(paths, more=page.more, count=page.count)
        victims = [key for key in paths if key != op.arg]
        if not victims:
            continue
        first, behind = victims[0], victims[-1] + b"\0"
        # .arg must outlive every other key: split the range around it.
        parts = [(first, op.arg), (op.arg + b"\0", behind)] if first < op.arg < behind else [(first, behind)]
        txn = etcd.Txn((etcd.absent(op.state),), tuple(etcd.DeleteRange(*part) for part in parts))
        reached("collect.before")
        if not (await settle(client, txn, replied=lambda: reached("collect.middle"))).succeeded:
            return removed
        removed += len(victims)
    last = etcd.Txn(
        (etcd.absent(op.state),),
        (etcd.DeleteRange(op.arg), etcd.DeleteRange(keys.keyspace.active_operation(op.operation))),
    )
    if (await settle(client, last, replied=lambda: reached("collect.after"))).succeeded:
        removed += 1
    return removed
