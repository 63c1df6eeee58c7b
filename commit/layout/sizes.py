"""How large a table's schema may be. Loads nothing: arguments are checked before libraries are loaded."""

from __future__ import annotations

MAX_COLUMNS, MAX_COLUMN_NAME = 10_000, 1_000
"""Of one table; characters of a name."""
