"""Rules that rows must keep: as callers write them, and as they are recorded."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

MAX_SAMPLES = 100
"""Rows that may be kept for each rule and job."""


class RuleArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One rule as a caller writes it: ``not_null``, ``check``, ``type`` with ``column``, or ``unique``."""

    not_null: str | list[str] | None = None
    """Columns that must have a value, a rule each."""
    check: str | None = None
    """An SQL condition on the columns of a row. As in SQL, a row for which it is unknown (NULL) keeps it."""
    column: str | None = None
    type: str | None = None
    """The type that all values of ``column`` must fit."""
    unique: str | list[str] | None = None
    """Columns whose values, taken together, no two rows of a partition share. As in SQL, rows with a NULL
    among them are like no other."""
    name: str | None = None
    """What reports call it."""


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rule as it is recorded when the operation starts."""

    name: str
    violated: str = ""
    """SQL condition that holds for rows which break it; empty of ``unique``."""
    columns: list[str] = []
    """Those it looks at."""
    kind: Literal["row", "unique"] = "row"


class RuleSet(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """All rules of an operation, and what is shown of rows that break them."""

    rules: list[Rule]
    shown: list[str] = []
    """Columns of sample rows, besides those that a rule looks at."""
    samples: int = 5
    """Rows kept for each rule and job."""
    report_only: bool = False

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
    """Publish all the same, and only say which rules are broken."""
    samples: int = 5
    """Rows kept of each rule and job."""
    show: list[str] | None = None
    """Columns of these rows, besides those that the rule looks at. Default: those that identify a row or its
    partition, if the table says which."""
