"""The watermarks of a table as ``plan`` gets them, for types that look up many: reads go together."""

from distop.metastore.records.watermarks import Entry, Marks, upwards

__all__ = ["Entry", "Marks", "upwards"]
