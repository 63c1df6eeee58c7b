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
    Change,
    CollectKeys,
    Finding,
    key_without_lease,
    text,
)
from distop.coordinator.doctor.reading import OperationSeen, TableSeen
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


def check_table(seen: TableSeen) -> list[Finding]:
    """All contradictions among the keys of one table."""
    found = [*_records(seen), *_run_ops(seen), *_instances(seen), *_history(seen)]
    for one in seen.operations.values():
        found += _operation(seen, one)
    return found


# -- records -----------------------------------------------------------------------------------------


def _records(seen: TableSeen) -> Iterator[Finding]:
    for kv in (seen.table, seen.head, seen.watermarks, seen.run_ops):
        if kv.exists and (why := why_unreadable(seen.keys.keyspace, kv)):
            yield seen.unreadable(kv.key, why)
    for key, why in seen.unparsed.items():
        yield seen.unreadable(key, why)
    left = seen.own_keys or any(one.keys_count for one in seen.operations.values())
    if left and not (seen.table.exists or seen.dropped.exists):
        yield seen.finding(
            "KEYS_WITHOUT_TABLE",
            persists_s=MOVES_S,
            sentence=f"keys of table {seen.name!r} exist, but its record {text(seen.keys.table)} is missing",
            remedy="create the table again with the same location, or remove the keys below "
            f"{text(seen.keys.prefix)}",
        )
    yield from _entry(seen)
    for kv in (seen.coordinator, *(one.word("runner") for one in seen.operations.values())):
        if kv.exists and not kv.lease:
            yield key_without_lease(kv, table=seen.name)
    for one in seen.operations.values():
        for kv in one.leaseless:
            yield key_without_lease(kv, table=seen.name, operation=str(one.id))


def _entry(seen: TableSeen) -> Iterator[Finding]:
    """The index of tables must name exactly those with a record."""
    table, entry = seen.table, seen.entry
    same = unchanged(table), unchanged(entry)
    if table.exists and not entry.exists:
        yield seen.finding(
            "TABLE_NOT_LISTED",
            sentence=f"the index of tables does not name {seen.name!r}: no listing shows it",
            remedy=f"{DOCTOR} adds the entry",
            fix=Change("added the index entry", Txn(same, (Put(entry.key, b"{}"),))),
        )
    elif entry.exists and not table.exists:
        yield seen.finding(
            "ENTRY_WITHOUT_TABLE",
            sentence=f"the index of tables names {seen.name!r}, which does not exist",
            remedy=f"{DOCTOR} removes the entry",
            fix=Change("removed the index entry", Txn(same, (DeleteRange(entry.key),))),
        )


# -- the index, runOps, the keys of operations -------------------------------------------------------


def _operation(seen: TableSeen, one: OperationSeen) -> Iterator[Finding]:
    name, state, arg = str(one.id), one.state, one.word("arg")
    for key, why in one.unreadable.items():
        yield seen.unreadable(key, why, name)
    if not one.keys_count:
        gone: tuple[Op, ...] = (DeleteRange(one.active.key),)
        yield seen.finding(
            "INDEX_WITHOUT_OPERATION",
            sentence=f"the index of active operations names {name}, which has no key",
            remedy=f"{DOCTOR} removes the entry; until then a coordinator leads the table for nothing",
            fix=Change(
                "removed the index entry",
                Txn((unchanged(one.active), absent(arg.key), absent(state.key)), gone),
            ),
            operation=name,
        )
        return
    if state.exists:
        if state.value not in (RUNNING, COMMITTING, ABORTING):
            yield seen.finding(
                "UNKNOWN_STATE",
                sentence=f"{name} is {text(state.value)!r}, which this version does not know",
                remedy=UPGRADE,
                operation=name,
            )
        if not arg.exists:
            yield seen.finding(
                "OPERATION_WITHOUT_ARGUMENT",
                sentence=f"{name} is {text(state.value)}, but {text(arg.key)} is missing: "
                "no leader can drive it",
                remedy="restore the argument from a backup; or give the operation up by removing "
                f"{text(state.key)}, and let {DOCTOR} remove the rest",
                operation=name,
            )
        if one.id in seen.history:
            yield seen.finding(
                "ENDED_OPERATION_WITH_STATE",
                sentence=f"{name} has ended according to the history, but is {text(state.value)}",
                remedy="was etcd restored from a backup, or written to by hand? look at the history entry; "
                f"if it is right, remove {text(state.key)}",
                operation=name,
            )
        yield from _missing_in_run_ops(seen, one)
    elif arg.exists and one.id not in seen.history:
        yield seen.finding(
            "OPERATION_WITHOUT_STATE",
            sentence=f"{name} has an argument, but neither a state nor an entry in the history: "
            f"{text(state.key)} was removed by hand",
            remedy="its leader removes its keys and keeps its files; start the operation again",
            operation=name,
        )
    yield from _missing_in_index(seen, one)


def _missing_in_index(seen: TableSeen, one: OperationSeen) -> Iterator[Finding]:
    """Leaders ignore operations that the index does not name."""
    if one.active.exists:
        return
    arg, state = one.word("arg"), one.state
    if arg.exists or state.exists:
        entry = Put(one.active.key, encode(ActiveRecord(type=one.id.type)))
        yield seen.finding(
            "OPERATION_NOT_INDEXED",
            sentence=f"{one.id} has keys, but the index of active operations does not name it: "
            "no leader will drive it",
            remedy=f"{DOCTOR} adds the entry; the table's leader then continues",
            fix=Change(
                "added the index entry", Txn((absent(entry.key), unchanged(arg), unchanged(state)), (entry,))
            ),
            operation=one.id,
        )
        return
    # Instance numbers are never reused, so the remaining keys of an ended one belong to no operation.
    started = one.id.instance < _next_instance(seen, one.id.type)
    yield seen.finding(
        "LEFTOVER_KEYS",
        sentence=f"{one.keys_count:,} keys of {one.id} exist without the operation, "
        f"such as {text(one.newest.key)}",
        remedy=f"{DOCTOR} removes them" if started else f"remove the keys below {text(one.keys.prefix)}",
        fix=CollectKeys(f"removed the keys of {one.id}", one.id) if started else None,
        operation=one.id,
    )


def _slots(seen: TableSeen) -> RunOps:
    try:
        return decode_run_ops(seen.run_ops.value)
    except CorruptRecord:
        return {}


def _run_ops(seen: TableSeen) -> Iterator[Finding]:
    """``runOps`` must name exactly the operations that have a state."""
    for type_name, slots in _slots(seen).items():
        for slot in slots:
            try:
                operation = OperationId.from_slot(seen.name, type_name, slot)
            except (ValueError, InvalidName):
                yield seen.unreadable(seen.run_ops.key, f"{slot!r} is not an operation")
                continue
            one = seen.operations.get(operation)
            if one is not None and one.state.exists:
                continue
            left = slots_without(seen.run_ops, operation)
            then: Op = DeleteRange(seen.run_ops.key) if left is None else Put(seen.run_ops.key, left)
            state = absent(seen.keys.operation(operation).state)
            yield seen.finding(
                "RUNOPS_WITHOUT_OPERATION",
                operation=str(operation),
                sentence=f"{text(seen.run_ops.key)} names {operation}, which does not run: "
                "operations that are not compatible with it cannot start",
                remedy=f"{DOCTOR} removes it",
                fix=Change("removed it from runOps", Txn((unchanged(seen.run_ops), state), (then,))),
            )


def _missing_in_run_ops(seen: TableSeen, one: OperationSeen) -> Iterator[Finding]:
    slots = _slots(seen)
    if one.id.slot in slots.get(one.id.type, []):
        return
    slots[one.id.type] = [*slots.get(one.id.type, []), one.id.slot]
    yield seen.finding(
        "OPERATION_NOT_IN_RUNOPS",
        operation=str(one.id),
        sentence=f"{one.id} is {text(one.state.value)}, but {text(seen.run_ops.key)} does not name it: "
        "operations that are not compatible with it may start",
        remedy=f"{DOCTOR} adds it",
        fix=Change(
            "added it to runOps",
            Txn(
                (unchanged(seen.run_ops), unchanged(one.state)), (Put(seen.run_ops.key, encode_plain(slots)),)
            ),
        ),
    )


# -- numbers and history -----------------------------------------------------------------------------


def _next_instance(seen: TableSeen, type_name: str) -> int:
    kv = seen.next_instances.get(type_name)
    try:
        return int(kv.value) if kv is not None else 1
    except ValueError:
        return 1


def _instances(seen: TableSeen) -> Iterator[Finding]:
    """Instance numbers are never reused: many invariants depend on it."""
    highest: dict[str, int] = {}
    known = [*seen.history, *(one.id for one in seen.operations.values() if one.word("arg").exists)]
    for operation in known:
        highest[operation.type] = max(highest.get(operation.type, 0), operation.instance)
    for type_name, number in sorted(highest.items()):
        if _next_instance(seen, type_name) > number:
            continue
        key = seen.keys.next_instance(type_name)
        standing = seen.next_instances.get(type_name, KeyValue.missing(key))
        yield seen.finding(
            "INSTANCE_NUMBER_BEHIND",
            persists_s=MOVES_S,
            subject=type_name,
            sentence=f"{text(key)} is {text(standing.value) or 'missing'}, and {type_name} {number} exists:"
            " a number would be reused",
            remedy=f"{DOCTOR} sets it to {number + 1}",
            fix=Change(
                f"set it to {number + 1}", Txn((unchanged(standing),), (Put(key, str(number + 1).encode()),))
            ),
        )


def _history(seen: TableSeen) -> Iterator[Finding]:
    for operation, kv in seen.history.items():
        try:
            record = decode(kv.value, HistoryRecord, kv.key)
        except CorruptRecord as error:
            yield seen.unreadable(kv.key, error.message, str(operation))
            continue
        if not record.outcome or not record.finished_at:
            lacks = "no outcome" if not record.outcome else "no end"
            yield seen.finding(
                "HISTORY_WITHOUT_OUTCOME",
                operation=str(operation),
                sentence=f"{text(kv.key)} says of {operation} {lacks}",
                remedy="it was written by hand or by another program; the table shows how it ended",
            )


def check_schedules(seen: TableSeen) -> Iterator[Finding]:
    """Problems of a table's schedules."""
    for kv in seen.schedules:
        if why := why_unreadable(seen.keys.keyspace, kv):
            yield seen.unreadable(kv.key, why)
    agenda, table = seen.agenda, seen.table
    if not agenda.exists:
        if seen.schedules and table.exists:
            names = ", ".join(name for name, _ in named(seen.schedules[:3], partial(name_in, seen.keys)))
            added = Txn((absent(agenda.key), unchanged(table)), (looked_at_once(agenda),))
            yield seen.finding(
                "SCHEDULES_NOT_INDEXED",
                sentence=f"table {seen.name!r} has schedules ({names}), but {text(agenda.key)} is "
                "missing: no leader examines them",
                remedy=f"{DOCTOR} adds the entry; the table's leader then continues",
                fix=Change("added the entry", added),
            )
        return
    if not table.exists:
        gone = Txn((unchanged(agenda), absent(table.key)), (DeleteRange(agenda.key),))
        yield seen.finding(
            "SCHEDULES_WITHOUT_TABLE",
            sentence=f"{text(agenda.key)} says when to look at the schedules of table {seen.name!r}, "
            "which does not exist",
            remedy=f"{DOCTOR} removes the entry",
            fix=Change("removed the entry", gone),
        )
        return
    if why := why_unreadable(seen.keys.keyspace, agenda):
        yield seen.unreadable(agenda.key, why)


def is_due(seen: TableSeen, now: float) -> bool:
    """Whether a leader must examine the schedules of a table."""
    try:
        due = agenda_of(seen.agenda).due
    except CorruptRecord:
        return False
    return seen.table.exists and due is not None and due <= now
