"""``ClusterService``: who is there, who leads what."""

from __future__ import annotations

from typing import Any

import grpc.aio

from distop.coordinator.views import timestamp
from distop.metastore.client import EtcdClient
from distop.metastore.records import LeaderRecord, MemberRecord, decode
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc


class ClusterService(distop_pb2_grpc.ClusterServiceServicer):
    """The handlers; stateless."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    async def ListMembers(  # noqa: N802 - the name of the RPC
        self, request: pb.ListMembersRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListMembersResponse:
        keyspace = self._client.keyspace
        response = pb.ListMembersResponse()
        for role, prefix in (("coordinator", keyspace.coordinators), ("executor", keyspace.executors)):
            for kv in (await self._client.scan(prefix)).kvs:
                member = decode(kv.value, MemberRecord, kv.key)
                response.members.append(
                    pb.Member(
                        id=member.id,
                        role=role,
                        address=member.address,
                        host=member.host,
                        pid=member.pid,
                        started_at=timestamp(member.started_at),
                        types=member.types,
                    )
                )
        return response

    async def ListLeaders(  # noqa: N802
        self, request: pb.ListLeadersRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListLeadersResponse:
        keyspace = self._client.keyspace
        index = await self._client.scan(keyspace.active, keys_only=True)
        response = pb.ListLeadersResponse()
        for table in sorted({keyspace.table_of_active(kv.key) for kv in index.kvs}):
            leader = await self._client.get(keyspace.table(table).coordinator)
            if leader.exists:
                record = decode(leader.value, LeaderRecord, leader.key)
                response.leaders.append(
                    pb.Leader(
                        table=table,
                        member=record.member,
                        address=record.address,
                        epoch=leader.create_revision,
                    )
                )
        return response
