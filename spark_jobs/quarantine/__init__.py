"""Rows in quarantine as the source of an ingest."""
