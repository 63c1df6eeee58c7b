"""What ``distop doctor`` finds: findings, and what can be done about them. Pure.

A finding is a sentence about something that should not be, with what to do. It is worked out from records and
listings alone (:mod:`.doctor_checks`, :mod:`.doctor_liveness`, :mod:`.doctor_cluster`, :mod:`.doctor_files`),
looked at again before it is told (:mod:`.doctor_rounds`), and put right, where that is safe, by transactions
that compare what was seen (:mod:`.doctor_fixes`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

from distop.metastore.etcd.txn import Txn
from distop.metastore.records.keyspace import OperationId


class Severity(IntEnum):
    """How bad it is. From :attr:`WARNING` on something is wrong."""

    NOTICE = 1
    """Worth knowing; nothing is wrong."""
    WARNING = 2
    """Something does not go on, or may be lost; what is published is right."""
    ERROR = 3
    """Something that must always hold does not."""


@dataclass(frozen=True, slots=True)
class Change:
    """Put right by one transaction, whose compares are what was seen: if that has moved, nothing happens."""

    does: str
    txn: Txn


@dataclass(frozen=True, slots=True)
class CollectKeys:
    """Put right by the collector: it removes keys in bites, and only while the operation has no state."""

    does: str
    operation: OperationId


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Put right by removing files that an operation which has ended does not need."""

    does: str
    operation: OperationId
    folder: str
    """URL of the folder they lie in."""
    names: tuple[str, ...]
    storage: dict[str, Any]
    """The table's storage options."""
    passing: bool = False
    """Whether nothing there is needed once the operation has ended, however it did."""


Fix: TypeAlias = Change | CollectKeys | RemoveFiles


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that should not be."""

    code: str
    """Stable."""
    severity: Severity
    sentence: str
    """What is wrong."""
    remedy: str
    """What to do."""
    table: str = ""
    operation: str = ""
    subject: str = ""
    """What tells it from others of the same code, table and operation: a key, a folder."""
    persists_s: float = 0.0
    """How long it must be seen before it is told. What is read of etcd at one revision is certain at once;
    what passes by itself (a fail-over, a runner on its way) is not."""
    fix: Fix | None = None

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Equal for the same finding in two looks."""
        return self.code, self.table, self.operation, self.subject


@dataclass(frozen=True, slots=True)
class Told:
    """A finding that has been confirmed."""

    finding: Finding
    fixed: bool = False
    outcome: str = ""
    """What an attempt to put it right came to; empty when none was made."""


@dataclass(slots=True)
class Progress:
    """What has been looked at so far, with what was found since the last time."""

    tables: int = 0
    operations: int = 0
    told: list[Told] = field(default_factory=list)
    done: bool = False


def worst(findings: list[Finding]) -> list[Finding]:
    """In the order in which they deserve a look."""
    return sorted(findings, key=lambda one: (-one.severity, one.table, one.operation, one.code, one.subject))
