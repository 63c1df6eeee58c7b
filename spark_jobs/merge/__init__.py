"""Merging rows of a batch with rows of a table, by keys: ingest's mode ``merge``."""
