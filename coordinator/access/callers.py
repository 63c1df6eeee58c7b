"""The caller of the call that is being answered. Code that shows or records it uses :func:`caller`."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from distop.coordinator.access.policy import EVERYTHING, Held
from distop.coordinator.access.rights import Role


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
