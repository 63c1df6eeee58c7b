"""The processes of the service, pauses, and entries of the audit trail."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from distop.client.models.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Member(Model):
    """A live process of the service."""

    id: str
    """Id of this incarnation: a restarted process is another member."""
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
    """Version of distop; empty: unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader(Model):
    """The coordinator that drives a table."""

    table: str
    member: str
    address: str = ""
    epoch: int = 0
    """The fencing token: the create revision of the leader's key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause(Model):
    """An operation or a table is paused."""

    by: str = ""
    reason: str = ""
    at: datetime | None = None
    scope: str = ""
    """What was paused, and must be resumed: ``operation`` or ``table``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry(Model):
    """One control action."""

    id: str
    at: datetime | None = None
    action: str
    """Such as ``start``, ``cancel``, ``pause``, ``create-table``."""
    target: str
    """The object of the action: an operation, a table, a member."""
    by: str = ""
    """Who did it: the verified name, or otherwise the name that the caller stated."""
    claimed_by: str = ""
    """The name that the caller stated, where :attr:`by` is verified."""
    address: str = ""
    """The address of the caller."""
    table: str = ""
    """The table of its trail; empty: the installation's."""
    cursor: str = ""
    """Its position, from which the trail can be followed."""
    reason: str = ""
    request_id: str = ""
    argument: dict[str, Any] = field(default_factory=dict)
    """Of a start: the argument, as :attr:`Operation.argument`; and once that operation is over:"""
    outcome: str = ""
    """``success``, ``failed`` or ``cancelled``. Of other actions: ``done``, or ``denied``."""
    rows: int | None = None
    bytes: int | None = None
    error_code: str = ""
