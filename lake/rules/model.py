"""Rules that rows must keep: in callers' form and in recorded form."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

MAX_SAMPLES = 100
"""Most sample rows for each rule and job."""


class RuleArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One rule in a caller's form: ``not_null``, ``check``, ``type`` with ``column``, or ``unique``."""

    not_null: str | list[str] | None = None
    """Columns that must not be NULL, a rule each."""
    check: str | None = None
    """An SQL condition on the columns of a row. As in SQL, an unknown result (NULL) does not break it."""
    column: str | None = None
    type: str | None = None
    """The type that all values of ``column`` must fit."""
    unique: str | list[str] | None = None
    """Columns whose combined values must be unique within a partition. As in SQL, rows with a NULL among them
    are never duplicates."""
    name: str | None = None
    """Its name in reports."""


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rule as it is recorded when the operation starts."""

    name: str
    violated: str = ""
    """SQL condition that is true for rows that break it; empty for ``unique``."""
    columns: list[str] = []
    """The columns that it uses."""
    kind: Literal["row", "unique"] = "row"


class RuleSet(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """All rules of an operation, and what is shown of rows that break them."""

    rules: list[Rule]
    shown: list[str] = []
    """Columns of sample rows, in addition to those of a rule."""
    samples: int = 5
    """Sample rows for each rule and job."""
    report_only: bool = False
    warnings: list[str] = []
    """What the rules do not show; for the facts."""

    @property
    def columns(self) -> list[str]:
        """All columns that must be read."""
        return list(dict.fromkeys([*self.shown, *(name for rule in self.rules for name in rule.columns)]))

    @property
    def has_unique(self) -> bool:
        return any(rule.kind == "unique" for rule in self.rules)


RawRules: TypeAlias = str | RuleArgument | list[str | RuleArgument]
"""One rule or several. Text is a ``check``."""


class ChecksArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Rules for the rows that an operation is about to publish."""

    rules: RawRules
    report_only: bool = False
    """Publish anyway, and only report which rules are broken."""
    samples: int = 5
    """Sample rows for each rule and job."""
    show: list[str] | None = None
    """Columns of these rows, in addition to those of the rule. Default: those that identify a row or its
    partition, if the table defines them."""
