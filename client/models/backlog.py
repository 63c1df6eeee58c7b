"""Batches of a table and how it is fed, as the client shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from distop.client.models.model import Model
from distop.client.models.operation import OperationError


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch(Model):
    """A batch that waits to be applied."""

    name: str
    type: str = ""
    """The operation type that applies it. What is applied or skipped is known by name alone."""
    argument: dict[str, Any] = field(default_factory=dict)
    queued_by: str = ""
    queued_at: datetime | None = None
    attempts: int = 0
    """Failed ones, of those that may pass."""
    error: OperationError | None = None
    """Of the last of them."""
    operation: str = ""
    """The operation that applies it at present, or has applied it."""
    state: str = ""
    """``waiting``, ``running``; ``failed``: somebody has to decide about it; ``applied`` or ``skipped``."""
    finished_at: datetime | None = None
    """When it was applied or skipped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block(Model):
    """Why a table does not go on before somebody decides."""

    batch: str
    error: OperationError
    operation: str = ""
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordering(Model):
    """How a table is fed from its backlog."""

    table: str
    gate: str = "open"
    """``open``; ``closed``: batches are collected until somebody opens it."""
    validation: bool = False
    """Whether somebody must approve after each batch."""
    late: str = "block"
    """About a batch that sorts before an applied one: ``block``, ``apply`` or ``reject``."""
    together: int = 1
    """Most batches that one operation applies."""
    max_attempts: int = 3
    remember: int = 0
    """So many batches that are done with are known by name, the highest ones."""
    forgotten: str = ""
    """The highest batch that is no longer known."""
    last: str = ""
    """The highest batch that was applied or skipped."""
    running: str = ""
    """The operation that applies batches at present."""
    awaiting: str = ""
    """The batch that waits for approval."""
    blocked: Block | None = None
    failed: tuple[Block, ...] = ()
    """Batches without an order that have failed: somebody has to decide about each."""
    signals: tuple[str, ...] = ()
    """What has opened the gate last, once each: see :meth:`~distop.client.aio.AsyncClient.open_gate`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Enqueued(Model):
    """What became of a batch that was published."""

    table: str
    batch: str
    became: str
    """``queued``, ``already queued``, ``already applied``, ``skipped before`` or, without an order, ``failed
    before``."""
    operation: str = ""
    """That applies it at present, or has applied it."""
    late: bool = False
    """It sorts before an applied one, and the table stops at it."""
