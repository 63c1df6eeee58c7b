"""Indexes of columns, as the client shows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from distop.client.transport.convert import from_timestamp
from distop.proto import distop_pb2 as pb


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """An index of a column, as it is published."""

    column: str
    snapshot_id: int
    """The snapshot whose files it covers."""
    commits_behind: int | None
    """Commits since that snapshot; ``None``: not known."""
    files: int
    """Data files that it covers."""
    left_out: int
    """Files of that snapshot that could not be indexed: readers always open them."""
    parts: int
    entries: int
    bytes: int
    operation: str
    """The operation that published it."""
    built_at: datetime | None
    field_id: int
    """Of the column in the table's schema."""
    manifest: str
    """Where the list of its parts is."""
    sequence_number: int
    """Of the snapshot."""

    @classmethod
    def from_proto(cls, message: pb.Index) -> Self:
        return cls(
            column=message.column,
            snapshot_id=message.snapshot_id,
            commits_behind=None if message.commits_behind < 0 else message.commits_behind,
            files=message.files,
            left_out=message.left_out,
            parts=message.parts,
            entries=message.entries,
            bytes=message.bytes,
            operation=message.operation,
            built_at=from_timestamp(message.built_at),
            field_id=message.field_id,
            manifest=message.manifest,
            sequence_number=message.sequence_number,
        )
