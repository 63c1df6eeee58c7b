"""A streaming query from one table into another: a Spark program of its own, for the demo to kill.

``stream.py FROM INTO CHECKPOINT [FILES [MASTER [KEY=VALUE...]]]``: so many files to a batch, on this master,
with these settings of Spark. Runs until it is ended; ``DISTOP_ADDRESS`` says where coordinators are.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from distop.spark import register


def main(source: str, target: str, checkpoint: str, files: str = "2", master: str = "", *more: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if not master:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings: dict[str, bool | float | int | str | None] = {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "distop.executor.launch.spark_daemon",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        **dict(setting.split("=", 1) for setting in more),
    }
    spark = SparkSession.builder.master(master or "local[2]").config(map=settings).getOrCreate()
    register(spark)
    flown = spark.readStream.format("distop").option("table", source).option("maxFilesPerTrigger", int(files))
    query = flown.load().writeStream.format("distop").option("table", target)
    query.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
