"""``format("distop")``: the Spark data source. The implementation is in the other modules here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from distop.spark.options import read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DistopDataSource(DataSource):
    """Tables of distop in Spark. See docs/spark-data-source.md for the options."""

    @classmethod
    def name(cls) -> str:
        return "distop"

    def schema(self) -> StructType:
        """The columns of the table, or the requested ones."""
        from distop.spark.read import table_schema

        return table_schema(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from distop.spark.read import TableReader

        return TableReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from distop.spark.stream import SnapshotStreamReader

        return SnapshotStreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from distop.spark.write import BatchWriter

        return BatchWriter(write_options(self.options, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from distop.spark.write import StreamWriter

        return StreamWriter(write_options(self.options, overwrite=overwrite), schema)


def register(session: SparkSession) -> None:
    """Register ``format("distop")`` in a session."""
    session.dataSource.register(DistopDataSource)
