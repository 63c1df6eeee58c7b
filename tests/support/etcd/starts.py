"""Starting operations below the service: the transaction and nothing else."""

import secrets
from collections.abc import Callable
from typing import Any

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Txn
from distop.metastore.operations.starting import StartRequest, TableState, digest_of, start
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.locations import LocationClaim
from distop.metastore.tables.registry import table_puts


async def make_table(client: EtcdClient, name: str = "t") -> None:
    """A table's record, and its claim."""
    uuid = secrets.token_hex(4)
    record = TableRecord(name=name, location=f"file:///nowhere/{uuid}", uuid=uuid)
    claim = LocationClaim.of(client.keyspace, record)
    await client.txn(Txn(then=(*table_puts(client.keyspace.table(name), record), claim.put)))


async def make_tables(client: EtcdClient, count: int) -> list[str]:
    """Records of tables ``t0000``, ``t0001`` and so on; their names."""
    records = [TableRecord(name=f"t{n:04d}", location=f"file:///x/{n}") for n in range(count)]
    for first in range(0, count, 60):
        tables = records[first : first + 60]
        puts = [put for table in tables for put in table_puts(client.keyspace.table(table.name), table)]
        await client.txn(Txn(then=tuple(puts)))
    return [record.name for record in records]


async def begin(
    client: EtcdClient,
    *,
    table: str = "t",
    kind: str = "noop",
    object: str = "",
    run: str = "",
    call: str = "",
    body: Any = None,
    compatible: Callable[[str], bool] = lambda other: False,
    **arg: Any,
) -> OperationId:
    """Start an operation of ``table``; ``arg`` are fields of its :class:`OperationArg`."""
    request = StartRequest(
        table=table,
        type=kind,
        object=object,
        run=run or secrets.token_hex(8),
        digest=digest_of([table, kind, object, body]),
        call=call,
    )
    keys = client.keyspace.table(table)

    async def make_arg(now: TableState) -> OperationArg:
        given = {
            "run": request.run,
            "request_note": request.note(1.0),
            "started_at": 1.0,
            **arg,
        }
        given.setdefault("uuid", secrets.token_hex(6))
        return OperationArg(table=table, type=kind, object=object, instance=now.next_instance, **given)

    started = await start(client, keys, request, make_arg, compatible=compatible)
    return started.operation
