"""Whether each folder belongs to one table, and each claim to a table. Pure but for :func:`read_claims`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

from distop.coordinator.access.callers import caller
from distop.coordinator.doctor.findings import DOCTOR, Finding, RepairTxn, text, unreadable_record
from distop.coordinator.doctor.reading import ObservedTable
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import DeleteRange, Get, KeyValue, Txn, unchanged
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.names import prefix_end, unescape
from distop.metastore.records.record import readable
from distop.metastore.records.table import LocationRecord, TableRecord, ViewRecord
from distop.metastore.tables.locations import LocationClaim, owner_of, place_of

PAGE = 1000
AT_ONCE = 30
"""Claims read by one transaction, each with its table, the table's tombstone, and its view."""


@dataclass(frozen=True)
class ObservedClaim:
    """A claim at one revision, with the existing keys of its table."""

    claim: KeyValue
    location: str
    owner: LocationRecord | None
    """``None``: it cannot be read."""
    table: KeyValue
    dropped: KeyValue
    view: KeyValue
    """The view of that name: views claim locations, too."""


async def read_claims(client: EtcdClient) -> AsyncGenerator[ObservedClaim, None]:
    """All claims, in bounded pages."""
    space = client.keyspace
    start, end = space.locations, prefix_end(space.locations)
    while True:
        page = await client.get_range(start, end, limit=PAGE)
        for first in range(0, len(page.kvs), AT_ONCE):
            some = [(kv, owner_of(kv)) for kv in page.kvs[first : first + AT_ONCE]]
            names = ["" if owner is None else owner.table for _, owner in some]
            gets = [
                get
                for (kv, _), name in zip(some, names, strict=True)
                for get in (
                    Get(kv.key),
                    Get(space.table(name).table),
                    Get(space.dropped(name)),
                    Get(space.table(name).view),
                )
            ]
            read = await client.read_at_once(gets)
            for index in range(len(some)):
                kvs = [read.single(4 * index + at, gets[4 * index + at].key) for at in range(4)]
                if kvs[0].exists:
                    yield ObservedClaim(kvs[0], _place_of(space, kvs[0].key), owner_of(kvs[0]), *kvs[1:])
        if not page.more:
            return
        start = page.kvs[-1].key + b"\0"


def _place_of(space: Keyspace, key: bytes) -> str:
    """The location that is claimed; empty if that is none, which is reported among the keys."""
    try:
        return unescape(key[len(space.locations) :].decode())
    except UnicodeDecodeError:
        return ""


def check_claim(claim: ObservedClaim) -> Iterator[Finding]:
    """Problems of one claim."""
    key, owner = text(claim.claim.key), claim.owner
    if owner is None:
        yield unreadable_record(claim.claim.key, "it names no table")
        return
    if not claim.location:
        return
    record = table_record(claim.table)
    if claim.dropped.exists or (claim.table.exists and record is None):
        return  # its drop is not finished; or its record is unreadable, which the table's check reports
    if record is not None and record.uuid == owner.uuid and claim.location == place_of(record.location):
        return
    if claim.view.exists and _is_of_view(claim, owner):
        return
    seen_kvs = (claim.claim, claim.table, claim.dropped, claim.view)
    gone: Txn = Txn(tuple(map(unchanged, seen_kvs)), (DeleteRange(claim.claim.key),))
    yield Finding(
        code="CLAIM_WITHOUT_TABLE",
        table=owner.table,
        subject=key,
        sentence=f"{key} says that the folder belongs to table {owner.table!r}, which does not live there",
        remedy=f"{DOCTOR} removes the claim; until then no table can have the folder",
        fix=RepairTxn("removed the claim", gone),
    )


def check_location(table: ObservedTable) -> Iterator[Finding]:
    """Whether a table is the only one at its location, and has claimed it."""
    record = table_record(table.table)
    if record is None:
        return
    claim = LocationClaim.of(table.keys.keyspace, record)
    rivals = claim.rivals(table.claims)
    for kv in rivals:
        other = owner_of(kv)
        # The key of a claim tells where the other table lives.
        hidden = other is not None and not caller().sees(other.table)
        says = "another claim" if hidden else text(kv.key)
        owner = "another table" if hidden else f"table {other.table if other else '?'!r}"
        yield table.finding(
            "LOCATION_SHARED",
            subject=text(kv.key),
            sentence=f"table {table.name!r} lives at {record.location}, and {says} says that this folder, "
            f"one above it or one in it belongs to {owner}",
            remedy="remove no files of either; copy one of them into a folder of its own, then drop it here "
            "without --purge",
        )
    if not rivals and not any(claim.is_mine(kv) for kvs in table.claims for kv in kvs):
        txn = Txn((unchanged(table.table), *claim.free()), (claim.put,))
        yield table.finding(
            "LOCATION_NOT_CLAIMED",
            sentence=f"table {table.name!r} has no claim to {record.location}: another table could take it",
            remedy=f"{DOCTOR} adds the claim",
            fix=RepairTxn("added the claim", txn),
        )


def _is_of_view(claim: ObservedClaim, owner: LocationRecord) -> bool:
    view = readable(claim.view.value, ViewRecord)
    if view is None:
        return True  # its location is unknown
    return view.uuid == owner.uuid and claim.location == place_of(view.location)


def table_record(kv: KeyValue) -> TableRecord | None:
    """The record of a table; ``None`` if there is none, or it cannot be read."""
    return readable(kv.value, TableRecord)  # what cannot be read is reported among the records
