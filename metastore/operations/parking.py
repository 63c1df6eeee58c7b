"""Operations whose completion fails: counted, parked in the end, and resolved by a decision.

The count and the parking are stored in ``<root>.completion``, so they survive leaders; a decision is stored
in ``<root>.resolve`` until the leader has acted on it. Any caller may decide, only the leader acts: the
effect of a decision happens in one transaction that removes the decision. The request of a decision is noted
with it, so that its repetition decides nothing, whatever has become of the operation since.
"""

from __future__ import annotations

from distop import errors
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.update import settle, update
from distop.metastore.members.election import Epoch
from distop.metastore.operations.starting import BRIEFLY_S, done_otherwise
from distop.metastore.records import operation
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.record import decode, encode

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
        present, decision, existing, leader = (read.single(index, key) for index, key in enumerate(wanted))
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
    RequestIdReused
        The id belongs to another request.
    """
    if decision.action not in (operation.RETRY, operation.SKIP, operation.ABORT):
        raise errors.InvalidArgument(
            f"{decision.action!r} resolves nothing",
            hint="choose retry, skip or abort",
            details={"field": "action"},
        )
    table, digest = keys.keyspace.table(keys.operation.table), f"resolve-{decision.action}"
    noted = done_otherwise(table, request, keys.operation, digest, decision.at, keep_s=BRIEFLY_S)
    wanted = (keys.state, keys.completion, keys.resolve, table.request(request))

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, None]:
        state, completion, existing, before = (read.single(index, key) for index, key in enumerate(wanted))
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
        raise errors.RequestIdReused(
            f"request id {request!r} was used for {before.operation} with another body",
            details={"operation": before.operation, "field": "request_id"},
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
