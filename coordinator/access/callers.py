"""Who makes the call that is being answered. Whoever shows or records something asks :func:`caller`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from distop.coordinator.access.policy import EVERYTHING, Held
from distop.proto.rights import Role


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is, as a token or a certificate proves."""

    subject: str
    groups: frozenset[str] = frozenset()
    how: str = ""
    """``token`` or ``certificate``."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One who calls. The one without a name is this process itself, or anybody where nobody is told apart."""

    identity: Identity | None = None
    claimed: str = ""
    """Who the request says that it is from; whoever is verified may say what he likes."""
    address: str = ""
    """Where the call comes from, without a port."""
    held: Held = EVERYTHING

    @property
    def subject(self) -> str:
        """Who was verified; empty if nobody was."""
        return self.identity.subject if self.identity is not None else ""

    def may(self, role: Role, table: str) -> bool:
        """Whether it has the role on a table."""
        return self.held.on(table) >= role

    def sees(self, table: str) -> bool:
        """Whether the table exists for it."""
        return self.may(Role.READER, table)

    def sees_below(self, prefix: str) -> bool:
        """Whether tables whose names begin so may exist for it."""
        return self.held.may_be_below(prefix)


_ITSELF = Caller()

_CALLER: ContextVar[Caller] = ContextVar("caller", default=_ITSELF)


def caller() -> Caller:
    """Who makes the call that this task answers."""
    return _CALLER.get()


def answer_to(who: Caller) -> None:
    """What this task does from now on, it does for this caller."""
    _CALLER.set(who)


@contextmanager
def answering(who: Caller) -> Iterator[None]:
    """What is done inside is done for this caller."""
    token = _CALLER.set(who)
    try:
        yield
    finally:
        _CALLER.reset(token)
