"""What must hold among the keys of a backlog and of paused things, and what does not progress. Pure.

``_backlog.`` names the backlogs that a leader must examine, ``_paused.`` what is paused: a missing entry is
as bad as one for something that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from distop.coordinator.backlog.policy import Backlog, Drop, InFlight, Publish, Rest, Waiting, decide
from distop.coordinator.doctor.findings import DOCTOR, Change, Finding, text
from distop.coordinator.doctor.liveness import Patience
from distop.coordinator.doctor.reading import TableSeen
from distop.errors import CorruptRecord, InvalidName
from distop.metastore.backlog.batches import (
    MAX_FAILED,
    RUNNING,
    WAITING,
    BatchRecord,
    OrderingRecord,
    ordering_of,
)
from distop.metastore.etcd.txn import Compare, DeleteRange, KeyValue, Op, Put, Txn, absent, unchanged
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import decode, encode


def check_backlog(seen: TableSeen, patience: Patience) -> list[Finding]:
    """Problems of a table's backlog, and reasons why it does not progress."""
    if not seen.table.exists:
        return list(_index_of_nothing(seen))
    found: list[Finding] = []
    try:
        ordering = ordering_of(seen.ordering)
    except CorruptRecord as error:
        return [seen.unreadable(seen.ordering.key, error.message)]
    heads: list[Waiting] = []
    for kv in seen.batches:
        try:
            name = kv.key[len(seen.keys.backlog_prefix) :].decode()
            heads.append(Waiting(name=name, record=decode(kv.value, BatchRecord, kv.key), kv=kv))
        except (CorruptRecord, UnicodeDecodeError) as error:
            found.append(seen.unreadable(kv.key, str(error)))
    if found:
        return found
    found += _marks(seen, ordering, heads)
    found += _rewritten(seen, ordering)
    found += _unordered(seen, ordering)
    found += _flight(seen, ordering, heads, patience)
    found += _index(seen, ordering, heads)
    found += _blocked(seen, ordering, {waiting.name for waiting in heads})
    return found


def check_pauses(seen: TableSeen) -> list[Finding]:
    """``_paused.`` names what is paused, and nothing else."""
    found: list[Finding] = []
    space = seen.keys.keyspace
    entries = {kv.key: kv for kv in seen.paused_index}
    own: list[tuple[bytes, str, KeyValue, str]] = [
        (space.paused_table(seen.name), f"table {seen.name!r}", seen.pause, "")
    ]
    own += [
        (space.paused_operation(one.id), str(one.id), one.word("pause"), str(one.id))
        for one in seen.operations.values()
    ]
    for key, what, pause, operation in own:
        entry = entries.pop(key, KeyValue.missing(key))
        if pause.exists and not entry.exists:
            found.append(
                seen.finding(
                    "PAUSE_NOT_INDEXED",
                    operation=operation,
                    sentence=f"{what} is paused, but the index of paused things does not name it: leaders "
                    "that watch the index go on with it",
                    remedy=f"{DOCTOR} adds the entry",
                    fix=Change("added the entry", Txn((unchanged(pause), absent(key)), (Put(key, b"{}"),))),
                )
            )
        elif entry.exists and not pause.exists:
            found.append(_held_by_nobody(seen, entry, what, operation, pause.key))
    for key, entry in entries.items():  # of operations without keys
        try:
            gone = space.paused_by(key)[1]
        except CorruptRecord as error:
            found.append(seen.unreadable(key, error.message))
            continue
        assert gone is not None  # the table's own entry is among the others
        pause_key = seen.keys.operation(gone).pause
        found.append(_held_by_nobody(seen, entry, str(gone), str(gone), pause_key))
    return found


def _held_by_nobody(seen: TableSeen, entry: KeyValue, what: str, operation: str, pause_key: bytes) -> Finding:
    return seen.finding(
        "PAUSE_INDEX_WITHOUT_PAUSE",
        operation=operation,
        subject=text(entry.key),
        sentence=f"the index of paused things names {what}, which is not paused: nothing starts on it",
        remedy=f"{DOCTOR} removes the entry",
        fix=Change(
            "removed the entry", Txn((unchanged(entry), absent(pause_key)), (DeleteRange(entry.key),))
        ),
    )


def _index_of_nothing(seen: TableSeen) -> Iterator[Finding]:
    if seen.backlog_index.exists:
        txn = Txn(
            (unchanged(seen.backlog_index), absent(seen.keys.table)), (DeleteRange(seen.backlog_index.key),)
        )
        yield seen.finding(
            "BACKLOG_INDEX_WITHOUT_TABLE",
            sentence=f"{text(seen.backlog_index.key)} requests a look at the backlog of table {seen.name!r}, "
            "which does not exist",
            remedy=f"{DOCTOR} removes the entry; until then a coordinator leads the table for nothing",
            fix=Change("removed the entry", txn),
        )


def _index(seen: TableSeen, ordering: OrderingRecord, heads: list[Waiting]) -> Iterator[Finding]:
    """The index must name the table if a leader can do something about its backlog."""
    following = decide(
        Backlog(
            ordering=ordering,
            ordering_kv=seen.ordering,
            index_kv=seen.backlog_index,
            heads=heads,
            paused=seen.pause.exists,
        )
    )
    if seen.backlog_index.exists or isinstance(following, Rest):
        return
    match following:
        case InFlight(operation):
            what = f"{operation} applies batches"
        case Publish(staged):
            what = f"batch {staged.batch!r} could be published"
        case Drop(staged):
            what = f"branch {staged.branch!r} is to be dropped"
        case _:
            what = f"batch {heads[0].name!r} could be applied" if heads else "batches are to be put back"
    yield seen.finding(
        "BACKLOG_NOT_INDEXED",
        sentence=f"{what}, but {text(seen.backlog_index.key)} is missing: "
        f"no leader examines the backlog of table {seen.name!r}",
        remedy=f"{DOCTOR} adds the entry; the table's leader then continues",
        fix=_looked_at(seen, "added the entry", (absent(seen.backlog_index.key), unchanged(seen.ordering))),
    )


def _flight(
    seen: TableSeen, ordering: OrderingRecord, heads: list[Waiting], patience: Patience
) -> Iterator[Finding]:
    if not ordering.running:
        return
    try:
        operation = OperationId.parse(ordering.running)
    except InvalidName as error:
        yield seen.unreadable(seen.ordering.key, error.message)
        return
    one = seen.operations.get(operation)
    if one is not None and one.state.exists:
        return
    taken = [waiting for waiting in heads if waiting.record.operation == ordering.running]
    yield seen.finding(
        "FLIGHT_WITHOUT_OPERATION",
        operation=ordering.running,
        persists_s=patience.hand_over_s,  # a leader repairs it at its next look
        sentence=f"the backlog of table {seen.name!r} waits for the end of {ordering.running}, "
        "which does not run: its keys were removed by hand, or etcd was restored from a backup",
        remedy=f"{DOCTOR} lets the backlog go on with the remaining batches of the operation",
        fix=_looked_at(
            seen,
            "the backlog goes on",
            (
                unchanged(seen.ordering),
                absent(seen.keys.operation(operation).state),
                *(unchanged(waiting.kv) for waiting in taken),
            ),
            Put(seen.ordering.key, encode(ordering.freed())),
            *(waiting.freed() for waiting in taken),
        ),
    )


def _marks(seen: TableSeen, ordering: OrderingRecord, heads: list[Waiting]) -> Iterator[Finding]:
    """Batches name the operation that applies them, which must be the one that the table names."""
    for waiting in heads:
        if waiting.record.operation in ("", ordering.running):
            continue
        yield seen.finding(
            "BATCH_WITHOUT_FLIGHT",
            operation=waiting.record.operation,
            subject=waiting.name,
            sentence=f"batch {waiting.name!r} names {waiting.record.operation} as its operation, "
            f"but the table names {ordering.running or 'none'}: the batch cannot be replaced",
            remedy=f"{DOCTOR} puts it back in the queue",
            fix=_looked_at(
                seen, "it waits again", (unchanged(waiting.kv), unchanged(seen.ordering)), waiting.freed()
            ),
        )


def _rewritten(seen: TableSeen, ordering: OrderingRecord) -> Iterator[Finding]:
    for batch in ordering.rewritten:
        yield seen.finding(
            "BATCH_REWRITTEN",
            subject=batch,
            sentence=f"batch {batch!r} of table {seen.name!r} was written again since it was applied: "
            "the table has its old rows",
            remedy=f"distop backlog replace {seen.name} {batch}",
        )


def _unordered(seen: TableSeen, ordering: OrderingRecord) -> Iterator[Finding]:
    """Batches without an order: those that have failed, and those whose operation does not run."""
    for block in ordering.failed:
        yield seen.finding(
            "BATCH_FAILED",
            subject=block.batch,
            sentence=f"batch {block.batch!r} of table {seen.name!r} has failed: {block.code}: {block.error}",
            remedy=f"remove the cause, then: distop backlog retry {seen.name} {block.batch}; or skip it",
        )
    prefix, waits = seen.keys.unordered(RUNNING), False
    for kv in seen.unordered:
        if kv.key.startswith(seen.keys.unordered(WAITING)):
            waits = True
        if not kv.key.startswith(prefix):
            continue
        batch = kv.key[len(prefix) :].decode(errors="replace")
        try:
            record = decode(kv.value, BatchRecord, kv.key)
            one = seen.operations.get(OperationId.parse(record.operation))
        except (CorruptRecord, InvalidName) as error:
            yield seen.unreadable(kv.key, error.message)
            continue
        if one is not None and one.state.exists:
            continue
        state = seen.keys.operation(OperationId.parse(record.operation)).state
        again = encode(msgspec.structs.replace(record, operation=""))
        yield seen.finding(
            "BATCH_WITHOUT_FLIGHT",
            operation=record.operation,
            subject=batch,
            sentence=f"batch {batch!r} names {record.operation} as its operation, which does not run: its "
            "keys were removed by hand, or etcd was restored from a backup",
            remedy=f"{DOCTOR} lets it be applied again",
            fix=_looked_at(
                seen,
                "it waits again",
                (unchanged(kv), absent(state)),
                DeleteRange(kv.key),
                Put(seen.keys.unordered(WAITING, batch), again),
            ),
        )
    if (
        waits
        and not seen.backlog_index.exists
        and not seen.pause.exists
        and not ordering.held_by
        and len(ordering.failed) < MAX_FAILED
    ):
        yield seen.finding(
            "BACKLOG_NOT_INDEXED",
            sentence=f"batches without an order wait, but {text(seen.backlog_index.key)} is missing: "
            f"no leader examines the backlog of table {seen.name!r}",
            remedy=f"{DOCTOR} adds the entry; the table's leader then continues",
            fix=_looked_at(seen, "added the entry", (absent(seen.backlog_index.key),)),
        )


def _blocked(seen: TableSeen, ordering: OrderingRecord, names: set[str]) -> Iterator[Finding]:
    block = ordering.blocked
    if block is not None and block.batch not in names and len(seen.batches) < seen.batches_limit:
        yield seen.finding(
            "BLOCKED_BY_NOTHING",
            sentence=f"table {seen.name!r} is blocked by batch {block.batch!r}, which is no longer queued",
            remedy=f"if the others may go on without it: distop backlog skip {seen.name} {block.batch}",
            subject="block",
        )
    elif block is not None:
        yield seen.finding(
            "BACKLOG_BLOCKED",
            sentence=f"batch {block.batch!r} blocks table {seen.name!r}: {block.code}: {block.error}",
            remedy=f"remove the cause, then: distop backlog retry {seen.name} {block.batch}; or skip it",
            subject="block",
        )
    elif ordering.awaiting or (seen.batches and ordering.gate != "open"):
        waits = f"approval of batch {ordering.awaiting!r}" if ordering.awaiting else "its gate to open"
        how = f"approve {seen.name} {ordering.awaiting}" if ordering.awaiting else f"open {seen.name}"
        if ordering.awaiting and ordering.staged is not None:
            waits += f", which is on branch {ordering.staged.branch}"
            how += f" --branch {ordering.staged.branch}"
        yield seen.finding(
            "BACKLOG_WAITS",
            sentence=f"the backlog of table {seen.name!r} waits for {waits}",
            remedy=f"nothing, unless it should go on: distop backlog {how}",
            subject="block",
        )


def _looked_at(seen: TableSeen, does: str, compares: tuple[Compare, ...], *ops: Op) -> Change:
    """Repair it, and make a leader look."""
    table = unchanged(seen.table)
    return Change(does, Txn((table, *compares), (Put(seen.backlog_index.key, b"{}"), *ops)))
