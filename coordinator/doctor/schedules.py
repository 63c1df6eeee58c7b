"""What must hold among the keys of a table's schedules. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from distop.coordinator.doctor.findings import DOCTOR, Change, Finding, text
from distop.coordinator.doctor.records import why_unreadable
from distop.coordinator.doctor.seen import TableSeen
from distop.errors import CorruptRecord
from distop.metastore.etcd.txn import Delete, Txn, absent, named, unchanged
from distop.metastore.tables.schedules import agenda_of, looked_at_once, name_in


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
        gone = Txn((unchanged(agenda), absent(table.key)), (Delete(agenda.key),))
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
