"""Batches of a table and how it is fed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from distop.client.models.model import Model
from distop.client.models.operation import OperationError


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch(Model):
    """A batch that waits, is being applied, has failed, or has come to its end."""

    name: str
    type: str = ""
    """The operation type that applies it. Unknown of skipped batches, and of applied ones that were too large
    to be kept, as their argument."""
    argument: dict[str, Any] = field(default_factory=dict)
    queued_by: str = ""
    queued_at: datetime | None = None
    attempts: int = 0
    """Failed attempts: since the last decision to try it again; of an applied or skipped one, all."""
    error: OperationError | None = None
    """Error of the last of them."""
    operation: str = ""
    """The operation that applies it, or has applied it."""
    state: str = ""
    """``waiting``, ``running``; ``failed``: it needs a decision; ``applied`` or ``skipped``."""
    finished_at: datetime | None = None
    """When it was applied or skipped."""
    rows: int | None = None
    """Of an applied one: what its operation has added, as the following two. ``None``: unknown, such as that
    of a batch that an older version has applied."""
    bytes: int | None = None
    files: int | None = None
    together: int = 0
    """How many batches that operation has applied: its figures are of all of them."""
    decided_by: str = ""
    """Who has approved it at the validation gate, or has skipped it."""
    markers: dict[str, str] = field(default_factory=dict)
    """Of an applied one: the files that marked its source as complete, and their versions when it was read,
    as far as they are known."""
    in_doubt: bool = False
    """Its rows may be in the table: it is to be applied again only if they are not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block(Model):
    """Why a table waits for a decision."""

    batch: str
    error: OperationError
    operation: str = ""
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged(Model):
    """A batch whose rows are on a branch, to be looked at before they are published."""

    batch: str
    branch: str
    operation: str = ""
    """What has written it; empty while it is being written."""
    snapshot: str = ""
    """The snapshot of the branch that is published by the approval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordering(Model):
    """How a table is fed from its backlog."""

    table: str
    gate: str = "open"
    """``open``; ``closed``: batches are collected until it is opened."""
    held_by: str = ""
    """The rollback that has closed the gate: until it is opened no batch is applied."""
    validation: bool = False
    """Whether each batch needs an approval."""
    before: bool = False
    """Of ``validation``: the approval comes before the batch is published. Until then it is on a branch."""
    late: str = "block"
    """What happens to a batch that sorts before an applied one: ``block``, ``apply`` or ``reject``."""
    together: int = 1
    """Most batches that one operation applies."""
    max_attempts: int = 3
    remember: int = 0
    """How many finished batches are remembered by name, the highest ones."""
    forgotten: str = ""
    """The highest batch that is no longer remembered."""
    last: str = ""
    """The highest batch that was applied or skipped."""
    running: str = ""
    """The operation that applies batches at present."""
    awaiting: str = ""
    """The batch that waits for approval."""
    staged: Staged | None = None
    """The batch that is on a branch."""
    blocked: Block | None = None
    failed: tuple[Block, ...] = ()
    """Failed unordered batches: each needs a decision."""
    rewritten: tuple[str, ...] = ()
    """Applied batches whose sources were written again since, 50 at most."""
    signals: tuple[str, ...] = ()
    """What opened the gate last, once each: see :meth:`~distop.client.aio.AsyncClient.open_gate`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Enqueued(Model):
    """The result of publishing a batch."""

    table: str
    batch: str
    became: str
    """``queued``, ``already queued``, ``already applied``, ``skipped before``; without an order, ``failed
    before``; of one whose source was written again, ``rewritten``."""
    operation: str = ""
    """The operation that applies it, or has applied it."""
    late: bool = False
    """It sorts before an applied one, and the table will stop at it."""
    markers: dict[str, str] = field(default_factory=dict)
    """Of an applied one: see :class:`Batch`."""
