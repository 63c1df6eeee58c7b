"""A program that knows pyiceberg and nothing else: ``python -m chaos.foreign TABLE ID``.

Appends one row unless it is there already: started again after it was killed, it goes on where it stopped.
"""

import sys

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from distop.catalog.catalog import EtcdCatalog
from distop.metastore.etcd.config import EtcdConfig


def main(name: str, identity: str) -> None:
    etcd = EtcdConfig.from_env()
    properties = {"etcd.endpoints": ",".join(etcd.endpoints), "etcd.prefix": etcd.prefix}
    catalog = EtcdCatalog("foreign", **properties)
    row = {"id": [int(identity)], "batch": ["foreign"], "kind": ["f"]}
    while True:
        table = catalog.load_table(f"default.{name}")
        if table.scan(row_filter=f"id = {identity}").to_arrow().num_rows:
            return
        try:
            table.append(pa.table(row, schema=table.schema().as_arrow()))
        except (CommitFailedException, CommitStateUnknownException):
            continue  # look again whether it is there


if __name__ == "__main__":
    main(*sys.argv[1:])
