"""``ClusterService``: members, leaders, the audit trail, and diagnosis; ``AccessService``: access control."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from distop.coordinator.access.callers import caller, changed, is_of
from distop.coordinator.access.gate import Gate
from distop.coordinator.api.calls import Context, audited, call_id
from distop.coordinator.doctor.findings import finding_message
from distop.coordinator.doctor.liveness import Patience
from distop.coordinator.doctor.records import remove_unreadable
from distop.coordinator.doctor.rounds import Doctor, Examination
from distop.coordinator.views.listing import (
    PageToken,
    check_table,
    continued_listing,
    fitting,
    no_token,
    page_of,
)
from distop.coordinator.views.messages import entry_message, member_message
from distop.coordinator.views.tables import read_member_messages
from distop.coordinator.work.work import Work
from distop.errors import PreconditionFailed
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, named
from distop.metastore.members.installation import GrantRecord, PolicyRecord, change_policy
from distop.metastore.members.registration import set_draining
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.names import check_table_name
from distop.metastore.records.record import readable
from distop.metastore.tables.audit import Cursor, prune_softly, read_audit
from distop.operations.api import Role
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from distop.proto.json_text import to_json
from distop.proto.messages import message_of, plain

MAX_AUDITED = 2_000
"""Characters of a change in the audit trail."""


class AccessService(distop_pb2_grpc.AccessServiceServicer):
    """Handlers of the calls that read and change the policy; stateless."""

    def __init__(self, client: EtcdClient, gate: Gate) -> None:
        self._client = client
        self._gate = gate

    async def ListGrants(self, request: pb.ListGrantsRequest, context: Context) -> pb.ListGrantsResponse:
        return _response(await self._gate.policies.present())

    async def ChangeGrants(self, request: pb.ChangeGrantsRequest, context: Context) -> pb.ListGrantsResponse:
        if not self._gate.identifies_callers:
            raise PreconditionFailed(
                "this coordinator cannot identify callers: a policy would lock everyone out",
                hint="start it with --token-file, --issuer or --tls-client-ca",
            )
        add, remove = [[_record(grant) for grant in grants] for grants in (request.add, request.remove)]

        def change(current: PolicyRecord | None) -> PolicyRecord | None:
            return changed(current, add=add, remove=remove, replace=request.replace)

        space, call = self._client.keyspace, call_id(request)
        target = to_json({"add": plain(request)["add"], "remove": plain(request)["remove"]}, "grants")
        action = "replace-grants" if request.replace else "change-grants"
        who = ", ".join(dict.fromkeys(grant.who for grant in (*add, *remove)))[:MAX_AUDITED]
        shown = target if len(target) <= MAX_AUDITED else to_json({"grants": len(add)}, "grants")
        audit = audited(space, action, request, who, at=time.time(), call=call, argument=shown)
        policy = await change_policy(self._client, change, call, audit)
        log.info("grants_changed", extra={"by": request.requested_by, "added": len(add)})
        await self._gate.policies.read()
        await prune_softly(self._client, space.audit_prefix)
        return _response(policy)


def _response(policy: PolicyRecord | None) -> pb.ListGrantsResponse:
    """All grants for an admin, otherwise the caller's own."""
    who = caller()
    groups = who.identity.groups if who.identity is not None else frozenset()
    everything = who.held.everywhere >= Role.ADMIN
    shown = [
        pb.Grant(who=grant.who, role=grant.role, tables=grant.tables)
        for grant in (policy.grants if policy is not None else ())
        if everything or is_of(grant, who.subject, groups)
    ]
    return pb.ListGrantsResponse(
        grants=shown, enforced=policy is not None, subject=who.subject, groups=sorted(groups)
    )


def _record(grant: pb.Grant) -> GrantRecord:
    return GrantRecord(who=grant.who, role=grant.role, tables=list(grant.tables))


log = logging.getLogger(__name__)

_ENTRY = re.compile(r"[0-9]{13}-[0-9a-f]{8}")
"""The id of an entry of the audit trail."""


class ClusterService(distop_pb2_grpc.ClusterServiceServicer):
    """The handlers; stateless."""

    def __init__(self, client: EtcdClient, work: Work) -> None:
        self._client = client
        self._work = work

    async def ListMembers(self, request: pb.ListMembersRequest, context: Context) -> pb.ListMembersResponse:
        return pb.ListMembersResponse(members=await read_member_messages(self._client))

    async def DrainCoordinator(self, request: pb.DrainCoordinatorRequest, context: Context) -> pb.Member:
        keyspace, action = self._client.keyspace, "undrain" if request.undo else "drain"
        audit = partial(audited, keyspace, action, request, at=time.time())
        record = await set_draining(self._client, request.member, audit, draining=not request.undo)
        log.info("coordinator_drained", extra={"member": record.id, "draining": record.draining})
        await prune_softly(self._client, keyspace.audit_prefix)
        return member_message(record, "coordinator")

    async def RemoveKey(self, request: pb.RemoveKeyRequest, context: Context) -> pb.RemoveKeyResponse:
        space, key, audit = self._client.keyspace, request.key, None
        if request.fix:
            audit = audited(space, "remove-key", request, key, at=time.time())
        reported = await remove_unreadable(self._client, key, audit)
        if audit is not None:
            await prune_softly(self._client, space.audit_prefix)
        return pb.RemoveKeyResponse(finding=None if reported is None else finding_message(reported))

    async def ListAudit(self, request: pb.ListAuditRequest, context: Context) -> pb.ListAuditResponse:
        keyspace = self._client.keyspace
        trails: tuple[bytes, ...] = (keyspace.audit_prefix, keyspace.denials_prefix)
        if request.table:
            keys = keyspace.table(check_table_name(request.table))
            trails = (keys.audit_prefix,)
            await check_table(self._client, keys.name)
        size, token = await page_of(self._client, request)
        if token.after and not _ENTRY.fullmatch(token.after):
            raise no_token()
        after = Cursor.parse(request.after or "0")
        with continued_listing():
            read, revision = await read_audit(
                self._client, *trails, limit=size, revision=token.revision, before=token.after, after=after
            )
        entries = fitting(list(map(entry_message, read)))
        response = pb.ListAuditResponse(entries=entries)
        if entries and (len(read) == size or len(entries) < len(read)):
            response.next_page_token = PageToken(revision, response.entries[-1].id).encode()
        return response

    async def ListLeaders(self, request: pb.ListLeadersRequest, context: Context) -> pb.ListLeadersResponse:
        keyspace = self._client.keyspace
        index = await self._client.scan(keyspace.active, keys_only=True)
        response = pb.ListLeadersResponse()
        sees = caller().sees
        tables = sorted(
            {
                operation.table
                for operation, _ in named(index.kvs, keyspace.parse_active)
                if sees(operation.table)
            }
        )
        gets = [Get(keyspace.table(table).coordinator) for table in tables]
        read = await self._client.read_many(gets)
        for number, (table, get) in enumerate(zip(tables, gets, strict=True)):
            leader = read.single(number, get.key)
            if leader.exists:
                record = readable(leader.value, LeaderRecord) or LeaderRecord(member="?")
                response.leaders.append(
                    message_of(pb.Leader, record, table=table, epoch=leader.create_revision)
                )
        return response

    async def Diagnose(
        self, request: pb.DiagnoseRequest, context: Context
    ) -> AsyncGenerator[pb.DiagnoseResponse, None]:
        table = check_table_name(request.table) if request.table else ""
        patience = Patience()
        if request.HasField("patience"):
            patience = Patience(hand_over_s=request.patience.ToNanoseconds() / 1e9)
        scope = Examination(
            table=table, deep=request.deep, fix=request.fix, patience=patience, by=request.requested_by
        )
        doctor = Doctor(self._client, self._work)
        async with aclosing(doctor.examine(scope)) as examined:
            async for progress in examined:
                yield pb.DiagnoseResponse(
                    findings=[finding_message(reported) for reported in progress.reported],
                    tables=progress.tables,
                    operations=progress.operations,
                    done=progress.done,
                )
