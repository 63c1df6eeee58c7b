"""The caller of the call that is being answered, and which names a caller may have.

Code that shows or records the caller uses :func:`caller`.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from distop.coordinator.access.policy import EVERYTHING, GROUP, MAX_TEXT_BYTES, Held
from distop.errors import Unauthenticated
from distop.metastore.records.names import unreadable
from distop.operations.api import Role


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity proved by a token or a certificate."""

    subject: str
    groups: frozenset[str] = frozenset()
    how: str = ""
    """``token`` or ``certificate``."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller. One without a name is this process itself, or any caller without authentication."""

    identity: Identity | None = None
    claimed: str = ""
    """The name that the request states; a verified caller may state any."""
    address: str = ""
    """Address of the caller, without a port."""
    held: Held = EVERYTHING

    @property
    def subject(self) -> str:
        """The verified subject; empty if none was verified."""
        return self.identity.subject if self.identity is not None else ""

    def may(self, role: Role, table: str) -> bool:
        """Whether the caller has the role on a table."""
        return self.held.on(table) >= role

    def sees(self, table: str) -> bool:
        """Whether the caller may see the table."""
        return self.may(Role.READER, table)

    def sees_below(self, prefix: str) -> bool:
        """Whether the caller may see tables whose names begin so."""
        return self.held.may_be_below(prefix)


_ITSELF = Caller()

_CALLER: ContextVar[Caller] = ContextVar("caller", default=_ITSELF)


def caller() -> Caller:
    """The caller of the call that this task answers."""
    return _CALLER.get()


def answer_to(who: Caller) -> None:
    """From now on this task acts for this caller."""
    _CALLER.set(who)


CERTIFICATE = "cert:"
SPIFFE = "spiffe://"

RESERVED = (GROUP, CERTIFICATE, SPIFFE)
"""A token whose subject begins so could impersonate a caller with another kind of authentication."""


def check_subject(subject: str) -> str:
    """The subject of a token, or :class:`~distop.errors.Unauthenticated` if it is reserved."""
    if check_name(subject).startswith(RESERVED):
        raise Unauthenticated(f"a token's subject must not begin with {' or '.join(RESERVED)}")
    return subject


def check_name(subject: str) -> str:
    """A name that a grant can contain, or :class:`~distop.errors.Unauthenticated`."""
    if not subject.strip() or len(subject.encode(errors="replace")) > MAX_TEXT_BYTES or unreadable(subject):
        raise Unauthenticated("the subject is empty, too long, or has invisible characters")
    return subject
