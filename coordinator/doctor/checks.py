"""What must hold among the keys of a table at every revision. Pure: a snapshot in, findings out.

Each of these is kept by transactions: a contradiction at one revision is one, at the first look. Only
dropping and renaming a table take several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from distop.coordinator.doctor.findings import Change, CollectKeys, Finding, Severity
from distop.coordinator.doctor.reading import OperationSeen, TableSeen
from distop.errors import CorruptRecord, InvalidName
from distop.metastore.etcd.txn import Delete, KeyValue, Op, Put, Txn, absent, unchanged
from distop.metastore.operations.starting import slots_without
from distop.metastore.records.keyspace import OperationId
from distop.metastore.records.model import (
    ABORTING,
    COMMITTING,
    RUNNING,
    ActiveRecord,
    Head,
    HistoryRecord,
    RunOps,
    TableRecord,
    decode,
    decode_run_ops,
    decode_watermarks,
    encode,
    encode_plain,
)

DOCTOR = "distop doctor --fix"
MOVES_S = 2.0
"""How long dropping or renaming a table may take, which moves its keys in more than one transaction."""
UPGRADE = "upgrade distop where it is older; if nobody has written it by hand, keep the value and report it"


def check_table(seen: TableSeen) -> list[Finding]:
    """All contradictions among the keys of one table."""
    found = [*_records(seen), *_run_ops(seen), *_instances(seen), *_history(seen)]
    for one in seen.operations.values():
        found += _operation(seen, one)
    return found


# -- records -----------------------------------------------------------------------------------------


def _records(seen: TableSeen) -> Iterator[Finding]:
    kinds: list[tuple[KeyValue, Callable[[KeyValue], Any]]] = [
        (seen.table, lambda kv: decode(kv.value, TableRecord, kv.key)),
        (seen.head, lambda kv: decode(kv.value, Head, kv.key)),
        (seen.watermarks, lambda kv: decode_watermarks(kv.value)),
        (seen.run_ops, lambda kv: decode_run_ops(kv.value)),
    ]
    for kv, read in kinds:
        try:
            if kv.exists:
                read(kv)
        except CorruptRecord as error:
            yield _unreadable(seen, kv.key, error.message)
    if not seen.table.exists and (seen.own_keys or any(one.keys_count for one in seen.operations.values())):
        yield Finding(
            code="KEYS_WITHOUT_TABLE",
            persists_s=MOVES_S,
            severity=Severity.WARNING,
            table=seen.name,
            sentence=f"keys of table {seen.name!r} stand, and its record {_text(seen.keys.table)} does not",
            remedy="make the table again with the location it had, or remove the keys below "
            f"{_text(seen.keys.prefix)}",
        )
    for kv in (seen.coordinator, *(one.word("runner") for one in seen.operations.values())):
        if kv.exists and not kv.lease:
            yield _leaseless(seen, kv)
    for one in seen.operations.values():
        for kv in one.leaseless:
            yield _leaseless(seen, kv, str(one.id))


def _unreadable(seen: TableSeen, key: bytes, why: str, operation: str = "") -> Finding:
    return Finding(
        code="UNREADABLE_RECORD",
        severity=Severity.ERROR,
        table=seen.name,
        operation=operation,
        subject=_text(key),
        sentence=f"{_text(key)} cannot be read: {why}",
        remedy=UPGRADE,
    )


def _leaseless(seen: TableSeen, kv: KeyValue, operation: str = "") -> Finding:
    change = Change(f"removed {_text(kv.key)}", Txn((unchanged(kv),), (Delete(kv.key),)))
    return Finding(
        code="KEY_WITHOUT_LEASE",
        severity=Severity.ERROR,
        table=seen.name,
        operation=operation,
        subject=_text(kv.key),
        sentence=f"{_text(kv.key)} is bound to no lease: it would outlive whoever it names",
        remedy=f"{DOCTOR} removes it; who holds it finds that out by its next compare, and others go on",
        fix=change,
    )


# -- the index, runOps, the keys of operations -------------------------------------------------------


def _operation(seen: TableSeen, one: OperationSeen) -> Iterator[Finding]:
    name, state, arg = str(one.id), one.state, one.word("arg")
    given: dict[str, Any] = {"table": seen.name, "operation": name}
    if one.unreadable:
        yield _unreadable(seen, arg.key, one.unreadable, name)
    if not one.keys_count:
        gone: tuple[Op, ...] = (Delete(one.active.key),)
        yield Finding(
            code="INDEX_WITHOUT_OPERATION",
            severity=Severity.WARNING,
            sentence=f"the index of active operations names {name}, of which no key stands",
            remedy=f"{DOCTOR} removes the entry; until then a coordinator leads the table for nothing",
            fix=Change(
                "removed the index entry",
                Txn((unchanged(one.active), absent(arg.key), absent(state.key)), gone),
            ),
            **given,
        )
        return
    if state.exists:
        if state.value not in (RUNNING, COMMITTING, ABORTING):
            yield Finding(
                code="UNKNOWN_STATE",
                severity=Severity.WARNING,
                sentence=f"{name} is {_text(state.value)!r}, which this version does not know",
                remedy=UPGRADE,
                **given,
            )
        if not arg.exists:
            yield Finding(
                code="OPERATION_WITHOUT_ARGUMENT",
                severity=Severity.ERROR,
                sentence=f"{name} is {_text(state.value)}, and {_text(arg.key)} does not stand: "
                "nobody can drive it",
                remedy="put the argument back from a backup; or give the operation up by removing "
                f"{_text(state.key)}, and let {DOCTOR} remove the rest",
                **given,
            )
        if one.id in seen.history:
            yield Finding(
                code="ENDED_OPERATION_WITH_STATE",
                severity=Severity.ERROR,
                sentence=f"{name} stands in the history as ended, and is {_text(state.value)} all the same",
                remedy="was etcd restored from a backup, or written to by hand? look at the history entry; "
                f"if it is right, remove {_text(state.key)}",
                **given,
            )
        yield from _missing_in_run_ops(seen, one)
    elif arg.exists and one.id not in seen.history:
        yield Finding(
            code="OPERATION_WITHOUT_STATE",
            severity=Severity.ERROR,
            sentence=f"{name} has an argument, but neither a state nor an entry in the history: "
            f"somebody has removed {_text(state.key)}",
            remedy="its leader collects its keys and leaves its files; start what it was to do again",
            **given,
        )
    yield from _missing_in_index(seen, one)


def _missing_in_index(seen: TableSeen, one: OperationSeen) -> Iterator[Finding]:
    """Nobody looks at what the index does not name."""
    if one.active.exists:
        return
    given: dict[str, Any] = {"table": seen.name, "operation": str(one.id)}
    arg, state = one.word("arg"), one.state
    if arg.exists or state.exists:
        entry = Put(one.active.key, encode(ActiveRecord(type=one.id.type)))
        yield Finding(
            code="OPERATION_NOT_INDEXED",
            severity=Severity.ERROR,
            sentence=f"{one.id} has keys, and the index of active operations does not name it: "
            "nobody will drive it",
            remedy=f"{DOCTOR} adds the entry; the table's leader does the rest",
            fix=Change(
                "added the index entry", Txn((absent(entry.key), unchanged(arg), unchanged(state)), (entry,))
            ),
            **given,
        )
        return
    # The number of an operation is never used twice, so what is left of an ended one belongs to nobody.
    started = one.id.instance < _next_instance(seen, one.id.type)
    yield Finding(
        code="LEFTOVER_KEYS",
        severity=Severity.WARNING,
        sentence=f"{one.keys_count:,} keys of {one.id} stand without the operation, "
        f"such as {_text(one.newest.key)}",
        remedy=f"{DOCTOR} removes them" if started else f"remove the keys below {_text(one.keys.prefix)}",
        fix=CollectKeys(f"removed the keys of {one.id}", one.id) if started else None,
        **given,
    )


def _slots(seen: TableSeen) -> RunOps:
    try:
        return decode_run_ops(seen.run_ops.value)
    except CorruptRecord:
        return {}


def _run_ops(seen: TableSeen) -> Iterator[Finding]:
    """``runOps`` names the operations that have a state, and no others."""
    for type_name, slots in _slots(seen).items():
        for slot in slots:
            try:
                operation = OperationId.from_slot(seen.name, type_name, slot)
            except (ValueError, InvalidName):
                yield _unreadable(seen, seen.run_ops.key, f"{slot!r} is no operation")
                continue
            one = seen.operations.get(operation)
            if one is not None and one.state.exists:
                continue
            left = slots_without(seen.run_ops, operation)
            then: Op = Delete(seen.run_ops.key) if left is None else Put(seen.run_ops.key, left)
            state = absent(seen.keys.operation(operation).state)
            yield Finding(
                code="RUNOPS_WITHOUT_OPERATION",
                severity=Severity.ERROR,
                table=seen.name,
                operation=str(operation),
                sentence=f"{_text(seen.run_ops.key)} names {operation}, which does not run: "
                "operations that are not compatible with it cannot start",
                remedy=f"{DOCTOR} takes it out",
                fix=Change("took it out of runOps", Txn((unchanged(seen.run_ops), state), (then,))),
            )


def _missing_in_run_ops(seen: TableSeen, one: OperationSeen) -> Iterator[Finding]:
    slots = _slots(seen)
    if one.id.slot in slots.get(one.id.type, []):
        return
    slots[one.id.type] = [*slots.get(one.id.type, []), one.id.slot]
    yield Finding(
        code="OPERATION_NOT_IN_RUNOPS",
        severity=Severity.ERROR,
        table=seen.name,
        operation=str(one.id),
        sentence=f"{one.id} is {_text(one.state.value)}, and {_text(seen.run_ops.key)} does not name it: "
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
    """Numbers are never used twice: much rests on it."""
    highest: dict[str, int] = {}
    known = [*seen.history, *(one.id for one in seen.operations.values() if one.word("arg").exists)]
    for operation in known:
        highest[operation.type] = max(highest.get(operation.type, 0), operation.instance)
    for type_name, number in sorted(highest.items()):
        if _next_instance(seen, type_name) > number:
            continue
        key = seen.keys.next_instance(type_name)
        standing = seen.next_instances.get(type_name, KeyValue.missing(key))
        yield Finding(
            code="INSTANCE_NUMBER_BEHIND",
            persists_s=MOVES_S,
            severity=Severity.ERROR,
            table=seen.name,
            subject=type_name,
            sentence=f"{_text(key)} is {_text(standing.value) or 'missing'}, and {type_name} {number} exists:"
            " a number would be used twice",
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
            yield _unreadable(seen, kv.key, error.message, str(operation))
            continue
        if not record.outcome or not record.finished_at:
            lacks = "no outcome" if not record.outcome else "no end"
            yield Finding(
                code="HISTORY_WITHOUT_OUTCOME",
                severity=Severity.WARNING,
                table=seen.name,
                operation=str(operation),
                sentence=f"{_text(kv.key)} says of {operation} {lacks}",
                remedy="it was written by hand or by another program; how it ended shows in the table",
            )


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
