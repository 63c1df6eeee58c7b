"""Who holds what, and who did what, as the client shows it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from distop.client.transport.convert import from_timestamp, to_timestamp
from distop.proto import distop_pb2 as pb


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """Somebody holds an operation or a table."""

    by: str = ""
    reason: str = ""
    at: datetime | None = None
    scope: str = ""
    """What was paused, and is to be resumed: ``operation`` or ``table``."""

    @classmethod
    def from_proto(cls, message: pb.Pause) -> Self:
        return cls(by=message.by, reason=message.reason, at=from_timestamp(message.at), scope=message.scope)

    def to_proto(self) -> pb.Pause:
        """The inverse of :meth:`from_proto`."""
        return pb.Pause(by=self.by, reason=self.reason, at=to_timestamp(self.at), scope=self.scope)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """One control action."""

    id: str
    at: datetime | None = None
    action: str
    """Such as ``start``, ``cancel``, ``pause``, ``create-table``."""
    target: str
    """What it was done to: an operation, a table, a member."""
    by: str = ""
    reason: str = ""
    request_id: str = ""

    @classmethod
    def from_proto(cls, message: pb.AuditEntry) -> Self:
        return cls(
            id=message.id,
            at=from_timestamp(message.at),
            action=message.action,
            target=message.target,
            by=message.by,
            reason=message.reason,
            request_id=message.request_id,
        )
