"""Rows written through ``format("distop")`` exist once, whichever process is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.spark.spark_driver import COLUMNS, numbers
from support.spark.spark_service import Program, Service, cluster, until, writing

pytestmark = pytest.mark.spark


def test_a_worker_that_is_killed_costs_time_and_no_row(service: Service, spark: Any) -> None:
    """P2, O11: Spark tries its task again."""
    table, marker = service.table(), service.folder / "killed"

    def deadly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if 700 in batch["id"].to_pylist() and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    writing(service, table, numbers(spark, 1000).mapInArrow(deadly, COLUMNS))
    assert marker.exists()
    assert service.ids(table) == list(range(1000))
    until(lambda: service.files(table) == service.published(table))


def test_a_lost_executor_and_a_speculative_attempt_cost_time_and_no_row(
    service: Service, tmp_path: Path
) -> None:
    """P2, O11: the executor of one task is killed, another task is overtaken by a copy of itself."""
    table = service.table()
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.executor.memory": "600m",
    }
    given = {"rows": 1000, "at": 999, "deadly": 0, "settings": settings}
    with (
        cluster(tmp_path) as master,
        Program(service, tmp_path, master=master, options={"table": table}, **given) as program,
    ):
        program.succeeds()
    assert (tmp_path / "gate.deadly").exists()
    assert (tmp_path / "gate.slow").exists()
    assert service.ids(table) == list(range(1000))
    published = [operation for operation in service.operations(table) if "snapshotId" in operation.facts]
    assert len(published) == 1


def test_a_driver_that_is_killed_can_write_again_under_the_same_request_id(
    service: Service, spark: Any, tmp_path: Path
) -> None:
    """P2, P8, P15"""
    table = service.table()
    options = {"table": table, "requestId": "nightly"}
    with Program(service, tmp_path, master="local[2]", rows=1000, at=999, options=options) as program:
        until(program.reached)
        until(lambda: service.files(table))
    assert service.operations(table) == []
    for _ in range(2):
        writing(service, table, numbers(spark, 1000), requestId="nightly")
    assert service.ids(table) == list(range(1000))
    assert sum("rows" in operation.facts for operation in service.operations(table)) == 1


def test_a_stream_whose_driver_is_killed_has_every_row_once(
    service: Service, spark: Any, tmp_path: Path
) -> None:
    """P15: killed in the middle of a batch; and again, once one was published and Spark had not noted it."""
    table, source, checkpoint = service.table(), tmp_path / "src", tmp_path / "checkpoint"
    source.mkdir()
    for number in range(4):
        rows = [json.dumps({"id": number * 100 + i, "kind": f"k{i % 2}"}) for i in range(100)]
        (source / f"{number}.json").write_text("\n".join(rows))
        os.utime(source / f"{number}.json", (number + 1, number + 1))
    given = {"stream": str(source), "checkpoint": str(checkpoint), "options": {"table": table}, "at": 250}
    with Program(service, tmp_path, master="local[2]", **given) as program:
        until(program.reached)
        assert service.ids(table) == list(range(200))

    def run() -> None:
        stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(source))
        query = (
            stream.writeStream.format("distop")
            .options(table=table, coordinator=service.address, checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert service.ids(table) == list(range(400))
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    run()
    assert service.ids(table) == list(range(400))
    published = [operation for operation in service.operations(table) if "snapshotId" in operation.facts]
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    newest = max(published, key=lambda operation: operation.facts["series"]["operations"])
    told = newest.facts["series"]
    assert (told["name"], told["operations"], told["rows"]) == (f"stream:{query_id}", 4, 400)
    assert newest.request_id == f"{query_id}.3"
    assert service.client.watermarks(table) == {f"stream:{query_id}": {"batch": "3"}}
