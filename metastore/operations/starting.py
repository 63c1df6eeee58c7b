"""The transaction that starts an operation, and the record of its request.

IF ``runOps`` and ``nextInstanceId`` are as read AND the run is new AND the table, its head, its
watermarks and the index are those of the plan AND the table is not paused THEN the operation exists, with all
its keys. A failed start leaves nothing in etcd. A plan is never older than the state it starts from: if that
has changed meanwhile, the plan is made again.

Safe to send twice: the run is both the fence and the memory. A start whose reply was lost is sent
again; either the first one happened, and the request record names its operation, or none did.

A request is remembered, apart from the history, until a time that is fixed when it is accepted. A second key
begins with that time, so that expired ones are found without reading the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from distop import errors
from distop.metastore.backlog.undoing import effective_operation
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.update import update
from distop.metastore.operations.runs import index_puts
from distop.metastore.records import operation as records
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import decode, encode, encode_plain
from distop.metastore.records.table import Head, IndexRecord, TableRecord, decode_run_ops, running_operations
from distop.metastore.tables.audit import operation_puts

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


def remembered(
    keys: TableKeys, arg: records.OperationArg, before: records.RequestRecord | None
) -> tuple[etcd.Op, ...]:
    """A start's writes for its request.

    Parameters
    ----------
    before:
        The earlier record of this id: it has failed, and is started again.
    """
    expiry = _expiry(keys, arg.run, arg.request_note.forget_at)
    ops: tuple[etcd.Op, ...] = (_put(keys, arg, ""), etcd.Put(expiry, b"{}"))
    if before is not None and (old := _expiry(keys, arg.run, before.forget_at)) != expiry:
        ops += (etcd.DeleteRange(old),)
    return ops


def answered(keys: TableKeys, arg: records.OperationArg, outcome: str, now: float) -> tuple[etcd.Op, ...]:
    """A finish's writes for the request of its operation; nothing if it may be forgotten by then."""
    return (_put(keys, arg, outcome),) if arg.run and now < arg.request_note.forget_at else ()


def done_otherwise(
    keys: TableKeys,
    run: str,
    operation: OperationId,
    digest: str,
    now: float,
    *,
    keep_s: float = REMEMBER_S,
) -> etcd.Txn:
    """Writes that note a request that starts no operation, with its effect, unless its id was used before.

    Parameters
    ----------
    what:
        Takes the place of the started operation's name.
    keep_s:
        How long it is remembered.
    """
    record = records.RequestRecord(
        operation=str(operation), digest=digest, at=now, forget_at=now + keep_s, outcome=records.SUCCESS
    )
    own = keys.request(run)
    noted = etcd.Put(own, encode(record)), etcd.Put(_expiry(keys, run, record.forget_at), b"{}")
    return etcd.Txn((etcd.absent(own),), noted)


def done_before(keys: TableKeys, arg: records.OperationArg) -> tuple[etcd.Op, ...]:
    """Writes that record the success of a request's operation, of which no other record is left."""
    expiry = _expiry(keys, arg.run, arg.request_note.forget_at)
    return _put(keys, arg, records.SUCCESS), etcd.Put(expiry, b"{}")


def forgotten(keys: TableKeys, run: str, record: records.RequestRecord) -> tuple[etcd.Op, ...]:
    """The early removal of a remembered request."""
    return etcd.DeleteRange(keys.request(run)), etcd.DeleteRange(_expiry(keys, run, record.forget_at))


def _put(keys: TableKeys, arg: records.OperationArg, outcome: str) -> etcd.Put:
    note = arg.request_note
    record = records.RequestRecord(
        operation=str(arg.id),
        digest=note.digest,
        call=note.call,
        earlier=note.earlier,
        at=arg.started_at,
        forget_at=note.forget_at,
        outcome=outcome,
    )
    return etcd.Put(keys.request(arg.run), encode(record))


def _expiry(keys: TableKeys, run: str, at: float) -> bytes:
    return keys.request_expiry(int(at * 1000), run)


async def forget_requests(client: EtcdClient, keys: TableKeys, now: float) -> int:
    """Delete expired requests, the oldest first; return how many.

    Idempotent, and may be left unfinished. A request that was started again meanwhile has another time.
    """
    end = keys.request_expiry(int(now * 1000), "")
    due = (await client.get_range(keys.request_expiry_prefix, end, limit=FORGET_MOST)).kvs
    due = [kv for kv in due if keys.request_of_expiry(kv.key)]
    for first in range(0, len(due), _BITE):
        bite = due[first : first + _BITE]
        gone = [etcd.DeleteRange(key) for kv in bite for key in (kv.key, keys.request_of_expiry(kv.key))]
        try:
            reached("prune.before")
            await client.txn(etcd.Txn(tuple(etcd.unchanged(kv) for kv in bite), tuple(gone)))
            reached("prune.after")
        except errors.OutcomeUnknown:
            continue
    return len(due)


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """A caller's request, before planning."""

    table: str
    type: str
    object: str = ""
    run: str
    digest: str
    """Digest of the request's body, from :func:`digest_of`."""
    call: str = ""
    """Id of its call. Repetitions of one call get one answer, whatever the outcome; another call starts a
    failed operation again. A call whose id is also the run has made the run for itself. Empty: all
    calls of this run are one."""
    again_of: str = ""
    """Run it anew if this operation is what it has started; its rows go. Empty: never."""
    keep_s: float = REMEMBER_S
    """How long its id is remembered, if it was not made for this call."""
    index: str = ""
    """The object whose published index the plan reads; empty: none."""
    sees_active: bool = False
    """Whether the plan reads what else runs on the table."""

    def note(self, now: float, before: records.RequestRecord | None = None) -> records.RequestNote:
        """What is remembered of it; ``before``: the earlier record of its id."""
        keep_s = BRIEFLY_S if self.call == self.run else self.keep_s
        if not self.call:
            keep_s = max(keep_s, FENCE_S)
        return records.RequestNote(
            digest=self.digest,
            call=self.call,
            forget_at=now + keep_s,
            earlier=before.done_by if before is not None else "",
        )


@dataclass(frozen=True, kw_only=True)
class TableState:
    """The state that a start reads, at one revision."""

    record: TableRecord
    head: Head | None
    recent_watermarks: etcd.KeyValue
    """Their revision is that of all of them."""
    run_ops_kv: etcd.KeyValue
    next_instance_kv: etcd.KeyValue
    request: records.RequestRecord | None
    request_kv: etcd.KeyValue
    revision: int
    pause: records.PauseRecord | None = None
    """Why nothing may start."""
    index: IndexRecord | None = None
    planned_on: tuple[etcd.KeyValue, ...] = ()
    """The state that planning reads; all of it is compared."""
    instead_of: str = ""
    """The earlier operation of the request, whose rows the new one replaces."""

    @property
    def next_instance(self) -> int:
        """The instance number of an operation started now."""
        return int(self.next_instance_kv.value or b"1")


@dataclass(frozen=True, kw_only=True)
class Started:
    """The result of a start."""

    operation: OperationId
    arg: records.OperationArg | None = None
    """Its argument, if this call started it."""
    request: records.RequestRecord | None = None
    """The record of the request, if it was started before."""
    revision: int = 0
    """Of the start, or of the read that found it."""
    state: TableState | None = None
    """The state it was started on, if this call started it."""
    txn: etcd.Txn = etcd.Txn()
    """What this call did."""


def digest_of(body: object) -> str:
    """A digest of a request's body: equal bodies (as JSON) have equal digests."""
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()


async def read_table_state(client: EtcdClient, keys: TableKeys, request: StartRequest) -> TableState:
    """Everything a start depends on, in one read.

    Raises :class:`~distop.errors.TableNotFound`.
    """
    return table_state(keys, request, await client.read_at_once(start_reads(keys, request)))


def start_reads(keys: TableKeys, request: StartRequest) -> list[etcd.Get]:
    """The keys that a start depends on."""
    own, next_instance = keys.request(request.run), keys.next_instance(request.type)
    wanted = [keys.table, keys.run_ops, next_instance, own, keys.pause, keys.head, keys.watermarks]
    if request.index:
        wanted.append(keys.index(request.index))
    return [etcd.Get(key) for key in wanted]


def table_state(keys: TableKeys, request: StartRequest, read: etcd.TxnResult) -> TableState:
    """What a start depends on, from the result of reading :func:`start_reads`."""
    kvs = read.each(get.key for get in start_reads(keys, request))
    table, run_ops, next_instance, known, pause, head, watermarks, *indexes = kvs
    if not table.exists:
        raise errors.TableNotFound.named(keys.name)
    index = indexes[0] if indexes and indexes[0].exists else None
    return TableState(
        record=decode(table.value, TableRecord, table.key),
        head=decode(head.value, Head, head.key) if head.exists else None,
        recent_watermarks=watermarks,
        run_ops_kv=run_ops,
        next_instance_kv=next_instance,
        request=decode(known.value, records.RequestRecord, known.key) if known.exists else None,
        request_kv=known,
        revision=read.revision,
        pause=decode(pause.value, records.PauseRecord, pause.key) if pause.exists else None,
        index=decode(index.value, IndexRecord, index.key) if index is not None else None,
        planned_on=(table, head, watermarks, *indexes, *([run_ops] if request.sees_active else [])),
    )


def check_not_paused(state: TableState) -> None:
    """Raise :class:`~distop.errors.TablePaused` if nothing may start on the table."""
    if state.pause is not None:
        name = state.record.name
        raise errors.TablePaused(
            f"table {name!r} is paused{author_and_reason(state.pause)}",
            hint=f"resume it: distop table resume {name}",
            details={"table": name, "by": state.pause.by},
        )


def author_and_reason(record: records.PauseRecord | records.CancelRecord) -> str:
    """`` by <who>: <why>``, as far as known."""
    by = f" by {record.by}" if record.by else ""
    return f"{by}: {record.reason}" if record.reason else by


def answered_before(state: TableState, request: StartRequest) -> OperationId | None:
    """The operation this run has made before, if any; not a failed or cancelled one, unless this is a
    repetition of the call that started it, or one of both calls has said that it stays the answer.

    Raises :class:`~distop.errors.RunReused` when it belongs to another request.
    """
    if state.request is None:
        return None
    operation = OperationId.parse(state.request.operation)
    calls = {state.request.call, request.call}
    if state.request.outcome not in ("", records.SUCCESS) and len(calls) == 2 and "" not in calls:
        return None
    if state.request.digest != request.digest:
        raise errors.RunReused(
            f"run {request.run!r} was used for {operation} with another body",
            details={"operation": str(operation), "field": "run"},
        )
    return operation


async def with_rows_to_replace(
    client: EtcdClient, keys: TableKeys, request: StartRequest, state: TableState
) -> TableState:
    """The state for a start that :func:`answered_before` does not answer: the rows that an earlier operation
    of the request has in the table are replaced, also if others have failed to replace them since.

    A rollback afterwards moves the head, which the start compares.
    """
    if state.request is None or not state.request.done_by:
        return state
    with suppress(errors.RolledBack):
        name = await effective_operation(client, keys, request.run, state.request)
        return replace(state, instead_of=name)
    return state


def operation_in_the_way(
    run_ops: bytes, request: StartRequest, compatible: Callable[[str], bool]
) -> OperationId | None:
    """The running operation that prevents this start, or ``None``.

    Parameters
    ----------
    run_ops:
        The value of the table's ``runOps``; empty: nothing runs.
    compatible:
        Whether a *running* operation of the given other type tolerates the new one.
    """
    for running in running_operations(request.table, run_ops):
        same = running.type == request.type
        if (same and running.object == request.object) or (not same and not compatible(running.type)):
            return running
    return None


@dataclass(frozen=True, kw_only=True)
class FollowUpStart:
    """An operation that the finish of another one starts."""

    arg: records.OperationArg
    request: StartRequest
    next_instance_kv: etcd.KeyValue
    """The number of the next instance as it was read; the finishing transaction compares it."""
    planned_on: tuple[etcd.KeyValue, ...] = ()
    """The state it was planned on, read before the finishing transaction."""

    def txn(self, keys: TableKeys) -> etcd.Txn:
        """Its contribution to the finishing transaction, which writes ``runOps`` itself."""
        absent_request = etcd.absent(keys.request(self.request.run))
        planned = (etcd.unchanged(kv) for kv in self.planned_on)
        compares = (etcd.unchanged(self.next_instance_kv), absent_request, *planned)
        # Its table may be paused: also without jobs it waits then, and is sealed by the leader.
        return etcd.Txn(compares, _new_operation(keys, self.arg, records.RUNNING))


def start_txn(keys: TableKeys, state: TableState, arg: records.OperationArg) -> etcd.Txn:
    """The transaction itself, as a value."""
    return etcd.Txn(
        # What this writes makes each of the first three compares fail: sent twice, it happens once.
        compares=(
            etcd.unchanged(state.run_ops_kv),
            etcd.unchanged(state.next_instance_kv),
            etcd.unchanged(state.request_kv),
            etcd.absent(keys.pause),
            *(etcd.unchanged(kv) for kv in state.planned_on),
        ),
        then=(
            etcd.Put(keys.run_ops, slots_with(state.run_ops_kv.value, arg.id)),
            *_new_operation(keys, arg, first_state(arg), state.request),
        ),
        lane=keys.prefix,
    )


def first_state(arg: records.OperationArg) -> bytes:
    """``.state`` of an operation that is started on a table that is not paused: one without jobs is sealed
    from the start, since there is no result that it waits for."""
    return records.RUNNING if arg.partition_count or arg.dynamic else records.COMMITTING


def _new_operation(
    keys: TableKeys, arg: records.OperationArg, state: bytes, before: records.RequestRecord | None = None
) -> tuple[etcd.Op, ...]:
    """All keys of a new operation, except ``runOps``; ``before``: the existing record of its request."""
    operation = arg.id
    op_keys = keys.operation(operation)
    return (
        etcd.Put(keys.next_instance(operation.type), str(operation.instance + 1).encode()),
        etcd.Put(op_keys.arg, encode(arg)),
        etcd.Put(op_keys.state, state),
        *remembered(keys, arg, before),
        *index_puts(op_keys, waits=state == records.RUNNING),
        *operation_puts(keys, arg),
    )


async def start(
    client: EtcdClient,
    keys: TableKeys,
    request: StartRequest,
    make_arg: Callable[[TableState], Awaitable[records.OperationArg]],
    *,
    compatible: Callable[[str], bool],
    guess: etcd.TxnResult | None = None,
) -> Started:
    """Start an operation, or find the one that this request has started before.

    Parameters
    ----------
    make_arg:
        Makes the operation's argument for a state of the table: it plans if :attr:`TableState.planned_on`
        differs from that of its last plan.
    guess:
        What reading :func:`start_reads` most likely gives: saves the read if it does, and refuses nothing.

    Raises
    ------
    IncompatibleOperation
        An incompatible operation is running; the error names it.
    RunReused, RolledBack, TableNotFound, TablePaused, ArgumentTooLarge
        Nothing was written.
    OutcomeUnknown
        etcd stopped answering half-way; repeating the same request is safe.
    Exhausted
        The table changes faster than the operation can be planned. Nothing was written.
    """

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, Started]:
        try:
            return await decide_on(table_state(keys, request, read))
        except errors.DistopError as error:
            if read is not guess:
                raise
            now = await client.read_at_once(reads)
            if now.results == read.results and not isinstance(error, errors.Compacted):
                raise  # it was right
        return await decide_on(table_state(keys, request, now))

    async def decide_on(now: TableState) -> tuple[etcd.Txn | None, Started]:
        try:
            known = answered_before(now, request)
        except errors.RunReused:
            if now.request is not None and now.request.outcome == records.SUCCESS and not request.again_of:
                await effective_operation(client, keys, request.run, now.request)
            raise
        if known is not None:
            assert now.request is not None
            if now.request.outcome != records.SUCCESS:
                return None, Started(operation=known, request=now.request)
            try:
                name = await effective_operation(client, keys, request.run, now.request)
            except errors.RolledBack:
                if request.again_of != now.request.operation:
                    raise
            else:
                if request.again_of != name:
                    return None, Started(operation=OperationId.parse(name), request=now.request)
        now = await with_rows_to_replace(client, keys, request, now)
        check_not_paused(now)
        if (other := operation_in_the_way(now.run_ops_kv.value, request, compatible)) is not None:
            raise errors.IncompatibleOperation(
                f"{request.type} on {request.table!r} cannot start while {other} is running",
                details={"operation": str(other), "table": request.table},
            )
        arg = await make_arg(now)
        txn = start_txn(keys, now, arg)
        if txn.size() > etcd.MAX_REQUEST_BYTES:
            raise errors.ArgumentTooLarge(
                f"the operation's argument takes {txn.size():,} bytes, "
                f"etcd allows {etcd.MAX_REQUEST_BYTES:,}",
                details={"field": "argument"},
            )
        reached("start.before")
        return txn, Started(operation=arg.id, arg=arg, state=now, txn=txn)

    reads = start_reads(keys, request)
    subject, replied = f"table {keys.name!r}", lambda: reached("start.after")
    try:
        started, revision = await update(client, reads, decide, subject=subject, first=guess, replied=replied)
    except errors.OutcomeUnknown as error:
        error.details.setdefault("run", request.run)
        raise
    return replace(started, revision=revision)


def slots_with(run_ops: bytes, operation: OperationId) -> bytes:
    """The new value of ``runOps`` once ``operation`` has started."""
    slots = decode_run_ops(run_ops)
    slots[operation.type] = [*slots.get(operation.type, []), operation.slot]
    return encode_plain(slots)


def slots_without(run_ops_kv: etcd.KeyValue, operation: OperationId) -> bytes | None:
    """The new value of ``runOps`` once ``operation`` is over; ``None`` when nothing is left in it."""
    run_ops = decode_run_ops(run_ops_kv.value)
    left: Collection[str] = [slot for slot in run_ops.get(operation.type, []) if slot != operation.slot]
    if left:
        run_ops[operation.type] = list(left)
    else:
        run_ops.pop(operation.type, None)
    return encode_plain(run_ops) if run_ops else None
