"""How large a table's schema may be. Loads nothing: arguments are checked before libraries are loaded."""

from __future__ import annotations

MAX_COLUMNS, MAX_COLUMN_NAME, MAX_COLUMN_DOC = 10_000, 1_000, 10_000
"""Of one table; characters of a name, and of what is said about it."""

MAX_FIELDS = 1_000
"""Of one way to partition or to sort."""

MAX_NESTING = 32
"""Levels of values within values."""
