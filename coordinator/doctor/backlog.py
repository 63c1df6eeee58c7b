"""What must hold among the keys of a backlog and of paused things, and what does not progress. Pure.

``_backlog.`` names the backlogs that a leader must examine, ``_paused.`` what is paused: a missing entry is
as bad as one for something that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from distop.coordinator.backlog.policy import Backlog, Drop, InFlight, Publish, Rest, Waiting, decide
from distop.coordinator.doctor.findings import DOCTOR, Finding, RepairTxn, text
from distop.coordinator.doctor.liveness import Patience
from distop.coordinator.doctor.reading import ObservedTable
from distop.coordinator.views.messages import ordering_message
from distop.coordinator.views.why import why_held
from distop.errors import CorruptRecord, InvalidName
from distop.metastore.backlog import batches
from distop.metastore.etcd.txn import Compare, DeleteRange, KeyValue, Op, Put, Txn, absent, unchanged
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import decode, encode


def check_backlog(table: ObservedTable, patience: Patience) -> list[Finding]:
    """Problems of a table's backlog, and reasons why it does not progress."""
    if not table.table.exists:
        return list(_index_of_nothing(table))
    findings: list[Finding] = []
    try:
        ordering = batches.ordering_of(table.ordering)
    except CorruptRecord as error:
        return [table.unreadable(table.ordering.key, error.message)]
    heads: list[Waiting] = []
    for kv in table.batches:
        try:
            name = kv.key[len(table.keys.backlog_prefix) :].decode()
            heads.append(Waiting(name=name, record=decode(kv.value, batches.BatchRecord, kv.key), kv=kv))
        except (CorruptRecord, UnicodeDecodeError) as error:
            findings.append(table.unreadable(kv.key, str(error)))
    if findings:
        return findings
    backlog = Backlog(
        ordering=ordering,
        ordering_kv=table.ordering,
        index_kv=table.backlog_index,
        heads=heads,
        paused=table.pause.exists,
    )
    findings += _marks(table, ordering, heads)
    findings += _rewritten(table, ordering)
    findings += _unordered(table, backlog)
    findings += _flight(table, ordering, heads, patience)
    findings += _index(table, backlog)
    findings += _held(table, ordering, [waiting.name for waiting in heads])
    return findings


def check_pauses(table: ObservedTable) -> list[Finding]:
    """``_paused.`` names what is paused, and nothing else."""
    findings: list[Finding] = []
    space = table.keys.keyspace
    entries = {kv.key: kv for kv in table.paused_index}
    own: list[tuple[bytes, str, KeyValue, str]] = [
        (space.paused_table(table.name), f"table {table.name!r}", table.pause, "")
    ]
    own += [
        (space.paused_operation(active.id), str(active.id), active.word("pause"), str(active.id))
        for active in table.operations.values()
    ]
    for key, subject, pause, operation in own:
        entry = entries.pop(key, KeyValue.missing(key))
        if pause.exists and not entry.exists:
            findings.append(
                table.finding(
                    "PAUSE_NOT_INDEXED",
                    operation=operation,
                    sentence=f"{subject} is paused, but the index of paused things does not name it: leaders "
                    "that watch the index go on with it",
                    remedy=f"{DOCTOR} adds the entry",
                    fix=RepairTxn(
                        "added the entry", Txn((unchanged(pause), absent(key)), (Put(key, b"{}"),))
                    ),
                )
            )
        elif entry.exists and not pause.exists:
            findings.append(_held_by_nobody(table, entry, subject, operation, pause.key))
    for key, entry in entries.items():  # of operations without keys
        try:
            gone = space.paused_by(key)[1]
        except CorruptRecord as error:
            findings.append(table.unreadable(key, error.message))
            continue
        assert gone is not None  # the table's own entry is among the others
        pause_key = table.keys.operation(gone).pause
        findings.append(_held_by_nobody(table, entry, str(gone), str(gone), pause_key))
    return findings


def _held_by_nobody(
    table: ObservedTable, entry: KeyValue, subject: str, operation: str, pause_key: bytes
) -> Finding:
    return table.finding(
        "PAUSE_INDEX_WITHOUT_PAUSE",
        operation=operation,
        subject=text(entry.key),
        sentence=f"the index of paused things names {subject}, which is not paused: nothing starts on it",
        remedy=f"{DOCTOR} removes the entry",
        fix=RepairTxn(
            "removed the entry", Txn((unchanged(entry), absent(pause_key)), (DeleteRange(entry.key),))
        ),
    )


def _index_of_nothing(table: ObservedTable) -> Iterator[Finding]:
    if table.backlog_index.exists:
        txn = Txn(
            (unchanged(table.backlog_index), absent(table.keys.table)),
            (DeleteRange(table.backlog_index.key),),
        )
        yield table.finding(
            "BACKLOG_INDEX_WITHOUT_TABLE",
            sentence=f"{text(table.backlog_index.key)} requests a look at the backlog of table "
            f"{table.name!r}, which does not exist",
            remedy=f"{DOCTOR} removes the entry; until then a coordinator leads the table for nothing",
            fix=RepairTxn("removed the entry", txn),
        )


def _index(table: ObservedTable, backlog: Backlog) -> Iterator[Finding]:
    """The index must name the table if a leader can do something about its backlog."""
    following, heads = decide(backlog), backlog.heads
    if table.backlog_index.exists or isinstance(following, Rest):
        return
    match following:
        case InFlight(operation):
            reason = f"{operation} applies batches"
        case Publish(staged):
            reason = f"batch {staged.batch!r} could be published"
        case Drop(staged):
            reason = f"branch {staged.branch!r} is to be dropped"
        case _:
            reason = f"batch {heads[0].name!r} could be applied" if heads else "batches are to be put back"
    yield table.finding(
        "BACKLOG_NOT_INDEXED",
        sentence=f"{reason}, but {text(table.backlog_index.key)} is missing: "
        f"no leader examines the backlog of table {table.name!r}",
        remedy=f"{DOCTOR} adds the entry; the table's leader then continues",
        fix=_looked_at(
            table, "added the entry", (absent(table.backlog_index.key), unchanged(table.ordering))
        ),
    )


def _flight(
    table: ObservedTable, ordering: batches.OrderingRecord, heads: list[Waiting], patience: Patience
) -> Iterator[Finding]:
    if not ordering.running:
        return
    try:
        operation = OperationId.parse(ordering.running)
    except InvalidName as error:
        yield table.unreadable(table.ordering.key, error.message)
        return
    active = table.operations.get(operation)
    if active is not None and active.state.exists:
        return
    taken = [waiting for waiting in heads if waiting.record.operation == ordering.running]
    yield table.finding(
        "FLIGHT_WITHOUT_OPERATION",
        operation=ordering.running,
        persists_s=patience.hand_over_s,  # a leader repairs it at its next look
        sentence=f"the backlog of table {table.name!r} waits for the end of {ordering.running}, "
        "which does not run: its keys were removed by hand, or etcd was restored from a backup",
        remedy=f"{DOCTOR} lets the backlog go on with the remaining batches of the operation",
        fix=_looked_at(
            table,
            "the backlog goes on",
            (
                unchanged(table.ordering),
                absent(table.keys.operation(operation).state),
                *(unchanged(waiting.kv) for waiting in taken),
            ),
            Put(table.ordering.key, encode(ordering.freed())),
            *(waiting.freed() for waiting in taken),
        ),
    )


def _marks(table: ObservedTable, ordering: batches.OrderingRecord, heads: list[Waiting]) -> Iterator[Finding]:
    """Batches name the operation that applies them, which must be the one that the table names."""
    for waiting in heads:
        if waiting.record.operation in ("", ordering.running):
            continue
        yield table.finding(
            "BATCH_WITHOUT_FLIGHT",
            operation=waiting.record.operation,
            subject=waiting.name,
            sentence=f"batch {waiting.name!r} names {waiting.record.operation} as its operation, "
            f"but the table names {ordering.running or 'none'}: the batch cannot be replaced",
            remedy=f"{DOCTOR} puts it back in the queue",
            fix=_looked_at(
                table, "it waits again", (unchanged(waiting.kv), unchanged(table.ordering)), waiting.freed()
            ),
        )


def _rewritten(table: ObservedTable, ordering: batches.OrderingRecord) -> Iterator[Finding]:
    for batch in ordering.rewritten:
        yield table.finding(
            "BATCH_REWRITTEN",
            subject=batch,
            sentence=f"batch {batch!r} of table {table.name!r} was written again since it was applied: "
            "the table has its old rows",
            remedy=f"distop batch replace {table.name} {batch}",
        )


def _unordered(table: ObservedTable, backlog: Backlog) -> Iterator[Finding]:
    """Batches without an order: those that have failed, and those whose operation does not run."""
    for block in backlog.ordering.failed:
        yield table.finding(
            "BATCH_FAILED",
            subject=block.batch,
            sentence=f"batch {block.batch!r} of table {table.name!r} has failed: {block.code}: {block.error}",
            remedy=f"remove the cause, then: distop batch retry {table.name} {block.batch}; or skip it",
        )
    prefix, waits = table.keys.unordered(batches.RUNNING), False
    for kv in table.unordered:
        if kv.key.startswith(table.keys.unordered(batches.WAITING)):
            waits = True
        if not kv.key.startswith(prefix):
            continue
        batch = kv.key[len(prefix) :].decode(errors="replace")
        try:
            record = decode(kv.value, batches.BatchRecord, kv.key)
            operation = table.operations.get(OperationId.parse(record.operation))
        except (CorruptRecord, InvalidName) as error:
            yield table.unreadable(kv.key, error.message)
            continue
        if operation is not None and operation.state.exists:
            continue
        state = table.keys.operation(OperationId.parse(record.operation)).state
        again = encode(msgspec.structs.replace(record, operation=""))
        yield table.finding(
            "BATCH_WITHOUT_FLIGHT",
            operation=record.operation,
            subject=batch,
            sentence=f"batch {batch!r} names {record.operation} as its operation, which does not run: its "
            "keys were removed by hand, or etcd was restored from a backup",
            remedy=f"{DOCTOR} lets it be applied again",
            fix=_looked_at(
                table,
                "it waits again",
                (unchanged(kv), absent(state)),
                DeleteRange(kv.key),
                Put(table.keys.unordered(batches.WAITING, batch), again),
            ),
        )
    if waits and not table.backlog_index.exists and not backlog.holds_unordered:
        yield table.finding(
            "BACKLOG_NOT_INDEXED",
            sentence=f"batches without an order wait, but {text(table.backlog_index.key)} is missing: "
            f"no leader examines the backlog of table {table.name!r}",
            remedy=f"{DOCTOR} adds the entry; the table's leader then continues",
            fix=_looked_at(table, "added the entry", (absent(table.backlog_index.key),)),
        )


def _held(table: ObservedTable, ordering: batches.OrderingRecord, names: list[str]) -> Iterator[Finding]:
    block = ordering.blocked
    if block is not None and block.batch not in names and len(table.batches) < table.batches_limit:
        yield table.finding(
            "BLOCKED_BY_NOTHING",
            sentence=f"table {table.name!r} is blocked by batch {block.batch!r}, which is no longer queued",
            remedy=f"if the others may go on without it: distop batch skip {table.name} {block.batch}",
            subject="block",
        )
        return
    message, first = ordering_message(table.name, ordering), next(iter(names), "")
    if (reason := why_held(table.name, message, first)) is not None:
        yield table.finding(
            "BACKLOG_WAITS" if block is None else "BACKLOG_BLOCKED",
            sentence=f"table {table.name!r}: {reason.sentence}",
            remedy=reason.remedy,
            subject="block",
        )


def _looked_at(observed: ObservedTable, does: str, compares: tuple[Compare, ...], *ops: Op) -> RepairTxn:
    """Repair it, and make a leader look."""
    table = unchanged(observed.table)
    return RepairTxn(does, Txn((table, *compares), (Put(observed.backlog_index.key, b"{}"), *ops)))
