"""A user's own Spark program that runs operations: ``python -m support.spark.spark_program MASTER``.

Ends with 0 if its session is as good as before once it was asked to stop.
"""

from __future__ import annotations

import logging
import sys

from pyspark.sql import SparkSession

import distop.executor
from distop.executor.launch import SETTINGS


def main(master: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s %(__dict__)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder.master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    code = distop.executor.run(session, types=["traced", "noop"])
    rows = session.range(3).count()
    session.stop()
    return code if rows == 3 else 3


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
