"""Schedules as tests look at them, and put their times into the past."""

import secrets
import time

import msgspec

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, Put, Txn, unchanged
from distop.metastore.records.record import decode, encode
from distop.metastore.tables.audit import read_audit
from distop.metastore.tables.schedules import ScheduleRecord, agenda_of, looked_at_once

YEARLY, LONG_AGO_S = "30 3 1 1 *", 800 * 86_400.0
"""No time of it comes while a test runs; two or three have, if nothing was decided for so long."""


async def schedule(client: EtcdClient, name: str, table: str = "t") -> ScheduleRecord:
    kv = await client.get(client.keyspace.table(table).schedule(name))
    return decode(kv.value, ScheduleRecord, kv.key)


async def backdate(client: EtcdClient, name: str, table: str = "t", *, anew: bool = True) -> None:
    """As if nothing had been decided for so long: its times since then have passed while nobody led.

    ``anew``: as a schedule that was added anew, whose times were never started.
    """
    keys = client.keyspace.table(table)
    while True:
        wanted = [Get(keys.schedule(name)), Get(keys.agenda)]
        read = await client.read_at_once(wanted)
        kv, agenda_kv = (read.single(index, get.key) for index, get in enumerate(wanted))
        record = decode(kv.value, ScheduleRecord, kv.key)
        past = msgspec.structs.replace(record, tick=time.time() - LONG_AGO_S)
        past.request = secrets.token_hex(8) if anew else record.request
        ops = (Put(kv.key, encode(past)), looked_at_once(agenda_kv))
        if (await client.txn(Txn((unchanged(kv), unchanged(agenda_kv)), ops))).succeeded:
            return


async def operations(client: EtcdClient, table: str = "t") -> list[str]:
    """All that were ever started, running or not, by their entries in the audit trail."""
    entries, _ = await read_audit(client, client.keyspace.table(table).audit_prefix, limit=500)
    return sorted(entry.record.target for entry in entries if entry.record.action == "start")


async def at_rest(client: EtcdClient, table: str = "t") -> bool:
    """Whether a leader has looked, and nothing was left to be decided."""
    agenda = agenda_of(await client.get(client.keyspace.table(table).agenda))
    return agenda.due is None or agenda.due > time.time()
