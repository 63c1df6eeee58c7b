"""The gate that every call passes, in every protocol: authentication, and authorisation by the policy.

The policy is a record in etcd. It is watched, and read again periodically in case the watch is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from distop import errors
from distop.coordinator.access.authentication import Authentication, IdentityConfig, Proof
from distop.coordinator.access.callers import ALL, Caller, changed, held_by
from distop.coordinator.access.rights import RIGHTS, RightScope, claims, required
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.watch import watch
from distop.metastore.members.installation import GrantRecord, PolicyRecord, change_policy, read_policy
from distop.metastore.records.names import OperationId, check_table_name
from distop.metastore.tables.audit import Actor, Denials, acting, audit_put
from distop.operations.api import Role
from distop.operations.registry import Registry
from distop.process.loop import kept_running, log_failure

log = logging.getLogger(__name__)


REREAD_S = 1.0
"""Interval between reads, in case the watch is silent."""

STALE_S = 5.0
"""A policy that was read longer ago, as by a suspended process, is read again before use."""


BRIEFLY_S = 0.5
"""How long a call waits for that."""


class Policies:
    """The current policy; belongs to one event loop.

    Parameters
    ----------
    admins:
        Subjects that may do everything, if there is no policy: a new one begins with them.
    """

    def __init__(self, client: EtcdClient, admins: Sequence[str] = ()) -> None:
        self._client = client
        self._admins = tuple(admins)
        self._policy: PolicyRecord | None = None
        self._known = False
        self._broken: errors.CorruptRecord | None = None
        self._read_at = self._tried_at = float("-inf")

    @property
    def latest(self) -> PolicyRecord | None:
        """The policy that was read last; another object once it has changed."""
        return self._policy

    async def present(self) -> PolicyRecord | None:
        """The policy; ``None``: there is none, and every caller may do everything.

        Raises :class:`~distop.errors.DistopError` when it is unknown: then no caller may do anything.
        """
        now = time.monotonic()
        if not self._known:
            await self.read()
        elif now - max(self._read_at + STALE_S, self._tried_at + REREAD_S) > 0:
            # Without etcd the last one read applies: then nothing can be done or seen anyway.
            self._tried_at = now
            with contextlib.suppress(TimeoutError, errors.Unavailable):
                async with asyncio.timeout(BRIEFLY_S):
                    await self.read()
        if self._broken is not None:
            raise self._broken
        return self._policy

    async def read(self) -> None:
        """Read it; create one if there is none and admins are configured."""
        began = time.monotonic()
        try:
            policy = await read_policy(self._client)
        except errors.CorruptRecord as error:
            self._broken = error
            raise
        if policy is None and self._admins:
            policy = await self._begin()
        if began >= self._read_at:  # of two concurrent reads the later one counts
            self._read_at, self._known, self._broken = began, True, None
            if policy != self._policy:
                self._policy = policy

    async def run(self) -> None:
        """Watch it, until cancelled."""
        woken = asyncio.Event()
        watching = asyncio.create_task(kept_running("policy", partial(self._watch, woken)), name="policy")
        try:
            while True:
                woken.clear()
                try:
                    await self.read()
                except errors.DistopError as error:
                    log_failure(log, "policy_not_read", error, code=error.code)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REREAD_S):
                        await woken.wait()
        finally:
            watching.cancel()

    async def _watch(self, woken: asyncio.Event) -> None:
        async with aclosing(watch(self._client, self._client.keyspace.policy)) as changes:
            async for _ in changes:
                woken.set()

    async def _begin(self) -> PolicyRecord | None:
        grants = [GrantRecord(who=who, role="admin", tables=[ALL]) for who in self._admins]
        space, names = self._client.keyspace, ", ".join(self._admins)
        audit = audit_put(
            space, "grant", by="--admin", target=names, at=time.time(), reason="the first policy"
        )

        def begin(current: PolicyRecord | None) -> PolicyRecord | None:
            return changed(None, add=grants) if current is None else current

        policy = await change_policy(self._client, begin, uuid.uuid4().hex, audit)
        log.info("policy_begun", extra={"admins": names})
        return policy


REFUSALS = (errors.PermissionDenied, errors.TableNotFound, errors.OperationNotFound)
"""The message for a caller who may not do something. It is the same for things that do not exist."""


class Gate:
    """Lets calls pass, or raises the reason."""

    def __init__(
        self,
        policies: Policies,
        registry: Registry,
        config: IdentityConfig | None = None,
        denials: Denials | None = None,
    ) -> None:
        self.policies, self._registry = policies, registry
        self._denials = denials
        self._authentication = Authentication(config or IdentityConfig())

    @property
    def identifies_callers(self) -> bool:
        """Whether this coordinator can identify callers."""
        return self._authentication.is_set

    async def enter(self, method: str, request: Any, proof: Proof) -> Caller:
        """The caller, if it may make this call. Replaces the caller's name in the request by the verified
        one.

        Raises
        ------
        Unauthenticated
            The caller is unknown, and a policy requires one.
        PermissionDenied
            The caller may not do it, and may know that.
        NotFound
            The caller may not even see the object of the call.
        """
        who = _named(await self.caller(proof), request)
        acting.set(Actor(who.subject, who.claimed, who.address))
        try:
            check(who, method, request, self._registry)
        except REFUSALS as refusal:
            target = required(method, request, self._registry).name if method in RIGHTS else ""
            await self.denied(method.rpartition("/")[2], refusal, target=target)
            raise
        return who

    async def denied(self, action: str, refusal: errors.DistopError, *, target: str = "") -> None:
        """Log the denial and write it to the audit trail."""
        who = acting.get()
        fields = {"action": action, "subject": who.subject, "address": who.address, "code": refusal.code}
        log.info("call_denied", extra=fields)
        if self._denials is not None:
            await self._denials.record(action, by=who.claimed, target=target, reason=refusal.message)

    async def caller(self, proof: Proof) -> Caller:
        """Identify the caller and its rights: from now on this task records its actions as the caller's.

        Raises :class:`~distop.errors.Unauthenticated`; an invalid proof is written to the audit trail.
        """
        acting.set(Actor(address=proof.address))
        try:
            identity = await self._authentication.identity(proof)
        except errors.Unauthenticated as refusal:
            await self.denied("sign-in", refusal)
            raise
        policy = await self.policies.present()
        if identity is None:
            if self.identifies_callers:
                raise errors.Unauthenticated("this service requires authentication")
            if policy is not None:
                raise errors.Unauthenticated(
                    "a policy exists, but this coordinator cannot identify callers",
                    hint="start it with --token-file, --issuer or --tls-client-ca",
                )
            return Caller(address=proof.address)
        acting.set(Actor(identity.subject, address=proof.address))
        held = held_by(policy, identity.subject, identity.groups)
        return Caller(identity, address=proof.address, held=held)


def check(who: Caller, method: str, request: Any, registry: Registry) -> None:
    """Raise an error unless the caller may make this call."""
    if method not in RIGHTS:
        raise errors.PermissionDenied(f"the right for {method} is not defined")
    needed = required(method, request, registry)
    match needed.scope:
        case RightScope.CALLER:
            return
        case RightScope.VISIBLE:
            if not who.held.grants:
                raise denied(who, needed.role, "any table")
        case RightScope.EVERYTHING:
            if who.held.everywhere < needed.role:
                raise denied(who, needed.role, "all tables")
        case RightScope.OPERATION:
            operation = OperationId.parse(needed.name)
            hidden: errors.DistopError = errors.OperationNotFound(
                f"operation {operation} does not exist", details={"operation": str(operation)}
            )
            _check_table(who, needed.role, operation.table, hidden)
        case RightScope.TABLE:
            table = check_table_name(needed.name)
            hidden = errors.TableNotFound.named(table)
            _check_table(who, needed.role, table, hidden)
        case RightScope.NEW_TABLE:
            table = check_table_name(needed.name, "name")
            _check_table(who, needed.role, table, denied(who, needed.role, f"table {table!r}"))


def denied(who: Caller, role: Role, tables: str) -> errors.PermissionDenied:
    """The error for a missing role."""
    return errors.PermissionDenied(
        f"{who.subject!r} does not have the role {role.name.lower()} on {tables}",
        details={"subject": who.subject, "role": role.name.lower()},
    )


def seen_by(who: Caller, error: errors.DistopError) -> errors.DistopError:
    """The error as the caller may see it: without the names of tables that it may not see."""
    other = error.details.get("table") if isinstance(error, errors.LocationInUse) else None
    if other and not who.sees(other):
        message = "the location is the folder of another table, lies in one, or has one in it"
        return errors.LocationInUse(message, details={"field": "location"})
    return error


def _check_table(who: Caller, role: Role, table: str, hidden: errors.DistopError) -> None:
    if not who.sees(table):
        raise hidden
    if not who.may(role, table):
        raise denied(who, role, f"table {table!r}")


def _named(who: Caller, request: Any) -> Caller:
    """The caller with the name from the request; the request then gets the verified name instead."""
    claimed = ""
    for field in claims(request):
        claimed = getattr(request, field)
        if who.subject:
            setattr(request, field, who.subject)
    return Caller(who.identity, claimed, who.address, who.held)
