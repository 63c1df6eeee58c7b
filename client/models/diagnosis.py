"""What the doctor found, as the client shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from distop.client.models.model import Model, ModelEnum


class Severity(ModelEnum):
    """How bad a finding is."""

    NOTICE = "notice"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """Something does not go on, or may be lost; what is published is right."""
    ERROR = "error"
    """Something that must always hold does not."""
    UNKNOWN = "unknown"
    """Of a newer service."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding(Model):
    """Something that should not be."""

    code: str
    """Stable."""
    severity: Severity
    table: str = ""
    operation: str = ""
    sentence: str = ""
    """What is wrong."""
    remedy: str = ""
    """What to do."""
    fixable: bool = False
    """Whether the doctor can put it right."""
    fixed: bool = False
    """Whether it has."""
    outcome: str = ""
    """What the attempt to put it right came to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """All findings, and how much was looked at."""

    findings: tuple[Finding, ...] = field(default=())
    tables: int = 0
    operations: int = 0

    @property
    def wrong(self) -> bool:
        """Whether something that must always hold does not, and has not been put right."""
        return any(not one.fixed and one.severity is Severity.ERROR for one in self.findings)

    @property
    def warned(self) -> bool:
        """Whether there is a warning that has not been put right."""
        return any(not one.fixed and one.severity is Severity.WARNING for one in self.findings)
