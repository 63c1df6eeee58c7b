"""``ingest`` and ``ingest_dataframe``: rows of a source into a table, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distop.spark_jobs.ingest.dataframe import ingest_dataframe

__all__ = ["ingest_dataframe"]


def __getattr__(name: str) -> Any:
    # On demand: coordinators and Spark's workers import this package without Spark's session.
    if name == "ingest_dataframe":
        from distop.spark_jobs.ingest.dataframe import ingest_dataframe

        return ingest_dataframe
    raise AttributeError(name)
