"""Sail writes and reads back: ``with_sail.py URL``."""

import sys

import documented

shown = documented.run_python("sail", sys.argv[1])
spark, server = shown["spark"], shown["server"]
assert [row.letter for row in spark.sql("SELECT * FROM default.letters").collect()] == ["a"]
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
