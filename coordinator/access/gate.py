"""The gate that every call passes, on every door: who makes it, and whether he may."""

from __future__ import annotations

import logging
from typing import Any

from distop.coordinator.access.authentication import Authentication, IdentityConfig, Proof
from distop.coordinator.access.callers import Caller
from distop.coordinator.access.following import Policies
from distop.coordinator.access.policy import held_by
from distop.errors import (
    DistopError,
    LocationInUse,
    OperationNotFound,
    PermissionDenied,
    TableNotFound,
    Unauthenticated,
)
from distop.metastore.records.keyspace import OperationId
from distop.metastore.records.names import check_table_name
from distop.metastore.tables.audit import Acting, acting
from distop.metastore.tables.denials import Denials
from distop.proto.rights import RIGHTS, Role, Scope, claims, required

log = logging.getLogger(__name__)

REFUSALS = (PermissionDenied, TableNotFound, OperationNotFound)
"""What a caller is told who may not do something. Of what is not there it is the same."""


class Gate:
    """Lets calls in, or raises why not."""

    def __init__(
        self, policies: Policies, config: IdentityConfig | None = None, denials: Denials | None = None
    ) -> None:
        self.policies = policies
        self._denials = denials
        self._authentication = Authentication(config or IdentityConfig())

    @property
    def tells_apart(self) -> bool:
        """Whether this coordinator has a way to know who calls."""
        return self._authentication.is_set

    async def enter(self, method: str, request: Any, proof: Proof) -> Caller:
        """The caller, who may make this call. Where it says who makes it, the verified name is put.

        Raises
        ------
        Unauthenticated
            Nobody knows who calls, and somebody must.
        PermissionDenied
            The caller may not do it, and may know that.
        NotFound
            The caller may not even see what it is done to.
        """
        who = _named(await self.caller(proof), request)
        acting.set(Acting(who.subject, who.claimed, who.address))
        try:
            check(who, method, request)
        except REFUSALS as refusal:
            what = required(method, request).name if method in RIGHTS else ""
            await self.denied(method.rpartition("/")[2], refusal, target=what)
            raise
        return who

    async def denied(self, action: str, refusal: DistopError, *, target: str = "") -> None:
        """Enter into the log and the audit trail that the caller was refused."""
        who = acting.get()
        told = {"action": action, "subject": who.subject, "address": who.address, "code": refusal.code}
        log.info("call_denied", extra=told)
        if self._denials is not None:
            await self._denials.record(action, by=who.claimed, target=target, reason=refusal.message)

    async def caller(self, proof: Proof) -> Caller:
        """Who it is, and what he may: what this task does from now on is recorded as his.

        Raises :class:`~distop.errors.Unauthenticated`; a proof that does not hold stands in the audit trail.
        """
        acting.set(Acting(address=proof.address))
        try:
            identity = await self._authentication.identity(proof)
        except Unauthenticated as refusal:
            await self.denied("sign-in", refusal)
            raise
        policy = await self.policies.present()
        if identity is None:
            if self.tells_apart:
                raise Unauthenticated("this service wants to know who calls")
            if policy is not None:
                raise Unauthenticated(
                    "a policy stands, and this coordinator has no way to know who calls",
                    hint="start it with --token-file, --issuer or --tls-client-ca",
                )
            return Caller(address=proof.address)
        acting.set(Acting(identity.subject, address=proof.address))
        held = held_by(policy, identity.subject, identity.groups)
        return Caller(identity, address=proof.address, held=held)


def check(who: Caller, method: str, request: Any) -> None:
    """Raise an error unless the caller may make this call."""
    if method not in RIGHTS:
        raise PermissionDenied(f"no right is known that {method} needs")
    needed = required(method, request)
    match needed.scope:
        case Scope.CALLER:
            return
        case Scope.SEEN:
            if not who.held.grants:
                raise denied(who, needed.role, "any table")
        case Scope.EVERYTHING:
            if who.held.everywhere < needed.role:
                raise denied(who, needed.role, "all tables")
        case Scope.OPERATION:
            operation = OperationId.parse(needed.name)
            hidden: DistopError = OperationNotFound(
                f"operation {operation} does not exist", details={"operation": str(operation)}
            )
            _check_table(who, needed.role, operation.table, hidden)
        case Scope.TABLE:
            table = check_table_name(needed.name)
            hidden = TableNotFound(f"table {table!r} does not exist", details={"table": table})
            _check_table(who, needed.role, table, hidden)
        case Scope.NEW_TABLE:
            table = check_table_name(needed.name, "name")
            _check_table(who, needed.role, table, denied(who, needed.role, f"table {table!r}"))


def denied(who: Caller, role: Role, what: str) -> PermissionDenied:
    """That somebody lacks a role."""
    return PermissionDenied(
        f"{who.subject!r} is no {role.name.lower()} of {what}",
        details={"subject": who.subject, "role": role.name.lower()},
    )


def seen_by(who: Caller, error: DistopError) -> DistopError:
    """The error as a caller may read it: a folder that is taken does not name a table that it may not see."""
    other = error.details.get("table") if isinstance(error, LocationInUse) else None
    if other and not who.sees(other):
        message = "the location is the folder of another table, lies in one, or has one in it"
        return LocationInUse(message, details={"field": "location"})
    return error


def _check_table(who: Caller, role: Role, table: str, hidden: DistopError) -> None:
    if not who.sees(table):
        raise hidden
    if not who.may(role, table):
        raise denied(who, role, f"table {table!r}")


def _named(who: Caller, request: Any) -> Caller:
    """The caller with the name that the request gives it, in whose place stands the verified one now."""
    claimed = ""
    for field in claims(request):
        claimed = getattr(request, field)
        if who.subject:
            setattr(request, field, who.subject)
    return Caller(who.identity, claimed, who.address, who.held)
