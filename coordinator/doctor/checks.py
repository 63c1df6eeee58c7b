"""What must hold among the keys of a table and of its schedules at every revision. Pure: a snapshot in,
findings out.

Transactions maintain each of these invariants: a contradiction at one revision is an error at first sight.
Only dropping and renaming a table take several transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from distop.coordinator.doctor.findings import (
    DOCTOR,
    UPGRADE,
    CollectKeys,
    Finding,
    RepairTxn,
    key_without_lease,
    text,
)
from distop.coordinator.doctor.reading import ObservedOperation, ObservedTable
from distop.coordinator.doctor.records import why_unreadable
from distop.errors import CorruptRecord, InvalidName
from distop.metastore.etcd.txn import DeleteRange, KeyValue, Op, Put, Txn, absent, named, unchanged
from distop.metastore.operations.starting import slots_without
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import ABORTING, COMMITTING, RUNNING, ActiveRecord, HistoryRecord
from distop.metastore.records.record import decode, encode, encode_plain
from distop.metastore.records.table import RunOps, decode_run_ops
from distop.metastore.tables.schedules import agenda_of, looked_at_once, name_in

MOVES_S = 2.0
"""How long dropping or renaming a table may take; both move keys in more than one transaction."""


def check_table(table: ObservedTable) -> list[Finding]:
    """All contradictions among the keys of one table."""
    findings = [*_records(table), *_run_ops(table), *_instances(table), *_history(table)]
    for operation in table.operations.values():
        findings += _operation(table, operation)
    return findings


# -- records -----------------------------------------------------------------------------------------


def _records(table: ObservedTable) -> Iterator[Finding]:
    for kv in (table.table, table.head, table.watermarks, table.run_ops):
        if kv.exists and (why := why_unreadable(table.keys.keyspace, kv)):
            yield table.unreadable(kv.key, why)
    for key, why in table.unparsed.items():
        yield table.unreadable(key, why)
    left = table.own_keys or any(operation.keys_count for operation in table.operations.values())
    if left and not (table.table.exists or table.dropped.exists):
        yield table.finding(
            "KEYS_WITHOUT_TABLE",
            persists_s=MOVES_S,
            sentence=f"keys of table {table.name!r} exist, but its record {text(table.keys.table)} "
            "is missing",
            remedy="create the table again with the same location, or remove the keys below "
            f"{text(table.keys.prefix)}",
        )
    yield from _entry(table)
    for kv in (table.coordinator, *(operation.word("runner") for operation in table.operations.values())):
        if kv.exists and not kv.lease:
            yield key_without_lease(kv, table=table.name)
    for operation in table.operations.values():
        for kv in operation.leaseless:
            yield key_without_lease(kv, table=table.name, operation=str(operation.id))


def _entry(observed: ObservedTable) -> Iterator[Finding]:
    """The index of tables must name exactly those with a record."""
    table, entry = observed.table, observed.entry
    same = unchanged(table), unchanged(entry)
    if table.exists and not entry.exists:
        yield observed.finding(
            "TABLE_NOT_LISTED",
            sentence=f"the index of tables does not name {observed.name!r}: no listing shows it",
            remedy=f"{DOCTOR} adds the entry",
            fix=RepairTxn("added the index entry", Txn(same, (Put(entry.key, b"{}"),))),
        )
    elif entry.exists and not table.exists:
        yield observed.finding(
            "ENTRY_WITHOUT_TABLE",
            sentence=f"the index of tables names {observed.name!r}, which does not exist",
            remedy=f"{DOCTOR} removes the entry",
            fix=RepairTxn("removed the index entry", Txn(same, (DeleteRange(entry.key),))),
        )


# -- the index, runOps, the keys of operations -------------------------------------------------------


def _operation(table: ObservedTable, operation: ObservedOperation) -> Iterator[Finding]:
    name, state, arg = str(operation.id), operation.state, operation.word("arg")
    for key, why in operation.unreadable.items():
        yield table.unreadable(key, why, name)
    if not operation.keys_count:
        gone: tuple[Op, ...] = (DeleteRange(operation.active.key),)
        yield table.finding(
            "INDEX_WITHOUT_OPERATION",
            sentence=f"the index of active operations names {name}, which has no key",
            remedy=f"{DOCTOR} removes the entry; until then a coordinator leads the table for nothing",
            fix=RepairTxn(
                "removed the index entry",
                Txn((unchanged(operation.active), absent(arg.key), absent(state.key)), gone),
            ),
            operation=name,
        )
        return
    if state.exists:
        if state.value not in (RUNNING, COMMITTING, ABORTING):
            yield table.finding(
                "UNKNOWN_STATE",
                sentence=f"{name} is {text(state.value)!r}, which this version does not know",
                remedy=UPGRADE,
                operation=name,
            )
        if not arg.exists:
            yield table.finding(
                "OPERATION_WITHOUT_ARGUMENT",
                sentence=f"{name} is {text(state.value)}, but {text(arg.key)} is missing: "
                "no leader can drive it",
                remedy="restore the argument from a backup; or give the operation up by removing "
                f"{text(state.key)}, and let {DOCTOR} remove the rest",
                operation=name,
            )
        if operation.id in table.history:
            yield table.finding(
                "ENDED_OPERATION_WITH_STATE",
                sentence=f"{name} has ended according to the history, but is {text(state.value)}",
                remedy="was etcd restored from a backup, or written to by hand? look at the history entry; "
                f"if it is right, remove {text(state.key)}",
                operation=name,
            )
        yield from _missing_in_run_ops(table, operation)
    elif arg.exists and operation.id not in table.history:
        yield table.finding(
            "OPERATION_WITHOUT_STATE",
            sentence=f"{name} has an argument, but neither a state nor an entry in the history: "
            f"{text(state.key)} was removed by hand",
            remedy="its leader removes its keys and keeps its files; start the operation again",
            operation=name,
        )
    yield from _missing_in_index(table, operation)


def _missing_in_index(table: ObservedTable, operation: ObservedOperation) -> Iterator[Finding]:
    """Leaders ignore operations that the index does not name."""
    if operation.active.exists:
        return
    arg, state = operation.word("arg"), operation.state
    if arg.exists or state.exists:
        entry = Put(operation.active.key, encode(ActiveRecord(type=operation.id.type)))
        yield table.finding(
            "OPERATION_NOT_INDEXED",
            sentence=f"{operation.id} has keys, but the index of active operations does not name it: "
            "no leader will drive it",
            remedy=f"{DOCTOR} adds the entry; the table's leader then continues",
            fix=RepairTxn(
                "added the index entry", Txn((absent(entry.key), unchanged(arg), unchanged(state)), (entry,))
            ),
            operation=operation.id,
        )
        return
    # Instance numbers are never reused, so the remaining keys of an ended one belong to no operation.
    started = operation.id.instance < _next_instance(table, operation.id.type)
    yield table.finding(
        "LEFTOVER_KEYS",
        sentence=f"{operation.keys_count:,} keys of {operation.id} exist without the operation, "
        f"such as {text(operation.newest.key)}",
        remedy=f"{DOCTOR} removes them"
        if started
        else f"remove the keys below {text(operation.keys.prefix)}",
        fix=CollectKeys(f"removed the keys of {operation.id}", operation.id) if started else None,
        operation=operation.id,
    )


def _slots(table: ObservedTable) -> RunOps:
    try:
        return decode_run_ops(table.run_ops.value)
    except CorruptRecord:
        return {}


def _run_ops(table: ObservedTable) -> Iterator[Finding]:
    """``runOps`` must name exactly the operations that have a state."""
    for type_name, slots in _slots(table).items():
        for slot in slots:
            try:
                operation = OperationId.from_slot(table.name, type_name, slot)
            except (ValueError, InvalidName):
                yield table.unreadable(table.run_ops.key, f"{slot!r} is not an operation")
                continue
            active = table.operations.get(operation)
            if active is not None and active.state.exists:
                continue
            left = slots_without(table.run_ops, operation)
            then: Op = DeleteRange(table.run_ops.key) if left is None else Put(table.run_ops.key, left)
            state = absent(table.keys.operation(operation).state)
            yield table.finding(
                "RUNOPS_WITHOUT_OPERATION",
                operation=str(operation),
                sentence=f"{text(table.run_ops.key)} names {operation}, which does not run: "
                "operations that are not compatible with it cannot start",
                remedy=f"{DOCTOR} removes it",
                fix=RepairTxn("removed it from runOps", Txn((unchanged(table.run_ops), state), (then,))),
            )


def _missing_in_run_ops(table: ObservedTable, operation: ObservedOperation) -> Iterator[Finding]:
    slots = _slots(table)
    if operation.id.slot in slots.get(operation.id.type, []):
        return
    slots[operation.id.type] = [*slots.get(operation.id.type, []), operation.id.slot]
    yield table.finding(
        "OPERATION_NOT_IN_RUNOPS",
        operation=str(operation.id),
        sentence=f"{operation.id} is {text(operation.state.value)}, but {text(table.run_ops.key)} does "
        "not name it: operations that are not compatible with it may start",
        remedy=f"{DOCTOR} adds it",
        fix=RepairTxn(
            "added it to runOps",
            Txn(
                (unchanged(table.run_ops), unchanged(operation.state)),
                (Put(table.run_ops.key, encode_plain(slots)),),
            ),
        ),
    )


# -- numbers and history -----------------------------------------------------------------------------


def _next_instance(table: ObservedTable, type_name: str) -> int:
    kv = table.next_instances.get(type_name)
    try:
        return int(kv.value) if kv is not None else 1
    except ValueError:
        return 1


def _instances(table: ObservedTable) -> Iterator[Finding]:
    """Instance numbers are never reused: many invariants depend on it."""
    highest: dict[str, int] = {}
    known = [
        *table.history,
        *(active.id for active in table.operations.values() if active.word("arg").exists),
    ]
    for operation in known:
        highest[operation.type] = max(highest.get(operation.type, 0), operation.instance)
    for type_name, number in sorted(highest.items()):
        if _next_instance(table, type_name) > number:
            continue
        key = table.keys.next_instance(type_name)
        current = table.next_instances.get(type_name, KeyValue.missing(key))
        yield table.finding(
            "INSTANCE_NUMBER_BEHIND",
            persists_s=MOVES_S,
            subject=type_name,
            sentence=f"{text(key)} is {text(current.value) or 'missing'}, and {type_name} {number} exists:"
            " a number would be reused",
            remedy=f"{DOCTOR} sets it to {number + 1}",
            fix=RepairTxn(
                f"set it to {number + 1}", Txn((unchanged(current),), (Put(key, str(number + 1).encode()),))
            ),
        )


def _history(table: ObservedTable) -> Iterator[Finding]:
    for operation, kv in table.history.items():
        try:
            record = decode(kv.value, HistoryRecord, kv.key)
        except CorruptRecord as error:
            yield table.unreadable(kv.key, error.message, str(operation))
            continue
        if not record.outcome or not record.finished_at:
            lacks = "no outcome" if not record.outcome else "no end"
            yield table.finding(
                "HISTORY_WITHOUT_OUTCOME",
                operation=str(operation),
                sentence=f"{text(kv.key)} says of {operation} {lacks}",
                remedy="it was written by hand or by another program; the table shows how it ended",
            )


def check_schedules(observed: ObservedTable) -> Iterator[Finding]:
    """Problems of a table's schedules."""
    for kv in observed.schedules:
        if why := why_unreadable(observed.keys.keyspace, kv):
            yield observed.unreadable(kv.key, why)
    agenda, table = observed.agenda, observed.table
    if not agenda.exists:
        if observed.schedules and table.exists:
            names = ", ".join(
                name for name, _ in named(observed.schedules[:3], partial(name_in, observed.keys))
            )
            added = Txn((absent(agenda.key), unchanged(table)), (looked_at_once(agenda),))
            yield observed.finding(
                "SCHEDULES_NOT_INDEXED",
                sentence=f"table {observed.name!r} has schedules ({names}), but {text(agenda.key)} is "
                "missing: no leader examines them",
                remedy=f"{DOCTOR} adds the entry; the table's leader then continues",
                fix=RepairTxn("added the entry", added),
            )
        return
    if not table.exists:
        gone = Txn((unchanged(agenda), absent(table.key)), (DeleteRange(agenda.key),))
        yield observed.finding(
            "SCHEDULES_WITHOUT_TABLE",
            sentence=f"{text(agenda.key)} says when to look at the schedules of table {observed.name!r}, "
            "which does not exist",
            remedy=f"{DOCTOR} removes the entry",
            fix=RepairTxn("removed the entry", gone),
        )
        return
    if why := why_unreadable(observed.keys.keyspace, agenda):
        yield observed.unreadable(agenda.key, why)


def is_due(table: ObservedTable, now: float) -> bool:
    """Whether a leader must examine the schedules of a table."""
    try:
        due = agenda_of(table.agenda).due
    except CorruptRecord:
        return False
    return table.table.exists and due is not None and due <= now
