"""Daft writes and reads back: ``with_daft.py URL``."""

import sys

import daft
import documented
import pyarrow as pa
from daft.catalog import Catalog
from pyiceberg.catalog import load_catalog

iceberg = load_catalog("distop", type="rest", uri=sys.argv[1])
catalog = Catalog.from_iceberg(iceberg)
catalog.create_namespace("daft")
rows = daft.from_pydict({"id": [1, 2, 3], "kind": ["a", "b", None]})
table = catalog.create_table("daft.t", rows.schema())
table.append(rows)
table.append(rows)
assert catalog.read_table("daft.t").where("id > 1").sort("id").to_pydict()["id"] == [2, 2, 3, 3]
table.overwrite(rows)
session = daft.Session()
session.attach(catalog, alias="lake")
assert session.sql("SELECT count(*) AS n FROM lake.daft.t").to_pydict() == {"n": [3]}

for name in ("flights", "numbers"):
    iceberg.create_table(f"default.{name}", pa.schema({"id": pa.int64()}))
documented.run_python("daft", sys.argv[1])
assert catalog.read_table("default.numbers").to_pydict() == {"id": [3]}
for name in ("flights", "numbers"):
    iceberg.drop_table(f"default.{name}")
