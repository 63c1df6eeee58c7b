"""Polars writes and reads back: ``with_polars.py URL``."""

import sys

import documented
import polars as pl
from pyiceberg.catalog import load_catalog

catalog = load_catalog("distop", type="rest", uri=sys.argv[1])
catalog.create_namespace("polars")
rows = pl.DataFrame({"id": [1, 2, 3], "kind": ["a", "b", None]})
table = catalog.create_table("polars.t", rows.to_arrow().schema)
rows.write_iceberg(table, mode="append")
rows.write_iceberg(table, mode="append")
scanned = pl.scan_iceberg(catalog.load_table("polars.t")).filter(pl.col("id") > 1).collect()
assert sorted(scanned["id"]) == [2, 2, 3, 3]
rows.write_iceberg(table, mode="overwrite")
assert pl.scan_iceberg(catalog.load_table("polars.t")).collect().sort("id").equals(rows)

documented.run_python("polars", sys.argv[1])
assert sorted(catalog.load_table("default.numbers").scan().to_arrow()["id"].to_pylist()) == [1, 2]
catalog.drop_table("default.numbers")
