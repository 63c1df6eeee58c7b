"""Removing files that nothing refers to: staged leftovers, expired snapshots, orphans, those of dropped
tables."""
