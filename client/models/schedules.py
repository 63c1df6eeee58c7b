"""Schedules of a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from distop.client.models.cluster import Pause
from distop.client.models.model import Model
from distop.client.models.operation import OperationError


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule(Model):
    """A schedule: it starts operations at times, or on a condition."""

    table: str
    name: str
    type: str = ""
    object: str = ""
    argument: dict[str, Any] = field(default_factory=dict)
    cron: str = ""
    """Five fields; empty: it has only a condition."""
    timezone: str = ""
    """Of these times and of templates; empty: UTC."""
    when: str = ""
    """The condition, such as ``small_files > 200``."""
    added_by: str = ""
    added_at: datetime | None = None
    pause: Pause | None = None
    """Who has paused it."""
    next_at: datetime | None = None
    """The next start; ``None``: paused, or on a condition."""
    last_at: datetime | None = None
    """The last tick that was started or skipped."""
    started: int = 0
    """Operations started."""
    operation: str = ""
    """The last of them."""
    skipped: int = 0
    """Skipped ticks."""
    skip: OperationError | None = None
    """Why the last of them was skipped."""
    skipped_at: datetime | None = None
