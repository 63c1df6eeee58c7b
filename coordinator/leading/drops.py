"""Finishing drops and renames whose callers have died: level-triggered, from the tombstones in etcd."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from distop.errors import DistopError
from distop.lake.cleanup.purge import leave_files
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.record import decode
from distop.metastore.records.table import DropRecord
from distop.metastore.tables.registry import finish_drop

log = logging.getLogger(__name__)

LOOK_EVERY_S = 10.0
"""Seconds between two checks. A tombstone that is present in two of them was abandoned, not just created."""

PURGING_S = 600.0
"""How long a caller may take to remove very many files before another process begins to remove them, too."""

AT_ONCE = 100
"""Most drops finished at a time; the others follow in turn, also after purges that hang."""

InThread: TypeAlias = Callable[..., Awaitable[Any]]
"""Runs blocking code for a table, as :meth:`Work.blocking`."""


async def finish_drops(client: EtcdClient, prefers_me: Callable[[str], bool], in_thread: InThread) -> None:
    """Finish abandoned drops and renames of tables that this coordinator should lead, until cancelled."""
    prefix = client.keyspace.tombstones
    looks: dict[tuple[bytes, int], int] = {}
    under_way: dict[bytes, asyncio.Task[None]] = {}
    turns = asyncio.Semaphore(AT_ONCE)
    try:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                tombstones = (await client.scan(prefix)).kvs
            except DistopError as error:
                log.warning("tombstones_not_read", extra={"error": str(error)})
                continue
            looks = {
                entry: looks.get(entry, 0) + 1 for entry in ((kv.key, kv.mod_revision) for kv in tombstones)
            }
            under_way = {key: task for key, task in under_way.items() if not task.done()}
            for kv in tombstones:
                if kv.key not in under_way:
                    seen_s = (looks[kv.key, kv.mod_revision] - 1) * LOOK_EVERY_S
                    under_way[kv.key] = asyncio.create_task(
                        _finish(client, kv, seen_s, prefers_me, in_thread, turns)
                    )
    finally:
        for task in under_way.values():
            task.cancel()
        await asyncio.gather(*under_way.values(), return_exceptions=True)


async def _finish(
    client: EtcdClient,
    kv: KeyValue,
    seen_s: float,
    prefers_me: Callable[[str], bool],
    in_thread: InThread,
    turns: asyncio.Semaphore,
) -> None:
    try:
        record = decode(kv.value, DropRecord, kv.key)
        if seen_s < (PURGING_S if record.purge else LOOK_EVERY_S) or not prefers_me(record.name):
            return
        in_turn = partial(in_thread, record.name, "removing the files of a dropped table", limit_s=PURGING_S)
        leave = partial(leave_files, in_thread=in_turn)
        async with turns:
            if (await client.get(kv.key)).mod_revision != kv.mod_revision:
                return  # finished meanwhile, by another process
            await finish_drop(client, client.keyspace.table(record.name), record, leave)
        log.info("drop_finished", extra={"table": record.name, "renamed_to": record.renamed_to})
    except Exception as error:  # of storage, or of etcd: the next check tries again
        log.warning(
            "drop_not_finished", extra={"key": kv.key.decode(errors="backslashreplace"), "error": str(error)}
        )
