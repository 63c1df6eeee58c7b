"""Remembered requests, apart from the history: the operation of a request id, and its end.

A request is remembered until a time that is fixed when it is accepted. A second key begins with that time, so
that expired ones are found without reading the others.
"""

from __future__ import annotations

from distop.errors import OutcomeUnknown
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Op, Put, Txn, absent, unchanged
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import SUCCESS, OperationArg, RequestRecord
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.record import encode

REMEMBER_S = 7 * 86_400.0
"""How long an id chosen by a caller is remembered, from the start of its operation."""

BRIEFLY_S = 900.0
"""How long an id made for a single call is remembered: longer than the call can be repeated."""

FENCE_S = 4 * 86_400.0
"""Minimum time for ids that stay used whatever the outcome of their operation: longer than files written
earlier may be published."""

FORGET_MOST = 640
"""Requests deleted at one time; several times as many as arrive in between."""

_BITE = 40
"""Requests deleted by one transaction: two deletes and a compare each, under etcd's 128."""


def remembered(keys: TableKeys, arg: OperationArg, before: RequestRecord | None) -> tuple[Op, ...]:
    """A start's writes for its request.

    Parameters
    ----------
    before:
        The earlier record of this id: it has failed, and is started again.
    """
    expiry = _expiry(keys, arg.request_id, arg.request_note.forget_at)
    ops: tuple[Op, ...] = (_put(keys, arg, ""), Put(expiry, b"{}"))
    if before is not None and (old := _expiry(keys, arg.request_id, before.forget_at)) != expiry:
        ops += (Delete(old),)
    return ops


def answered(keys: TableKeys, arg: OperationArg, outcome: str, now: float) -> tuple[Op, ...]:
    """A finish's writes for the request of its operation; nothing if it may be forgotten by then."""
    return (_put(keys, arg, outcome),) if arg.request_id and now < arg.request_note.forget_at else ()


def done_otherwise(
    keys: TableKeys,
    request_id: str,
    what: OperationId,
    digest: str,
    now: float,
    *,
    keep_s: float = REMEMBER_S,
) -> Txn:
    """Writes that note a request that starts no operation, with its effect, unless its id was used before.

    Parameters
    ----------
    what:
        Takes the place of the started operation's name.
    keep_s:
        How long it is remembered.
    """
    record = RequestRecord(
        operation=str(what), digest=digest, at=now, forget_at=now + keep_s, outcome=SUCCESS
    )
    own = keys.request(request_id)
    noted = Put(own, encode(record)), Put(_expiry(keys, request_id, record.forget_at), b"{}")
    return Txn((absent(own),), noted)


def done_before(keys: TableKeys, arg: OperationArg) -> tuple[Op, ...]:
    """Writes that record the success of a request's operation, of which no other record is left."""
    expiry = _expiry(keys, arg.request_id, arg.request_note.forget_at)
    return _put(keys, arg, SUCCESS), Put(expiry, b"{}")


def forgotten(keys: TableKeys, request_id: str, record: RequestRecord) -> tuple[Op, ...]:
    """The early removal of a remembered request."""
    return Delete(keys.request(request_id)), Delete(_expiry(keys, request_id, record.forget_at))


def _put(keys: TableKeys, arg: OperationArg, outcome: str) -> Put:
    note = arg.request_note
    record = RequestRecord(
        operation=str(arg.id),
        digest=note.digest,
        call=note.call,
        at=arg.started_at,
        forget_at=note.forget_at,
        outcome=outcome,
    )
    return Put(keys.request(arg.request_id), encode(record))


def _expiry(keys: TableKeys, request_id: str, at: float) -> bytes:
    return keys.request_expiry(int(at * 1000), request_id)


async def forget(client: EtcdClient, keys: TableKeys, now: float) -> int:
    """Delete expired requests, the oldest first; return how many.

    Idempotent, and may be left unfinished. A request that was started again meanwhile has another time.
    """
    end = keys.request_expiry(int(now * 1000), "")
    due = (await client.get_range(keys.request_expiry_prefix, end, limit=FORGET_MOST)).kvs
    due = [kv for kv in due if keys.request_of_expiry(kv.key)]
    for first in range(0, len(due), _BITE):
        bite = due[first : first + _BITE]
        gone = [Delete(key) for kv in bite for key in (kv.key, keys.request_of_expiry(kv.key))]
        try:
            reached("prune.before")
            await client.txn(Txn(tuple(unchanged(kv) for kv in bite), tuple(gone)))
            reached("prune.after")
        except OutcomeUnknown:
            continue
    return len(due)
