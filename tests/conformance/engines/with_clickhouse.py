"""ClickHouse writes and reads back: ``with_clickhouse.py URL``; the environment leads to the store."""

import os
import sys
from urllib.parse import urlsplit

import documented
import pyarrow as pa
from chdb.session import Session
from pyiceberg.catalog import load_catalog

URL, STORE = sys.argv[1], os.environ["AWS_ENDPOINT_URL"]
KEYS = f"'{os.environ['AWS_ACCESS_KEY_ID']}', '{os.environ['AWS_SECRET_ACCESS_KEY']}'"

store = {"s3.endpoint": STORE, "s3.region": os.environ["AWS_REGION"]}
catalog = load_catalog("distop", type="rest", uri=URL, **store)
catalog.create_namespace("ch")
for name in ("flights", "kinds"):
    catalog.create_table(f"default.{name}", pa.schema({"id": pa.int64(), "kind": pa.string()}))
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


places = {
    documented.CATALOG: URL,
    "http://STORE:9000/BUCKET": bucket,
    "'KEY', 'SECRET'": KEYS,
}
run(*documented.statements("clickhouse", places))
assert rows_of("ch.t") == ['1,"a"', '2,"b"', "3,\\N"], rows_of("ch.t")
run(
    "INSERT INTO lake.`ch.t` VALUES (4, 'd')",
    "ALTER TABLE lake.`ch.t` DELETE WHERE id = 1",
    "ALTER TABLE lake.`ch.t` UPDATE kind = 'z' WHERE id = 2",
    "CREATE TABLE lake.`ch.made` (id Int64, kind Nullable(String)) "
    f"ENGINE = IcebergS3('{bucket}/warehouse/ours', {KEYS})",
    "INSERT INTO lake.`ch.made` VALUES (1, 'a')",
)
assert rows_of("ch.t") == ['2,"z"', "3,\\N", '4,"d"'], rows_of("ch.t")
assert rows_of("ch.made") == ['1,"a"']
for name, expected in (("t", {2: "z", 3: None, 4: "d"}), ("made", {1: "a"})):
    held = catalog.load_table(f"ch.{name}").scan().to_arrow().to_pydict()
    assert dict(zip(held["id"], held["kind"], strict=True)) == expected, held
    run(f"DROP TABLE lake.`ch.{name}`")
    assert not catalog.table_exists(f"ch.{name}"), name
