"""The door for programs with a Spark session: tables as DataFrames, the data source ``format("distop")``,
streams, and Iceberg's own runtime over distop's catalog (:func:`configure`).

Importing it needs neither pyspark nor pyarrow.
"""

from distop.spark.api import read, register, write
from distop.spark.session import configure

__all__ = ["configure", "read", "register", "write"]
