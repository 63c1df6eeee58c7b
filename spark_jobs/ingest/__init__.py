"""``ingest`` and ``ingest_dataframe``: rows of a source into a table, each once."""
