"""A program that knows pyiceberg and nothing else. Its arguments: TABLE ROUNDS START.

Appends ``ROUNDS`` times one row, each with an id of its own from ``START`` on, through the etcd catalog.
"""

import datetime
import sys

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

from distop.metastore.etcd.config import EtcdConfig


def main(name: str, rounds: str, start: str) -> None:
    etcd = EtcdConfig.from_env()
    where = {"etcd.endpoints": ",".join(etcd.endpoints), "etcd.prefix": etcd.prefix}
    kind = {"py-catalog-impl": "distop.catalog.catalog.EtcdCatalog"}
    catalog = load_catalog("foreign", **kind, **where)
    for number in range(int(start), int(start) + int(rounds)):
        row = {"id": [number], "kind": ["foreign"], "day": [datetime.date(2013, 12, 31)]}
        while True:
            table = catalog.load_table(name)
            rows = pa.table(row, schema=table.schema().as_arrow())
            try:
                table.append(rows)
                break
            except CommitFailedException:
                continue  # somebody else was first, and nothing was written: again, on what stands now


if __name__ == "__main__":
    main(*sys.argv[1:])
