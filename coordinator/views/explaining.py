"""Why a table moves or does not, read afresh from etcd for one caller."""

from __future__ import annotations

from distop.coordinator.views.operations import from_history, member_message, read_operation
from distop.coordinator.views.why import Reason, why
from distop.errors import OperationNotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.records.keyspace import OperationId, prefix_end
from distop.metastore.records.model import HistoryRecord, MemberRecord, decode
from distop.proto import distop_pb2 as pb

LOOKED_AT = 3
"""Running operations that are looked at; the others are counted."""


async def explain(client: EtcdClient, table: pb.Table, *, now: float) -> Reason:
    """The answer for a table as it has just been read."""
    running = []
    for name in table.running[:LOOKED_AT]:
        try:
            message, _ = await read_operation(client, OperationId.parse(name))
        except OperationNotFound:
            continue  # it has ended since
        if not message.HasField("finished_at"):
            running.append(message)
    return why(
        running=running,
        leader=table.leader,
        members=await _members(client),
        last=await _last(client, table.name),
        now=now,
        also_running=max(0, len(table.running) - LOOKED_AT),
        table=table,
    )


async def _members(client: EtcdClient) -> list[pb.Member]:
    keyspace, members = client.keyspace, []
    for prefix, role in ((keyspace.coordinators, "coordinator"), (keyspace.executors, "executor")):
        found = (await client.scan(prefix)).kvs
        members += [member_message(decode(kv.value, MemberRecord, kv.key), role) for kv in found]
    return members


async def _last(client: EtcdClient, table: str) -> pb.Operation | None:
    """The operation that finished last."""
    prefix = client.keyspace.table(table).history_prefix
    page = await client.get_range(prefix, prefix_end(prefix), limit=1, newest_first=True)
    for kv in page.kvs:
        operation = client.keyspace.parse_history(kv.key)
        return from_history(operation, decode(kv.value, HistoryRecord, kv.key), kv.mod_revision)
    return None
