"""The argument of ``delete``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from distop.operations.arguments import invalid, parse

MAX_WHERE_CHARACTERS = 100_000

_FIELD = "where"
_HINT = "write for example: day < '2013-02-01' and kind in ('a', 'b')"


class DeleteArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which rows to delete, and from where."""

    where: str
    """Rows for which this is true are deleted; those for which it is false stay, and those for which a NULL
    makes it unknown."""
    branch: str | None = None
    """Delete from this branch of the table, instead of the table itself."""


def parse_argument(raw: Mapping[str, Any]) -> DeleteArgument:
    """Raises :class:`~distop.errors.InvalidArgument`; ``details["field"]`` names the field."""
    raw = dict(raw)
    if isinstance(raw.get(_FIELD), bool):
        raw[_FIELD] = str(raw[_FIELD]).lower()  # what --arg where=true is
    argument = parse(raw, DeleteArgument, "delete")
    if not argument.where.strip():
        raise invalid(
            _FIELD, "--arg where is empty: it selects the rows to delete", _HINT + "; for all rows: true"
        )
    if len(argument.where) > MAX_WHERE_CHARACTERS:
        raise invalid(
            _FIELD,
            f"--arg where has {len(argument.where):,} characters of at most {MAX_WHERE_CHARACTERS:,}",
            "delete in several operations",
        )
    return argument
