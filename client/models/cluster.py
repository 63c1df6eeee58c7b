"""The processes that make up the service; who holds what, and who did what."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from distop.client.models.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Member(Model):
    """A live process of the service."""

    id: str
    """Of this incarnation: a restarted process is another member."""
    role: str
    """``coordinator`` or ``executor``."""
    address: str = ""
    host: str = ""
    pid: int = 0
    started_at: datetime | None = None
    types: tuple[str, ...] = ()
    """Operation types an executor serves."""
    draining: bool = False
    """A coordinator that leads nothing as long as another one can; it still answers calls."""
    version: str = ""
    """Of distop; empty: it does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader(Model):
    """Which coordinator drives a table."""

    table: str
    member: str
    address: str = ""
    epoch: int = 0
    """The fencing token: the create revision of the leader's key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause(Model):
    """Somebody holds an operation or a table."""

    by: str = ""
    reason: str = ""
    at: datetime | None = None
    scope: str = ""
    """What was paused, and is to be resumed: ``operation`` or ``table``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry(Model):
    """One control action."""

    id: str
    at: datetime | None = None
    action: str
    """Such as ``start``, ``cancel``, ``pause``, ``create-table``."""
    target: str
    """What it was done to: an operation, a table, a member."""
    by: str = ""
    """Who did it: the verified name, or else what the caller says of itself."""
    claimed_by: str = ""
    """What the caller says of itself, where :attr:`by` is verified."""
    address: str = ""
    """Where the call came from."""
    table: str = ""
    """Whose trail it stands in; empty: that of the installation."""
    cursor: str = ""
    """Its place, from which the trail can be followed."""
    reason: str = ""
    request_id: str = ""
    argument: dict[str, Any] = field(default_factory=dict)
    """Of a start: what was asked for, as :attr:`Operation.argument`; and once that operation is over:"""
    outcome: str = ""
    """``success``, ``failed`` or ``cancelled``. Of what else is done: ``done``, or ``denied``."""
    rows: int | None = None
    bytes: int | None = None
    error_code: str = ""
