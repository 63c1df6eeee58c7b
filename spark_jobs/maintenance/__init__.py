"""Looking after a table: snapshots, branches, orphans, and ``validate``."""
