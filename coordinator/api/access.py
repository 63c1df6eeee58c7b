"""``AccessService``: access control."""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any

import grpc.aio

from distop.coordinator.access.callers import caller
from distop.coordinator.access.gate import Gate
from distop.coordinator.access.policy import changed, is_of
from distop.errors import PreconditionFailed
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members.installation import GrantRecord, PolicyRecord, change_policy
from distop.metastore.tables.audit import audit_put, prune_softly
from distop.operations.api import Role
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from distop.proto.json_text import to_json
from distop.proto.messages import plain

log = logging.getLogger(__name__)

MAX_AUDITED = 2_000
"""Characters of a change in the audit trail."""


class AccessService(distop_pb2_grpc.AccessServiceServicer):
    """Handlers of the calls that read and change the policy; stateless."""

    def __init__(self, client: EtcdClient, gate: Gate) -> None:
        self._client = client
        self._gate = gate

    async def ListGrants(  # noqa: N802 - the name of the RPC
        self, request: pb.ListGrantsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListGrantsResponse:
        return _response(await self._gate.policies.present())

    async def ChangeGrants(  # noqa: N802
        self, request: pb.ChangeGrantsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListGrantsResponse:
        if not self._gate.identifies_callers:
            raise PreconditionFailed(
                "this coordinator cannot identify callers: a policy would lock everyone out",
                hint="start it with --token-file, --issuer or --tls-client-ca",
            )
        add, remove = [[_record(grant) for grant in grants] for grants in (request.add, request.remove)]

        def change(current: PolicyRecord | None) -> PolicyRecord | None:
            return changed(current, add=add, remove=remove, replace=request.replace)

        space, call = self._client.keyspace, request.request_id or uuid.uuid4().hex
        target = to_json({"add": plain(request)["add"], "remove": plain(request)["remove"]}, "grants")
        action = "replace-grants" if request.replace else "change-grants"
        audit = audit_put(
            space,
            action,
            by=request.requested_by,
            target=", ".join(dict.fromkeys(grant.who for grant in (*add, *remove)))[:MAX_AUDITED],
            at=time.time(),
            reason=request.reason,
            request_id=call,
            argument=target if len(target) <= MAX_AUDITED else to_json({"grants": len(add)}, "grants"),
        )
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
