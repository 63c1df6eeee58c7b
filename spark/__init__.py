"""The interface for programs with a Spark session: tables as DataFrames, the data source
``format("distop")``, streams, and Iceberg's own runtime over distop's catalog (:func:`configure`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distop.spark.session import configure

if TYPE_CHECKING:
    from distop.spark.api import read, register, write
    from distop.spark.dataframe import ingest_dataframe

__all__ = ["configure", "ingest_dataframe", "read", "register", "write"]


def __getattr__(name: str) -> Any:
    # Imported on demand: configure needs no library, so that it can be used wherever a session is made.
    if name in ("read", "register", "write"):
        from distop.spark import api

        return getattr(api, name)
    if name == "ingest_dataframe":
        from distop.spark.dataframe import ingest_dataframe

        return ingest_dataframe
    raise AttributeError(name)
