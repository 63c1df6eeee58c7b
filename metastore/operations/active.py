"""Operations of a table that still have keys: running, or ended and not collected yet."""

from __future__ import annotations

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.records.keyspace import TableKeys, escape
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import decode


async def active_operations(client: EtcdClient, keys: TableKeys) -> list[OperationArg]:
    """Their arguments.

    Raises :class:`~distop.errors.CorruptRecord` if one was started by a version that this one does not
    understand: the caller would take its files for nobody's.
    """
    prefix = keys.keyspace.active + escape(keys.name).encode() + b"."
    found = []
    for kv in (await client.scan(prefix, keys_only=True)).kvs:
        operation = keys.operation(keys.keyspace.parse_active(kv.key))
        arg = await client.get(operation.arg)
        if arg.exists:  # collected meanwhile, otherwise
            found.append(decode(arg.value, OperationArg, arg.key))
    return found
