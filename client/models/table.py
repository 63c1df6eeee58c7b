"""Tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from distop.client.models.cluster import Pause
from distop.client.models.content import TableContent
from distop.client.models.indexes import Index
from distop.client.models.model import Model
from distop.client.models.operation import OperationError
from distop.proto import distop_pb2 as pb

Watermarks = dict[str, dict[str, str]]
"""source -> partition -> how far it has been ingested."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table(Model):
    """A table at one etcd revision."""

    name: str
    location: str
    """URL of the folder of its files."""
    format: str = "iceberg"
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the format; for Iceberg ``schema``, ``partitionBy`` and ``properties``."""
    created_at: datetime | None = None
    created_by: str = ""
    metadata_location: str = ""
    """The published state; empty before the first publication."""
    snapshot_id: int | None = None
    running: tuple[str, ...] = ()
    """Names of its running operations."""
    leader: str = ""
    """The coordinator that leads it; empty while it is idle."""
    pause: Pause | None = None
    """Set while it is paused: nothing starts, and running operations are paused."""
    indexes: tuple[Index, ...] = ()
    """Indexes of its columns. Only set by :meth:`~distop.client.AsyncClient.indexes`."""
    content: TableContent | None = None
    """Its content. Only set by :meth:`~distop.client.AsyncClient.describe_table`."""
    revision: int = 0
    """The etcd revision this was read at."""
    uuid: str = ""
    """Distinguishes it from other tables with the same name in the past."""
    error: OperationError | None = None
    """In a list: why it cannot be read. Only its name is known then."""


def watermarks_from_proto(message: pb.GetWatermarksResponse) -> Watermarks:
    """One nested mapping from rows of the API."""
    marks: Watermarks = {}
    for row in message.watermarks:
        marks.setdefault(row.source, {})[row.partition] = row.value
    return marks


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation(Model):
    """Why a table moves or does not."""

    table: str
    mood: str
    """``idle``, ``moving``, ``waiting``, ``paused``, ``stuck`` or ``failed``."""
    sentence: str
