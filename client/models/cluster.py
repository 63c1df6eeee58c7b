"""The processes that make up the service, as the client shows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from distop.client.transport.convert import from_timestamp
from distop.proto import distop_pb2 as pb


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
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

    @classmethod
    def from_proto(cls, message: pb.Member) -> Self:
        return cls(
            id=message.id,
            role=message.role,
            address=message.address,
            host=message.host,
            pid=message.pid,
            started_at=from_timestamp(message.started_at),
            types=tuple(message.types),
            draining=message.draining,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader:
    """Which coordinator drives a table."""

    table: str
    member: str
    address: str = ""
    epoch: int = 0
    """The fencing token: the create revision of the leader's key."""

    @classmethod
    def from_proto(cls, message: pb.Leader) -> Self:
        return cls(table=message.table, member=message.member, address=message.address, epoch=message.epoch)
