"""Sail writes and reads back: ``with_sail.py URL``."""

import os
import sys

os.environ["SAIL_CATALOG__LIST"] = f'[{{name="lake", type="iceberg-rest", uri="{sys.argv[1]}"}}]'
os.environ["SAIL_CATALOG__DEFAULT_CATALOG"] = "lake"

from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

server = SparkConnectServer("127.0.0.1", 0)
server.start()
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
for statement in (
    "CREATE DATABASE sail",
    "CREATE TABLE sail.t (id BIGINT, kind STRING) USING iceberg",
    "INSERT INTO sail.t VALUES (1, 'a'), (2, 'b')",
    "INSERT INTO sail.t VALUES (3, 'c')",
):
    spark.sql(statement).collect()
assert [row.id for row in spark.sql("SELECT * FROM sail.t ORDER BY id").collect()] == [1, 2, 3]
spark.stop()
server.stop()
