"""ClickHouse writes and reads back: ``with_clickhouse.py URL``; the environment leads to the store."""

import os
import sys
from urllib.parse import urlsplit

import pyarrow as pa
from chdb.session import Session
from pyiceberg.catalog import load_catalog

URL, STORE = sys.argv[1], os.environ["AWS_ENDPOINT_URL"]
KEYS = f"'{os.environ['AWS_ACCESS_KEY_ID']}', '{os.environ['AWS_SECRET_ACCESS_KEY']}'"

store = {"s3.endpoint": STORE, "s3.region": os.environ["AWS_REGION"]}
catalog = load_catalog("distop", type="rest", uri=URL, **store)
catalog.create_namespace("ch")
rows = pa.table({"id": [1, 2, 3], "kind": ["a", "b", None]})
table = catalog.create_table("ch.t", rows.schema)
table.append(rows)
bucket = f"{STORE}/{urlsplit(table.location()).netloc}"

house = Session()


def run(*statements: str) -> None:
    for statement in statements:
        house.query(statement)


def rows_of(name: str) -> list[str]:
    return str(house.query(f"SELECT * FROM lake.`{name}` ORDER BY id")).split()


run(
    "SET allow_database_iceberg = 1",
    "SET allow_insert_into_iceberg = 1",
    # Otherwise it writes the paths of files without the name of their store.
    "SET write_full_path_in_iceberg_metadata = 1",
    f"CREATE DATABASE lake ENGINE = DataLakeCatalog('{URL}/v1', {KEYS}) "
    f"SETTINGS catalog_type = 'rest', warehouse = 'distop', storage_endpoint = '{bucket}'",
)
assert rows_of("ch.t") == ['1,"a"', '2,"b"', "3,\\N"], rows_of("ch.t")
run(
    "INSERT INTO lake.`ch.t` VALUES (4, 'd')",
    "ALTER TABLE lake.`ch.t` DELETE WHERE id = 1",
    "ALTER TABLE lake.`ch.t` UPDATE kind = 'z' WHERE id = 2",
    "CREATE TABLE lake.`ch.made` (id Int64, kind Nullable(String)) "
    f"ENGINE = IcebergS3('{bucket}/warehouse/made', {KEYS})",
    "INSERT INTO lake.`ch.made` VALUES (1, 'a')",
)
assert rows_of("ch.t") == ['2,"z"', "3,\\N", '4,"d"'], rows_of("ch.t")
assert rows_of("ch.made") == ['1,"a"']
for name, expected in (("t", {2: "z", 3: None, 4: "d"}), ("made", {1: "a"})):
    held = catalog.load_table(f"ch.{name}").scan().to_arrow().to_pydict()
    assert dict(zip(held["id"], held["kind"], strict=True)) == expected, held
    run(f"DROP TABLE lake.`ch.{name}`")
    assert not catalog.table_exists(f"ch.{name}"), name
