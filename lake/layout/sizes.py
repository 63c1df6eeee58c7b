"""Limits of a table's schema. Loads nothing: arguments are checked before libraries are loaded."""

from __future__ import annotations

MAX_COLUMNS, MAX_COLUMN_NAME, MAX_COLUMN_DOC = 10_000, 1_000, 10_000
"""Columns of one table; characters of a name, and of a comment."""

MAX_FIELDS = 1_000
"""Fields to partition or to sort by."""

MAX_NESTING = 32
"""Levels of nested values."""

MAX_ID = 2_147_483_447
"""Of columns and partition fields; Iceberg keeps the 200 above it for its own columns. For schemas, partition
specs and sort orders, too, whose ids have 31 bits."""
