"""Appends rows over HTTP, each once: ``with_duckdb.py URL TOKEN TABLE FIRST COUNT``.

It cannot say what it has committed: so it looks whether a row is there before it sends it again.
"""

import importlib
import sys
import time
from pathlib import Path

import duckdb

url, token, name, first, count = sys.argv[1:]


def opened() -> duckdb.DuckDBPyConnection:
    lake = duckdb.connect()
    for extension in ("httpfs", "avro", "iceberg"):
        module = importlib.import_module(f"duckdb_extension_{extension}")
        [file] = Path(module.__path__[0]).rglob("*.duckdb_extension")
        lake.execute(f"LOAD '{file}'")
    lake.execute(f"CREATE SECRET (TYPE iceberg, TOKEN '{token}')")
    lake.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{url}')")
    return lake


deadline = time.monotonic() + 120
for number in range(int(first), int(first) + int(count)):
    while True:
        try:
            lake = opened()
            there = lake.execute(f'SELECT count(*) FROM lake.default."{name}" WHERE id = {number}').fetchone()
            if there != (0,):
                break
            lake.execute(f"INSERT INTO lake.default.\"{name}\" VALUES ({number}, 'foreign', 'f')")
            break
        except duckdb.Error as error:  # the coordinator is killed all the time, and others are faster
            print(number, repr(error)[:300], file=sys.stderr, flush=True)
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
