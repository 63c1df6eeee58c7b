"""The operations that come with distop, and tables as Spark DataFrames."""

from distop.spark_jobs.dataframes.api import read, register, write

__all__ = ["read", "register", "write"]
