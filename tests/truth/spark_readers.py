"""The readers that are Spark: its own of Parquet files, and distop's two of tables."""

from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from distop.spark import read
from truth.installation import Installation
from truth.readers import READ, SOURCE, SPARK, Reader, paths_of


def readers_of(installation: Installation, session: SparkSession) -> Mapping[str, Reader]:
    """By their names."""

    def with_read(table: Table, where: str) -> pa.Table:
        frame = read(session, table.name()[-1], filter=where, coordinator=installation.address)
        return frame.toArrow()

    def with_source(table: Table, where: str) -> pa.Table:
        options = {"table": table.name()[-1], "coordinator": installation.address, "filter": where}
        return session.read.format("distop").options(**options).load().toArrow()

    def with_spark(table: Table, where: str) -> pa.Table:
        return session.read.parquet(*paths_of(table, where)).toArrow()

    return {READ: with_read, SOURCE: with_source, SPARK: with_spark}
