"""Appends rows over HTTP, each once: ``with_pyiceberg.py URL TOKEN TABLE FIRST COUNT``.

Each row has a run: a writer that gets no reply to a commit sends it again.
"""

import sys
import time

import pyarrow as pa
from pyiceberg.catalog import load_catalog

url, token, name, first, count = sys.argv[1:]
deadline = time.monotonic() + 120
for number in range(int(first), int(first) + int(count)):
    while True:
        try:
            catalog = load_catalog("chaos", type="rest", uri=url, token=token)
            table = catalog.load_table(f"default.{name}")
            row = {"id": [number], "batch": ["foreign"], "kind": ["f"]}
            properties = {"distop.run": f"row-{number}", "distop.on-conflict": "rebase"}
            table.append(pa.table(row, schema=table.schema().as_arrow()), snapshot_properties=properties)
            break
        except Exception as error:  # the coordinator is killed all the time
            print(number, repr(error)[:300], file=sys.stderr, flush=True)
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
