"""Findings of the doctor."""

from __future__ import annotations

from dataclasses import dataclass, field

from distop.client.models.model import Model, ModelEnum


class Severity(ModelEnum):
    """The severity of a finding."""

    NOTICE = "notice"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """Something does not progress, or may be lost; what is published is right."""
    ERROR = "error"
    """An invariant is broken."""
    UNKNOWN = "unknown"
    """A severity of a newer service."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding(Model):
    """A problem."""

    code: str
    """A stable code."""
    severity: Severity
    table: str = ""
    operation: str = ""
    sentence: str = ""
    """What is wrong."""
    remedy: str = ""
    """What to do."""
    fixable: bool = False
    """Whether the doctor can repair it."""
    fixed: bool = False
    """Whether it has."""
    outcome: str = ""
    """The result of the attempt to repair it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """All findings, and how much was examined."""

    findings: tuple[Finding, ...] = field(default=())
    tables: int = 0
    operations: int = 0

    @property
    def wrong(self) -> bool:
        """Whether an invariant is broken and was not repaired."""
        return any(not one.fixed and one.severity is Severity.ERROR for one in self.findings)

    @property
    def warned(self) -> bool:
        """Whether there is a warning that was not repaired."""
        return any(not one.fixed and one.severity is Severity.WARNING for one in self.findings)
