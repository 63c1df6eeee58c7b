"""The gate that every call passes, in every protocol: authentication and authorisation."""

from __future__ import annotations

import logging
from typing import Any

from distop.coordinator.access.authentication import Authentication, IdentityConfig, Proof
from distop.coordinator.access.callers import Caller
from distop.coordinator.access.following import Policies
from distop.coordinator.access.policy import held_by
from distop.coordinator.access.rights import RIGHTS, Role, Scope, claims, required
from distop.errors import (
    DistopError,
    LocationInUse,
    OperationNotFound,
    PermissionDenied,
    TableNotFound,
    Unauthenticated,
)
from distop.metastore.records.names import OperationId, check_table_name
from distop.metastore.tables.audit import Actor, Denials, acting

log = logging.getLogger(__name__)

REFUSALS = (PermissionDenied, TableNotFound, OperationNotFound)
"""The message for a caller who may not do something. It is the same for things that do not exist."""


class Gate:
    """Lets calls pass, or raises the reason."""

    def __init__(
        self, policies: Policies, config: IdentityConfig | None = None, denials: Denials | None = None
    ) -> None:
        self.policies = policies
        self._denials = denials
        self._authentication = Authentication(config or IdentityConfig())

    @property
    def tells_apart(self) -> bool:
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
            check(who, method, request)
        except REFUSALS as refusal:
            what = required(method, request).name if method in RIGHTS else ""
            await self.denied(method.rpartition("/")[2], refusal, target=what)
            raise
        return who

    async def denied(self, action: str, refusal: DistopError, *, target: str = "") -> None:
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
        except Unauthenticated as refusal:
            await self.denied("sign-in", refusal)
            raise
        policy = await self.policies.present()
        if identity is None:
            if self.tells_apart:
                raise Unauthenticated("this service requires authentication")
            if policy is not None:
                raise Unauthenticated(
                    "a policy exists, but this coordinator cannot identify callers",
                    hint="start it with --token-file, --issuer or --tls-client-ca",
                )
            return Caller(address=proof.address)
        acting.set(Actor(identity.subject, address=proof.address))
        held = held_by(policy, identity.subject, identity.groups)
        return Caller(identity, address=proof.address, held=held)


def check(who: Caller, method: str, request: Any) -> None:
    """Raise an error unless the caller may make this call."""
    if method not in RIGHTS:
        raise PermissionDenied(f"the right for {method} is not defined")
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
    """The error for a missing role."""
    return PermissionDenied(
        f"{who.subject!r} does not have the role {role.name.lower()} on {what}",
        details={"subject": who.subject, "role": role.name.lower()},
    )


def seen_by(who: Caller, error: DistopError) -> DistopError:
    """The error as the caller may see it: without the names of tables that it may not see."""
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
    """The caller with the name from the request; the request then gets the verified name instead."""
    claimed = ""
    for field in claims(request):
        claimed = getattr(request, field)
        if who.subject:
            setattr(request, field, who.subject)
    return Caller(who.identity, claimed, who.address, who.held)
