"""The index of tables, and the published indexes of a table.

There is one key per table below ``_tables.``, written and removed with the table's record. Listings read it
instead of the tables, which may have many keys. A published index is one key of its table, which names the
current manifest.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from distop.errors import CorruptRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Put, named
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import IndexRecord, TableRecord

log = logging.getLogger(__name__)

PAGE = 1000
"""Most names in one read."""


def table_puts(keys: TableKeys, record: TableRecord) -> tuple[Put, Put]:
    """The writes that create a table: its record, and its entry in the index."""
    return Put(keys.table, encode(record)), Put(keys.entry, b"{}")


def table_deletes(keys: TableKeys) -> tuple[Delete, Delete]:
    """The writes that remove a table."""
    return Delete(keys.table), Delete(keys.entry)


async def table_names(
    client: EtcdClient, *, after: str = "", revision: int = 0, limit: int = PAGE
) -> AsyncGenerator[tuple[list[str], int], None]:
    """Names of all tables in key order, after ``after``, and the revision (0: the present one), in lists of
    up to ``limit``. Lists may be empty."""
    keyspace = client.keyspace
    table_of = partial(keyspace.name_in, keyspace.tables)
    start = keyspace.table(after).entry + b"\0" if after else keyspace.tables
    pages = client.pages(start, prefix_end(keyspace.tables), revision=revision, keys_only=True, limit=limit)
    async with aclosing(pages):
        async for page in pages:
            yield [name for name, _ in named(page.kvs, table_of)], page.revision


async def read_indexes(client: EtcdClient, keys: TableKeys) -> list[IndexRecord]:
    """All indexes of a table that this version understands, by column."""
    found = []
    for kv in (await client.scan(keys.index_prefix)).kvs:
        try:
            found.append(decode(kv.value, IndexRecord, kv.key))
        except CorruptRecord as error:  # readers do without it
            log.warning("index_unreadable", extra={"table": keys.name, "error": str(error)})
    return found
