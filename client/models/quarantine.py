"""Rows in quarantine."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from datetime import datetime

from distop.client.models.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantine:
    """The quarantined rows of one operation."""

    operation: str
    rows: int
    at: datetime | None = None
    """When the operation finished."""
    folder: str
    """URL of their files."""
    replayed_by: str = ""
    """The operation that has ingested them; empty: none of those that the history still has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantinedRow(Model):
    """One of them."""

    source: str = ""
    """URL of its file, or the topic."""
    unit: str = ""
    """What its number counts, from 1: ``line``, ``row`` or ``element``; or, from 0 in its partition,
    ``offset``."""
    number: int = 0
    partition: int = 0
    column: str = ""
    """The column whose value was bad; empty: the reason is about no single one."""
    reason: str = ""
    raw: str = ""
    """Its text, for people."""
    base64: str = ""
    """Its bytes, where they are no UTF-8; otherwise empty."""
    header: str = ""
    """The line of its file that names the columns, if there is one."""
    cut: bool = False
    """Only the beginning of the row was kept."""
    format: str = ""
    """The format of its text; formats other than ``csv`` and ``jsonl`` have none."""

    @property
    def place(self) -> str:
        """Its position, for people."""
        partition = f"partition {self.partition}, " if self.unit == "offset" else ""
        return f"{self.source}, {partition}{self.unit} {self.number}"

    @property
    def text(self) -> bytes:
        """The row as its source has it, without the end of its line."""
        return b64decode(self.base64) if self.base64 else self.raw.encode()
