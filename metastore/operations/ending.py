"""The transactions that end an operation: cancel, seal, finish, collect; and park it where that fails.

*Seal* freezes the outcome: no mark can be written afterwards, since marks compare ``.state = running``.
*Finish* makes everything visible at once. Both carry the leader's epoch: a leader that was paused past its
TTL changes nothing. All are safe to send twice.

Failures of a completion are counted in ``<root>.completion``, which also parks the operation in the end, so
they survive leaders; a decision is stored in ``<root>.resolve`` until the leader has acted on it. Any caller
may decide, only the leader acts: the effect of a decision happens in one transaction that removes the
decision. The request of a decision is noted with it, so that its repetition decides nothing, whatever has
become of the operation since.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from distop import errors
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient, Windows
from distop.metastore.etcd.update import settle, update
from distop.metastore.members.lease import Epoch
from distop.metastore.operations import starting
from distop.metastore.operations.runs import not_paused
from distop.metastore.records import operation
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.tables.audit import operation_puts

COMPLETION_FAILED = "COMPLETION_FAILED"
"""The code of the error of an operation that an operator has aborted."""


async def note_failure(
    client: EtcdClient,
    keys: OperationKeys,
    epoch: Epoch,
    record: operation.CompletionRecord,
    state: bytes,
    events: operation.EventsRecord | None = None,
) -> tuple[int, bytes | None]:
    """IF ``.state`` is still this one (a sealed one) AND there is no decision AND ``.completion`` is as read
    AND the epoch is held THEN ``.completion`` is this record.

    Only the leader writes it. A decision is absent again once it was acted on: so a late copy, from before,
    finds another ``.completion``. Returns the revision, and ``None``; or, when it was refused, the state at
    that revision (empty: there is none any more): the same one if there is a decision to act on.

    Raises
    ------
    LeadershipLost
        The epoch is over; nothing was written.
    """
    wanted, value = (keys.state, keys.resolve, keys.completion, epoch.key), encode(record)

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, bytes | None]:
        present, decision, existing, leader = read.each(wanted)
        _check_epoch(leader, keys, epoch)
        if present.value != state or decision.exists:
            return None, present.value
        if existing.exists and existing.value == value:
            return None, None  # its reply was lost
        reached("note.before")
        compares = (
            etcd.equals(keys.state, state),
            etcd.absent(keys.resolve),
            etcd.unchanged(existing),
            epoch.held(),
        )
        return etcd.Txn(compares, (etcd.Put(keys.completion, value), *_written(keys, events))), None

    subject, replied = f"the completion of {keys.operation}", lambda: reached("note.after")
    refused, revision = await update(
        client, [etcd.Get(key) for key in wanted], decide, subject=subject, replied=replied
    )
    return revision, refused


async def request_resolve(
    client: EtcdClient,
    keys: OperationKeys,
    decision: operation.ResolveRecord,
    *,
    request: str,
    also: tuple[etcd.Op, ...] = (),
) -> None:
    """Decide about an operation whose completion fails, or abort one where it hangs; any coordinator may.

    Parameters
    ----------
    request:
        Id of the call, the same in its repetitions.
    also:
        Written in the same transaction: the audit entry.

    Raises
    ------
    InvalidArgument
        There is no such action.
    OperationNotFound
        It is over, or never existed.
    NotParked
        Its completion has not failed, or another decision has just been made.
    NotSkippable
        The failure is not that of a skippable step: half of the operation would be published.
    RunReused
        The id belongs to another request.
    """
    if decision.action not in (operation.RETRY, operation.SKIP, operation.ABORT):
        raise errors.InvalidArgument(
            f"{decision.action!r} resolves nothing",
            hint="choose retry, skip or abort",
            details={"field": "action"},
        )
    table, digest = keys.keyspace.table(keys.operation.table), f"resolve-{decision.action}"
    noted = starting.done_otherwise(
        table, request, keys.operation, digest, decision.at, keep_s=starting.BRIEFLY_S
    )
    wanted = (keys.state, keys.completion, keys.resolve, table.request(request))

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, None]:
        state, completion, existing, before = read.each(wanted)
        if before.exists:
            _check_same(decode(before.value, operation.RequestRecord, before.key), keys, request, digest)
            return None, None
        if not state.exists:
            raise errors.OperationNotFound(f"operation {keys.operation} is not running")
        record = _completion_of(completion)
        hangs = record.running and decision.action == operation.ABORT
        if not (record.parked or record.attempts or hangs) or state.value != operation.COMMITTING:
            raise errors.NotParked(
                f"operation {keys.operation} does not fail to complete, it is {state.value.decode()}"
            )
        if decision.action == operation.SKIP and not record.skippable:
            failed = record.step or "what failed"
            raise errors.NotSkippable(f"{failed} of {keys.operation} cannot be skipped: {record.error}")
        if existing.exists:
            other = decode(existing.value, operation.ResolveRecord, existing.key)
            if other.action == decision.action:
                return etcd.Txn((etcd.unchanged(state), etcd.unchanged(existing))) + noted, None
            raise errors.NotParked(
                f"{other.by or 'an unknown caller'} has just decided on {other.action}: {keys.operation}"
            )
        reached("resolve.before")
        puts = (etcd.Put(keys.resolve, encode(decision)), *also)
        return etcd.Txn(
            (etcd.unchanged(state), etcd.unchanged(completion), etcd.absent(keys.resolve)), puts
        ) + noted, None

    subject, replied = f"operation {keys.operation}", lambda: reached("resolve.after")
    await update(client, [etcd.Get(key) for key in wanted], decide, subject=subject, replied=replied)


def _check_same(before: operation.RequestRecord, keys: OperationKeys, request: str, digest: str) -> None:
    if (before.operation, before.digest) != (str(keys.operation), digest):
        raise errors.RunReused(
            f"call {request!r} was used for {before.operation} with another body",
            hint="give another call another call_id",
            details={"operation": before.operation, "field": "call_id"},
        )


async def apply_resolve(
    client: EtcdClient,
    keys: OperationKeys,
    epoch: Epoch,
    completion: operation.CompletionRecord,
    decision: operation.ResolveRecord,
    *,
    decided: int,
    now: float,
    events: operation.EventsRecord | None = None,
) -> tuple[bytes, operation.CompletionRecord | None, operation.ErrorRecord | None, int] | None:
    """Act on a decision, in one transaction that also removes it.

    ``decided``: the revision of the decision. Its value cannot be compared: a newer version may have written
    fields that this one does not know.

    Returns the resulting state, completion record and error, and the revision; ``None`` when the decision is
    already gone (a reply was lost, or a predecessor acted on it), or the operation was cancelled meanwhile.

    Raises
    ------
    LeadershipLost
        The epoch is over; nothing was written.
    """
    state, record, error = operation.COMMITTING, None, None
    gone: tuple[etcd.Op, ...] = (etcd.DeleteRange(keys.resolve), *_written(keys, events))
    if decision.action == operation.ABORT:
        state, error = (
            operation.ABORTING,
            operation.ErrorRecord(code=COMPLETION_FAILED, message=_why(completion, decision), at=now),
        )
        gone += (
            etcd.Put(keys.state, operation.ABORTING),
            etcd.Put(keys.error, encode(error)),
            etcd.DeleteRange(keys.completion),
        )
    else:
        skipped = list(completion.skipped)
        if decision.action == operation.SKIP and completion.index is not None:
            skipped.append(completion.index)
        record = operation.CompletionRecord(skipped=skipped, at=now)
        gone += (etcd.Put(keys.completion, encode(record)),)
    is_unchanged = etcd.unchanged(etcd.KeyValue(keys.resolve, b"", decided, 0))
    compares = (
        etcd.equals(keys.state, operation.COMMITTING),
        is_unchanged,
        etcd.absent(keys.cancel),
        epoch.held(),
    )
    txn = etcd.Txn(compares, gone, (etcd.Get(epoch.key),))
    reached("act.before")
    result = await settle(client, txn, replied=lambda: reached("act.after"))
    if result.succeeded:
        return state, record, error, result.revision
    _check_epoch(result.single(0, epoch.key), keys, epoch)
    return None


def _written(keys: OperationKeys, events: operation.EventsRecord | None) -> tuple[etcd.Op, ...]:
    return () if events is None else (etcd.Put(keys.events, encode(events)),)


def _why(completion: operation.CompletionRecord, decision: operation.ResolveRecord) -> str:
    by = f" by {decision.by}" if decision.by else ""
    reason = f" ({decision.reason})" if decision.reason else ""
    step = f"{completion.step}: " if completion.step else ""
    if completion.running:
        return f"aborted{by}{reason} while {completion.running} was still running"
    return f"aborted{by}{reason} after {completion.attempts} failed attempts: {step}{completion.error}"


def _completion_of(kv: etcd.KeyValue) -> operation.CompletionRecord:
    return decode(kv.value, operation.CompletionRecord, kv.key) if kv.exists else operation.CompletionRecord()


def _check_epoch(leader: etcd.KeyValue, keys: OperationKeys, epoch: Epoch) -> None:
    if leader.create_revision != epoch.revision:
        raise errors.LeadershipLost(f"{keys.operation}: epoch {epoch.revision} is over")


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
            raise errors.OperationNotFound(f"operation {keys.operation} is not running")
        if existing.exists:
            return None, decode(existing.value, operation.CancelRecord, existing.key) == cancel
        if state.value == operation.ABORTING:
            return None, False
        if read.got(2):
            raise errors.TooLateToCancel(
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
        raise errors.LeadershipLost(f"{keys.operation}: epoch {epoch.revision} is over")
    if state.value == before:
        raise errors.OperationPaused(f"operation {keys.operation} is paused, or its table is")
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
    follow_up: starting.FollowUpStart | None = None
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
    DOUBTED = "doubted"
    """As ``MOVED``, but an earlier copy may still happen: a decision that it compares as absent is so again
    once it was acted on. So its files must stay."""


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
    left = starting.slots_without(finish.run_ops, op.operation)
    publication = finish.publication
    if finish.follow_up is not None:
        left = starting.slots_with(left or b"", finish.follow_up.arg.id)
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
            *starting.answered(keys, finish.arg, record.outcome, record.finished_at),
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
        raise errors.OutcomeUnknown(f"{op.operation} has ended, and its outcome is no longer recorded")
    if leader.create_revision != epoch.revision:
        raise errors.LeadershipLost(f"{op.operation}: epoch {epoch.revision} is over")
    return Finished.DOUBTED if result.doubt else Finished.MOVED, result.revision


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
