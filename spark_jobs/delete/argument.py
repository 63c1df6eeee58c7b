"""The argument of ``delete``."""

from __future__ import annotations

import msgspec

from distop.operations.arguments import invalid

MAX_WHERE_CHARACTERS = 100_000

_FIELD = "where"
_HINT = "write for example: day < '2013-02-01' and kind in ('a', 'b')"


class DeleteArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which rows to delete, and from where."""

    where: str | bool
    """Rows for which this is true are deleted; those for which it is false stay, and those for which a NULL
    makes it unknown."""
    branch: str | None = None
    """Delete from this branch of the table, instead of the table itself."""

    def __post_init__(self) -> None:
        if not self.condition.strip():
            raise invalid(
                _FIELD, "--arg where is empty: it selects the rows to delete", _HINT + "; for all rows: true"
            )
        if len(self.condition) > MAX_WHERE_CHARACTERS:
            raise invalid(
                _FIELD,
                f"--arg where has {len(self.condition):,} characters of at most {MAX_WHERE_CHARACTERS:,}",
                "delete in several operations",
            )

    @property
    def condition(self) -> str:
        """The text of ``where``; ``--arg where=true`` makes it a boolean."""
        return self.where if isinstance(self.where, str) else str(self.where).lower()
