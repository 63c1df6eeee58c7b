"""Writes as Spark's tasks and driver make them, without Spark."""

import secrets
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from distop.client import Client
from distop.lake.iceberg.takeover import PreparedTask
from distop.spark.publication import Deadline, Publication, WriteOutcome, give_up, publish
from distop.spark.target import WriteOptions, WriteTarget, open_target
from support.tables.publishing import rows

COLUMNS = StructType([StructField("id", LongType()), StructField("kind", StringType())])


def begin(address: str, table: str = "t", **options: Any) -> WriteTarget:
    """A write of ids and kinds that begins now."""
    given = WriteOptions(table=table, coordinator=address, mode="append", **options)
    with Client(address, timeout_s=20) as client:
        return open_target(client, given, COLUMNS)


def task(target: WriteTarget, batches: Iterable[pa.RecordBatch]) -> PreparedTask:
    """One task, to its end."""
    stem = f"0-0-{secrets.token_hex(6)}"
    with target.writer(stem) as writer:
        for batch in batches:
            writer.write(batch)
        return PreparedTask(stem=stem, result=writer.finish())


def tasks(target: WriteTarget, start: int, count: int, *, pieces: int = 2) -> list[PreparedTask]:
    """``count`` rows with ids from ``start`` on, in several tasks."""
    each = count // pieces
    return [task(target, [rows(start + piece * each, each)]) for piece in range(pieces)]


def end(
    address: str, publication: Publication, written: list[PreparedTask], seconds: float = 20.0
) -> WriteOutcome:
    """What the driver does at the end."""
    with Client(address, timeout_s=20) as client:
        return publish(client, publication, written, Deadline(seconds))


def abandon(address: str, publication: Publication) -> bool:
    """What the driver does when the write has failed."""
    with Client(address, timeout_s=20) as client:
        return give_up(client, publication, Deadline(20.0))
