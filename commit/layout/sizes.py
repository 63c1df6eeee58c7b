"""Limits of a table's schema. Loads nothing: arguments are checked before libraries are loaded."""

from __future__ import annotations

MAX_COLUMNS, MAX_COLUMN_NAME, MAX_COLUMN_DOC = 10_000, 1_000, 10_000
"""Columns of one table; characters of a name, and of a comment."""

MAX_FIELDS = 1_000
"""Fields to partition or to sort by."""

MAX_NESTING = 32
"""Levels of nested values."""
