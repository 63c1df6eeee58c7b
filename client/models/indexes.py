"""Indexes of columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from distop.client.models.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Index(Model):
    """The published index of a column."""

    column: str
    snapshot_id: int
    """The snapshot whose files it covers."""
    commits_behind: int | None = None
    """Commits since that snapshot; ``None``: unknown."""
    files: int
    """Data files that it covers."""
    left_out: int
    """Files of that snapshot that could not be indexed: readers always open them."""
    parts: int
    entries: int
    bytes: int
    operation: str
    """The operation that published it."""
    built_at: datetime | None = None
    field_id: int
    """Id of the column in the table's schema."""
    manifest: str
    """Location of the list of its parts."""
    sequence_number: int
    """Sequence number of the snapshot."""
