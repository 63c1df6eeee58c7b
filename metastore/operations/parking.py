"""Operations whose completion fails: counted, parked in the end, and resolved by a decision.

The count and the parking are stored in ``<root>.completion``, so they survive leaders; a decision is stored
in ``<root>.resolve`` until the leader has acted on it. Any caller may decide, only the leader acts: the
effect of a decision happens in one transaction that removes the decision. The request of a decision is noted
with it, so that its repetition decides nothing, whatever has become of the operation since.
"""

from __future__ import annotations

from distop.errors import (
    InvalidArgument,
    LeadershipLost,
    NotParked,
    NotSkippable,
    OperationNotFound,
    RequestIdReused,
)
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import (
    DeleteRange,
    Get,
    KeyValue,
    Op,
    Put,
    Txn,
    TxnResult,
    absent,
    equals,
    unchanged,
)
from distop.metastore.etcd.update import settle, update
from distop.metastore.members.election import Epoch
from distop.metastore.operations.starting import BRIEFLY_S, done_otherwise
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.operation import (
    ABORT,
    ABORTING,
    COMMITTING,
    RETRY,
    SKIP,
    CompletionRecord,
    ErrorRecord,
    EventsRecord,
    RequestRecord,
    ResolveRecord,
)
from distop.metastore.records.record import decode, encode

COMPLETION_FAILED = "COMPLETION_FAILED"
"""The code of the error of an operation that an operator has aborted."""


async def note_failure(
    client: EtcdClient,
    keys: OperationKeys,
    epoch: Epoch,
    record: CompletionRecord,
    state: bytes,
    events: EventsRecord | None = None,
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

    async def decide(read: TxnResult) -> tuple[Txn | None, bytes | None]:
        found, decision, existing, leader = (read.one(index, key) for index, key in enumerate(wanted))
        _check_epoch(leader, keys, epoch)
        if found.value != state or decision.exists:
            return None, found.value
        if existing.exists and existing.value == value:
            return None, None  # its reply was lost
        reached("note.before")
        compares = (equals(keys.state, state), absent(keys.resolve), unchanged(existing), epoch.held())
        return Txn(compares, (Put(keys.completion, value), *_written(keys, events))), None

    subject, replied = f"the completion of {keys.operation}", lambda: reached("note.after")
    refused, revision = await update(
        client, [Get(key) for key in wanted], decide, subject=subject, replied=replied
    )
    return revision, refused


async def request_resolve(
    client: EtcdClient,
    keys: OperationKeys,
    decision: ResolveRecord,
    *,
    request: str,
    also: tuple[Op, ...] = (),
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
    if decision.action not in (RETRY, SKIP, ABORT):
        raise InvalidArgument(
            f"{decision.action!r} resolves nothing",
            hint="choose retry, skip or abort",
            details={"field": "action"},
        )
    table, digest = keys.keyspace.table(keys.operation.table), f"resolve-{decision.action}"
    noted = done_otherwise(table, request, keys.operation, digest, decision.at, keep_s=BRIEFLY_S)
    wanted = (keys.state, keys.completion, keys.resolve, table.request(request))

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        state, completion, existing, before = (read.one(index, key) for index, key in enumerate(wanted))
        if before.exists:
            _check_same(decode(before.value, RequestRecord, before.key), keys, request, digest)
            return None, None
        if not state.exists:
            raise OperationNotFound(f"operation {keys.operation} is not running")
        record = _completion_of(completion)
        hangs = record.running and decision.action == ABORT
        if not (record.parked or record.attempts or hangs) or state.value != COMMITTING:
            raise NotParked(
                f"operation {keys.operation} does not fail to complete, it is {state.value.decode()}"
            )
        if decision.action == SKIP and not record.skippable:
            failed = record.step or "what failed"
            raise NotSkippable(f"{failed} of {keys.operation} cannot be skipped: {record.error}")
        if existing.exists:
            other = decode(existing.value, ResolveRecord, existing.key)
            if other.action == decision.action:
                return Txn((unchanged(state), unchanged(existing))) + noted, None
            raise NotParked(
                f"{other.by or 'an unknown caller'} has just decided on {other.action}: {keys.operation}"
            )
        reached("resolve.before")
        puts = (Put(keys.resolve, encode(decision)), *also)
        return Txn((unchanged(state), unchanged(completion), absent(keys.resolve)), puts) + noted, None

    subject, replied = f"operation {keys.operation}", lambda: reached("resolve.after")
    await update(client, [Get(key) for key in wanted], decide, subject=subject, replied=replied)


def _check_same(before: RequestRecord, keys: OperationKeys, request: str, digest: str) -> None:
    if (before.operation, before.digest) != (str(keys.operation), digest):
        raise RequestIdReused(
            f"request id {request!r} was used for {before.operation} with another body",
            details={"operation": before.operation, "field": "request_id"},
        )


async def apply_resolve(
    client: EtcdClient,
    keys: OperationKeys,
    epoch: Epoch,
    completion: CompletionRecord,
    decision: ResolveRecord,
    *,
    decided: int,
    now: float,
    events: EventsRecord | None = None,
) -> tuple[bytes, CompletionRecord | None, ErrorRecord | None, int] | None:
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
    state, record, error = COMMITTING, None, None
    gone: tuple[Op, ...] = (DeleteRange(keys.resolve), *_written(keys, events))
    if decision.action == ABORT:
        state, error = (
            ABORTING,
            ErrorRecord(code=COMPLETION_FAILED, message=_why(completion, decision), at=now),
        )
        gone += (Put(keys.state, ABORTING), Put(keys.error, encode(error)), DeleteRange(keys.completion))
    else:
        skipped = list(completion.skipped)
        if decision.action == SKIP and completion.index is not None:
            skipped.append(completion.index)
        record = CompletionRecord(skipped=skipped, at=now)
        gone += (Put(keys.completion, encode(record)),)
    decision_stands = unchanged(KeyValue(keys.resolve, b"", decided, 0))
    compares = (equals(keys.state, COMMITTING), decision_stands, absent(keys.cancel), epoch.held())
    txn = Txn(compares, gone, (Get(epoch.key),))
    reached("act.before")
    result = await settle(client, txn, replied=lambda: reached("act.after"))
    if result.succeeded:
        return state, record, error, result.revision
    _check_epoch(result.one(0, epoch.key), keys, epoch)
    return None


def _written(keys: OperationKeys, events: EventsRecord | None) -> tuple[Op, ...]:
    return () if events is None else (Put(keys.events, encode(events)),)


def _why(completion: CompletionRecord, decision: ResolveRecord) -> str:
    by = f" by {decision.by}" if decision.by else ""
    reason = f" ({decision.reason})" if decision.reason else ""
    what = f"{completion.step}: " if completion.step else ""
    if completion.running:
        return f"aborted{by}{reason} while {completion.running} was still running"
    return f"aborted{by}{reason} after {completion.attempts} failed attempts: {what}{completion.error}"


def _completion_of(kv: KeyValue) -> CompletionRecord:
    return decode(kv.value, CompletionRecord, kv.key) if kv.exists else CompletionRecord()


def _check_epoch(leader: KeyValue, keys: OperationKeys, epoch: Epoch) -> None:
    if leader.create_revision != epoch.revision:
        raise LeadershipLost(f"{keys.operation}: epoch {epoch.revision} is over")
