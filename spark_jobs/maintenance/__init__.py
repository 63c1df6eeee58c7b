"""Maintenance of a table: snapshots, branches, orphans, and ``validate``."""
