"""The published indexes of a table: one key each, which names the current manifest."""

from __future__ import annotations

import logging

from distop.errors import CorruptRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.record import decode
from distop.metastore.records.table import IndexRecord

log = logging.getLogger(__name__)


async def read_indexes(client: EtcdClient, keys: TableKeys) -> list[IndexRecord]:
    """All indexes of a table that this version understands, by column."""
    found = []
    for kv in (await client.scan(keys.index_prefix)).kvs:
        try:
            found.append(decode(kv.value, IndexRecord, kv.key))
        except CorruptRecord as error:  # readers do without it
            log.warning("index_unreadable", extra={"table": keys.name, "error": str(error)})
    return found
