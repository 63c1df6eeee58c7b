"""What Spark's own FileOutputCommitter costs on local disk: ``hadoop_commit.py FOLDER ROWS F...``.

Writes the frame with F files by algorithm version 1 and by 2, in one Spark session, and takes the times of
the commits from Spark's own log: ``Write Job ... committed. Elapsed time: N ms`` in the driver,
``attempt...: Committed. Elapsed time: N ms`` in the tasks. Spark cuts the latter to whole milliseconds, so
the sum over thousands of them is too low rather than too high. Hadoop's local file system does without its
checksum files here, which spares it a third of its work (it starts a process per file, to set its mode).

Prints one JSON object: version -> F -> {"whole_s", "job_commit_s", "task_commit_s"}.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

from common import sized
from frame import COLUMNS
from pyspark.sql import DataFrame, SparkSession

MASTER, SLOTS = "local[2]", 2
VERSIONS = (1, 2)
LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.commits.ref = commits
appender.commits.type = File
appender.commits.name = commits
appender.commits.fileName = {log}
appender.commits.layout.type = PatternLayout
appender.commits.layout.pattern = %m%n
logger.writer.name = org.apache.spark.sql.execution.datasources.FileFormatWriter
logger.writer.level = info
logger.tasks.name = org.apache.spark.mapred.SparkHadoopMapRedUtil
logger.tasks.level = info
"""
_JOB = re.compile(r"Write Job .* committed\. Elapsed time: (\d+) ms")
_TASK = re.compile(r"attempt_\S+: Committed\. Elapsed time: (\d+) ms")


def session(folder: Path) -> SparkSession:
    """A session that logs its commits."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = folder / "log4j2.properties"
    settings.write_text(LOGGING.format(log=folder / "commits.log"))
    return (
        SparkSession.builder.master(MASTER)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.hadoop.fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{settings}")
        .getOrCreate()
    )


def frame(spark: SparkSession, rows: int, files: int) -> DataFrame:
    """The frame in as many partitions as there are to be files."""
    columns = [f"{expression} AS {name}" for name, (_, expression) in COLUMNS.items()]
    return spark.range(rows * files, numPartitions=SLOTS).repartition(files).selectExpr(*columns)


def write(spark: SparkSession, folder: Path, version: int, rows: int, files: int) -> dict[str, float]:
    """One write; its times in seconds."""
    log = folder / "commits.log"
    logged_before = log.stat().st_size
    began = time.perf_counter()
    (
        frame(spark, rows, files)
        .write.option("mapreduce.fileoutputcommitter.algorithm.version", version)
        .parquet(str(folder / f"v{version}-{files}"))
    )
    whole = time.perf_counter() - began
    with log.open() as lines:
        lines.seek(logged_before)
        logged = lines.read()
    jobs, tasks = ([int(ms) / 1e3 for ms in pattern.findall(logged)] for pattern in (_JOB, _TASK))
    if len(jobs) != 1 or len(tasks) != files:
        raise SystemExit(f"Spark's log shows {len(jobs)} job commits and {len(tasks)} task commits")
    # Tasks run in all slots at once, so the job is as much longer for them as one slot spends on its share.
    return {"whole_s": whole, "job_commit_s": jobs[0], "task_commit_s": sum(tasks) / SLOTS}


def main(folder: str, rows: str, *sizes: str) -> None:
    spark = session(Path(folder))
    write(spark, Path(folder), 1, int(rows), sized(20, 2))  # classes are loaded, the code is compiled
    taken = {
        version: {size: write(spark, Path(folder), version, int(rows), int(size)) for size in sizes}
        for version in VERSIONS
    }
    print(json.dumps(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
