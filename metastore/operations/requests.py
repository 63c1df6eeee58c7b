"""What is remembered of requests, apart from the history: the operation that an id has made, and its end.

A request is remembered until a time that is fixed when it is accepted. Beside its record stands a key that
begins with that time, so that what is to be forgotten is found without a look at what is not.
"""

from __future__ import annotations

from distop.errors import OutcomeUnknown
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Op, Put, Txn, absent, unchanged
from distop.metastore.records.keyspace import OperationId, TableKeys
from distop.metastore.records.operation import SUCCESS, OperationArg, RequestRecord
from distop.metastore.records.record import encode

REMEMBER_S = 7 * 86_400.0
"""How long an id is remembered that its caller has chosen, from the start of its operation on."""

BRIEFLY_S = 900.0
"""How long one is that was made for a single call: longer than the call can be repeated."""

FENCE_S = 4 * 86_400.0
"""How long one is remembered at least that stays used whatever becomes of its operation: longer than files
that were written before may be published."""

FORGET_MOST = 640
"""Requests forgotten at one time; several times as many as come in between."""

_BITE = 40
"""Requests forgotten by one transaction: two deletes and a compare each, under etcd's 128."""


def remembered(keys: TableKeys, arg: OperationArg, before: RequestRecord | None) -> tuple[Op, ...]:
    """What a start writes of its request.

    Parameters
    ----------
    before:
        What stood under this id: it has failed, and is started again.
    """
    expiry = _expiry(keys, arg.request_id, arg.request_note.forget_at)
    ops: tuple[Op, ...] = (_put(keys, arg, ""), Put(expiry, b"{}"))
    if before is not None and (old := _expiry(keys, arg.request_id, before.forget_at)) != expiry:
        ops += (Delete(old),)
    return ops


def answered(keys: TableKeys, arg: OperationArg, outcome: str, now: float) -> tuple[Op, ...]:
    """What a finish writes of the request of its operation; nothing, if it may be forgotten by then."""
    return (_put(keys, arg, outcome),) if arg.request_id and now < arg.request_note.forget_at else ()


def done_otherwise(keys: TableKeys, request_id: str, what: OperationId, digest: str, now: float) -> Txn:
    """What notes a request that is no operation's, with what it does, unless its id was used before.

    Parameters
    ----------
    what:
        Stands for it where an operation would.
    """
    record = RequestRecord(
        operation=str(what), digest=digest, at=now, forget_at=now + REMEMBER_S, outcome=SUCCESS
    )
    own = keys.request(request_id)
    noted = Put(own, encode(record)), Put(_expiry(keys, request_id, record.forget_at), b"{}")
    return Txn((absent(own),), noted)


def done_before(keys: TableKeys, arg: OperationArg) -> tuple[Op, ...]:
    """What writes of a request that its operation had succeeded, of which nothing else is known any more."""
    expiry = _expiry(keys, arg.request_id, arg.request_note.forget_at)
    return _put(keys, arg, SUCCESS), Put(expiry, b"{}")


def forgotten(keys: TableKeys, request_id: str, record: RequestRecord) -> tuple[Op, ...]:
    """The removal of what is remembered of a request, before its time."""
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
    """Forget requests whose time is over, the oldest first; returns how many.

    Safe to repeat and to leave unfinished. One that was started again meanwhile has another time.
    """
    end = keys.request_expiry(int(now * 1000), "")
    due = (await client.get_range(keys.request_expiry_prefix, end, limit=FORGET_MOST)).kvs
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
