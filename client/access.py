"""The access policy, and the calls on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from distop.client.calls import Calls
from distop.client.model import Model
from distop.proto import distop_pb2 as pb


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant(Model):
    """One line of the policy."""

    who: str
    """A subject, or ``group:NAME``; ``*`` matches any text."""
    role: str = ""
    """``reader``, ``operator``, ``writer`` or ``admin``: each includes those before it."""
    tables: tuple[str, ...] = ()
    """Patterns of names of tables; ``*`` is all of them, and the installation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grants(Model):
    """The part of the policy that the caller may see, and the caller's identity."""

    grants: tuple[Grant, ...] = ()
    enforced: bool = False
    """Whether a policy exists."""
    subject: str = ""
    """The verified caller; empty if none was verified."""
    groups: tuple[str, ...] = ()


class AccessCalls(Calls):
    """The part of :class:`~distop.client.aio.AsyncClient` for access control."""

    async def grants(self) -> Grants:
        """The caller's identity for the service, and the grants: all for an admin, else the caller's own."""
        return Grants.from_proto(await self._call("ListGrants"))

    async def change_grants(
        self,
        add: Iterable[Grant] = (),
        remove: Iterable[Grant] = (),
        reason: str = "",
        *,
        replace: bool = False,
    ) -> Grants:
        """Change the access policy, in one transaction.

        Parameters
        ----------
        remove:
            A grant without tables: all of this subject and role. Without a role: all of this subject.
        replace:
            The grants of ``add`` replace all others.

        Raises
        ------
        PreconditionFailed
            No admin of all tables would be left.
        """
        reply = await self._once(
            "ChangeGrants",
            add=[_message(grant) for grant in add],
            remove=[_message(grant) for grant in remove],
            replace=replace,
            reason=reason,
        )
        return Grants.from_proto(reply)


def _message(grant: Grant) -> pb.Grant:
    return pb.Grant(who=grant.who, role=grant.role, tables=grant.tables)
