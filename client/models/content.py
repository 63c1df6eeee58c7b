"""What is published in a table, as the client shows it."""

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
    """What a table holds, as its published state says; ``None`` where it does not."""

    table: str
    columns: tuple[Column, ...] = ()
    partition_by: tuple[str, ...] = ()
    """Such as ``month(time)``."""
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    loaded_by: str = ""
    """The operation that added rows last, of those that are still known."""
    loaded_at: datetime | None = None
    loaded_rows: int | None = None
    missing: str = ""
    """What could not be read from the table's storage, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot(Model):
    """A state of a table that it still knows."""

    snapshot_id: int
    parent_id: int | None = None
    committed_at: datetime | None = None
    change: str = ""
    """``append``, ``overwrite``, ``replace`` or ``delete``."""
    operation: str = ""
    """The operation that made it; empty: another program did."""
    started_by: str = ""
    added_rows: int | None = None
    removed_rows: int | None = None
    rows: int | None = None
    """What the table held with it."""
    bytes: int | None = None
    present: bool = False
    """It is what readers see at present."""
    in_history: bool = False
    """It is, or one that follows it."""
    refs: tuple[str, ...] = ()
    """The branches and tags that it is."""
