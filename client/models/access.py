"""The access policy."""

from __future__ import annotations

from dataclasses import dataclass

from distop.client.models.model import Model


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
