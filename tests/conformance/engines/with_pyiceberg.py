"""pyiceberg writes and reads back: ``with_pyiceberg.py URL``."""

import sys

import pyarrow as pa
from pyiceberg.catalog import load_catalog

catalog = load_catalog("distop", type="rest", uri=sys.argv[1])
catalog.create_namespace("py")
rows = pa.table({"id": [1, 2, 3], "kind": ["a", "b", None]})
table = catalog.create_table("py.t", rows.schema)
table.append(rows)
table.append(rows)
table.delete("id = 1")
assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [2, 2, 3, 3]
