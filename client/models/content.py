"""What is published in a table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from distop.client.models.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Column(Model):
    """A column of a table."""

    name: str
    type: str
    required: bool = False
    doc: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableContent(Model):
    """The content of a table, from its published state; ``None`` where that does not say."""

    table: str
    columns: tuple[Column, ...] = ()
    partition_by: tuple[str, ...] = ()
    """Partitioning terms, such as ``month(time)``."""
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    loaded_by: str = ""
    """The last known operation that added rows."""
    loaded_at: datetime | None = None
    loaded_rows: int | None = None
    missing: str = ""
    """What could not be read from the table's storage, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot(Model):
    """A snapshot that a table still has."""

    snapshot_id: int
    parent_id: int | None = None
    committed_at: datetime | None = None
    change: str = ""
    """``append``, ``overwrite``, ``replace`` or ``delete``."""
    operation: str = ""
    """The operation that made it; empty: another program."""
    started_by: str = ""
    added_rows: int | None = None
    removed_rows: int | None = None
    rows: int | None = None
    """The table's content with it."""
    bytes: int | None = None
    present: bool = False
    """Whether readers see it at present."""
    in_history: bool = False
    """Whether it is the present one or an ancestor of it."""
    refs: tuple[str, ...] = ()
    """The branches and tags on it."""
