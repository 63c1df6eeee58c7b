"""Who may do what."""

from __future__ import annotations

from dataclasses import dataclass

from distop.client.models.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant(Model):
    """One line of the policy."""

    who: str
    """A subject, or ``group:NAME``; ``*`` stands for any text."""
    role: str = ""
    """``reader``, ``operator``, ``writer`` or ``admin``: each may do what those before it may."""
    tables: tuple[str, ...] = ()
    """Patterns of names of tables; ``*`` is all of them, and the installation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grants(Model):
    """The policy as far as the caller may see it, and who the caller is."""

    grants: tuple[Grant, ...] = ()
    enforced: bool = False
    """Whether a policy stands."""
    subject: str = ""
    """Who calls, as verified; empty if nothing was verified."""
    groups: tuple[str, ...] = ()
