"""Spark with Java Iceberg writes and reads back: ``with_spark.py URL RUNTIME``."""

import sys

import documented
from pyspark.sql import SparkSession

from distop.spark import configure

builder = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars.packages", sys.argv[2])
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
)
spark = configure(builder, sys.argv[1]).getOrCreate()


def ids(of: str) -> list[int]:
    return [row.id for row in spark.sql(f"SELECT id FROM {of} ORDER BY id").collect()]


def run(*statements: str) -> None:
    for statement in statements:
        spark.sql(statement).collect()


run(
    "CREATE NAMESPACE distop.spark",
    "CREATE TABLE distop.spark.t (id BIGINT, kind STRING) USING iceberg PARTITIONED BY (kind)",
    "INSERT INTO distop.spark.t VALUES (1, 'a'), (2, 'b'), (3, 'b')",
)
spark.createDataFrame([(4, "c")], "id bigint, kind string").writeTo("distop.spark.t").append()
[first] = spark.sql(
    "SELECT snapshot_id FROM distop.spark.t.snapshots ORDER BY committed_at LIMIT 1"
).collect()
run(
    "MERGE INTO distop.spark.t USING (SELECT 4L AS id, 'd' AS kind UNION ALL SELECT 5L, 'e') AS n "
    "ON t.id = n.id WHEN MATCHED THEN UPDATE SET kind = n.kind WHEN NOT MATCHED THEN INSERT *",
    "UPDATE distop.spark.t SET kind = 'z' WHERE id = 1",
    "DELETE FROM distop.spark.t WHERE id = 2",
)
assert ids("distop.spark.t") == [1, 3, 4, 5]
assert ids(f"distop.spark.t VERSION AS OF {first.snapshot_id}") == [1, 2, 3]
run(
    "INSERT OVERWRITE distop.spark.t SELECT * FROM distop.spark.t WHERE id > 3",
    "ALTER TABLE distop.spark.t ADD COLUMN more INT",
    "CALL distop.system.rewrite_data_files('spark.t')",
    "CALL distop.system.expire_snapshots(table => 'spark.t', retain_last => 1)",
)
assert ids("distop.spark.t") == [4, 5]
for number in (1, 2):
    run(f"CREATE OR REPLACE TABLE distop.spark.u USING iceberg AS SELECT {number}L AS id")
# Deletes of rows in files of their own, and of a partition.
run(
    "CREATE TABLE distop.spark.s (id BIGINT, kind STRING, day DATE) USING iceberg "
    "PARTITIONED BY (kind, months(day)) TBLPROPERTIES ('write.delete.mode'='merge-on-read')",
    "INSERT INTO distop.spark.s SELECT id, CASE WHEN id % 3 = 2 THEN NULL ELSE concat('k', id % 3) END, "
    "date_add(DATE '2024-01-01', CAST(id AS INT)) FROM range(90)",
    "DELETE FROM distop.spark.s WHERE id IN (7, 8)",
)
assert len(ids("distop.spark.s")) == 88
run("DELETE FROM distop.spark.s WHERE kind = 'k1' AND id > 50")
assert ids("distop.spark.s") == [n for n in range(90) if n not in (7, 8) and not (n % 3 == 1 and n > 50)]

# Watermarks that wait on a branch until it is the main one.
run("ALTER TABLE distop.spark.t CREATE BRANCH side")
rows = spark.createDataFrame([(6, "f")], "id bigint, kind string")


def to_branch(position: str) -> None:
    property_ = "snapshot-property.distop.watermark.spark.0"
    rows.selectExpr("id", "kind", "CAST(NULL AS INT) AS more").writeTo("distop.spark.t.branch_side").option(
        property_, position
    ).append()


to_branch("1")
refused = ""
try:
    to_branch("1")
except Exception as error:
    refused = str(error)
assert "ALREADY_INGESTED" in refused, refused
assert ids("distop.spark.t") == [4, 5]
run("CALL distop.system.fast_forward('spark.t', 'main', 'side')")
assert ids("distop.spark.t") == [4, 5, 6]
run("DROP TABLE distop.spark.s PURGE", "ALTER TABLE distop.spark.u RENAME TO spark.w")
assert ids("distop.spark.w") == [2]
run(
    "CREATE VIEW distop.spark.v (number COMMENT 'of the row') AS SELECT id FROM distop.spark.t",
    "ALTER VIEW distop.spark.v SET TBLPROPERTIES ('user.note' = 'conformance')",
)
assert sorted(row.number for row in spark.table("distop.spark.v").collect()) == [4, 5, 6]
run(
    "CREATE OR REPLACE VIEW distop.spark.v AS SELECT max(id) AS top FROM distop.spark.t",
    "ALTER VIEW distop.spark.v RENAME TO distop.spark.x",
)
assert [row.top for row in spark.table("distop.spark.x").collect()] == [6]
assert [row.viewName for row in spark.sql("SHOW VIEWS IN distop.spark").collect()] == ["x"]
run("DROP VIEW distop.spark.x", "DROP TABLE distop.spark.w PURGE")
assert [row.tableName for row in spark.sql("SHOW TABLES IN distop.spark").collect()] == ["t"]

run("CREATE TABLE distop.default.flights USING iceberg AS SELECT 1L AS id")
documented.run_python("spark", sys.argv[1])
run(*documented.statements("spark", {}))
assert ids("distop.default.kinds") == [1, 1]
assert [
    row.value
    for row in spark.sql(
        "SHOW TBLPROPERTIES distop.default.flights ('write.parquet.compression-codec')"
    ).collect()
] == ["zstd"]
run("DROP TABLE distop.default.flights PURGE", "DROP TABLE distop.default.kinds PURGE")
