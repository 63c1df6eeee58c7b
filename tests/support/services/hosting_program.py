"""A user's own program with rows that only it has. Its arguments: ADDRESS FOLDER.

Deals the rows out at random, without Spark. In ``FOLDER``: jobs other than the first wait for ``release``.
Ends with 0 once the rows are in the table.
"""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from distop.client import Client
from distop.executor.runner import run_hosted
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from distop.spark.dataframe import columns_of
from distop.spark_jobs.ingest.operation import DataFrameIngest

ROWS = 500


class Part:
    """Some of the rows; read again if the program loses its lease and begins again."""

    def __init__(self, ids: list[int], release: Path | None) -> None:
        self._ids, self._release = ids, release

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(self._ids, pa.int64())], names=["id"])
        while self._release is not None and not self._release.exists():
            time.sleep(0.005)


def dealt(folder: Path) -> list[Part]:
    """The rows, in some order, in some number of parts."""
    ids = random.sample(range(ROWS), ROWS)
    parts = random.randint(3, 7)
    return [Part(ids[part::parts], folder / "release" if part else None) for part in range(parts)]


def main(address: str, folder: str) -> int:
    with Client(address, timeout_s=20, connect_timeout_s=20) as client:
        argument = {"columns": columns_of(pa.schema([("id", pa.int64())])), "source": "own"}
        argument["watermark"] = {"day": "2024-05-01"}
        operation = client.start("t", DataFrameIngest.type, argument, run="nightly")
        ended = run_hosted(
            OperationId.parse(operation.name),
            DataFrameIngest(dealt(Path(folder))),
            lambda: operation.wait(timeout_s=1.0),
            session=None,
            etcd=EtcdConfig.from_env(),
            lease_ttl_s=2,
        )
        print(ended.raise_for_outcome().facts)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
