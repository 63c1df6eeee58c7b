"""Tables, as the client shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from distop.client.models.cluster import Pause
from distop.client.models.content import TableContent
from distop.client.models.indexes import Index
from distop.client.models.model import Model
from distop.proto import distop_pb2 as pb

Watermarks = dict[str, dict[str, str]]
"""source -> partition -> how far it has been ingested."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table(Model):
    """A table as it stood at one etcd revision."""

    name: str
    location: str
    """URL of the folder its files live in."""
    format: str = "iceberg"
    options: dict[str, Any] = field(default_factory=dict)
    """Of the format; for Iceberg ``schema``, ``partitionBy`` and ``properties``."""
    created_at: datetime | None = None
    created_by: str = ""
    metadata_location: str = ""
    """The published state; empty before anything was published."""
    snapshot_id: int | None = None
    running: tuple[str, ...] = ()
    """Names of its running operations."""
    leader: str = ""
    """The coordinator that leads it; empty while it is idle."""
    pause: Pause | None = None
    """Set while somebody holds it: nothing starts, and what runs is held."""
    indexes: tuple[Index, ...] = ()
    """Of its columns. Only where they were asked for, by :meth:`~distop.client.AsyncClient.indexes`."""
    content: TableContent | None = None
    """What it holds. Only where it was asked for, by :meth:`~distop.client.AsyncClient.describe_table`."""
    revision: int = 0
    """The etcd revision this was read at."""
    uuid: str = ""
    """Tells it from other tables that have had its name."""


def watermarks_from_proto(message: pb.GetWatermarksResponse) -> Watermarks:
    """One nested mapping of what travels as rows."""
    marks: Watermarks = {}
    for row in message.watermarks:
        marks.setdefault(row.source, {})[row.partition] = row.value
    return marks


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation(Model):
    """Why a table moves, or does not."""

    table: str
    mood: str
    """``idle``, ``moving``, ``waiting``, ``paused``, ``stuck`` or ``failed``."""
    sentence: str
