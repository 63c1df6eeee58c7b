"""DuckDB writes and reads back, two tables in one transaction, too: ``with_duckdb.py URL``."""

import importlib
import sys
from pathlib import Path

import documented
import duckdb

lake = duckdb.connect()
for extension in ("httpfs", "avro", "iceberg"):
    module = importlib.import_module(f"duckdb_extension_{extension}")
    [file] = Path(module.__path__[0]).rglob("*.duckdb_extension")
    lake.execute(f"LOAD '{file}'")
for statement in documented.statements("duckdb", {documented.CATALOG: sys.argv[1]}):
    lake.execute(statement)
assert lake.execute("SELECT * FROM lake.default.kinds").fetchall() == [(1, "a")]
assert lake.execute("SELECT * FROM lake.default.others").fetchall() == [(2,)]
lake.execute("DROP TABLE lake.default.kinds")
lake.execute("DROP TABLE lake.default.others")
lake.execute("CREATE SCHEMA lake.duck")
lake.execute("CREATE TABLE lake.duck.t (id BIGINT, kind VARCHAR)")
lake.execute("CREATE TABLE lake.duck.u (id BIGINT)")
lake.execute("INSERT INTO lake.duck.t VALUES (1, 'a'), (2, 'b'), (3, NULL)")
lake.execute("BEGIN")
lake.execute("INSERT INTO lake.duck.t VALUES (4, 'd')")
lake.execute("INSERT INTO lake.duck.u VALUES (5)")
lake.execute("COMMIT")
lake.execute("UPDATE lake.duck.t SET kind = 'z' WHERE id = 2")
lake.execute("DELETE FROM lake.duck.t WHERE id = 1")
rows = lake.execute("SELECT * FROM lake.duck.t ORDER BY id").fetchall()
assert rows == [(2, "z"), (3, None), (4, "d")], rows
assert lake.execute("SELECT * FROM lake.duck.u").fetchall() == [(5,)]
