"""The rows of a table and the rows of a batch, brought together by keys: ingest's mode ``merge``."""
