"""Rows written through ``format("distop")`` exist once, whichever process is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.repository import TESTS
from support.spark.spark_driver import COLUMNS, numbers
from support.spark.spark_service import Service, writing
from support.waiting import until

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


class Killed:
    """A program that wrote as a run and ran a stream, and was killed half-way in both."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.written, self.streamed = service.table(), service.table()
        self.source, self.checkpoint = folder / "src", folder / "checkpoint"
        self.source.mkdir()
        for number in range(4):
            rows = [json.dumps({"id": number * 100 + i, "kind": f"k{i % 2}"}) for i in range(100)]
            (self.source / f"{number}.json").write_text("\n".join(rows))
            os.utime(self.source / f"{number}.json", (number + 1, number + 1))
        given = {
            "coordinator": service.address,
            "gate": str(folder / "gate"),
            "write": {"table": self.written, "run": "nightly"},
            "stream": {"table": self.streamed, "checkpointLocation": str(self.checkpoint)},
            "source": str(self.source),
        }
        command = [sys.executable, "-m", "support.spark.spark_driver", json.dumps(given)]
        log = folder / "driver.log"
        with log.open("wb") as output:
            environment = {**os.environ, "PYTHONPATH": str(TESTS)}
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )

        def half_way() -> bool:
            assert process.poll() is None, log.read_text()[-4000:]
            reached = [any(folder.glob(f"gate.{what}.*")) for what in ("write", "stream")]
            return all(reached) and bool(service.files(self.written))

        try:
            until(half_way)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the driver, its JVM and its workers, all at once
            process.wait(60)


@pytest.fixture(scope="module")
def killed(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return Killed(service, tmp_path_factory.mktemp("killed"))


DRIVER = pytest.mark.slow("starts a driver of its own, which is a JVM, to kill it")


@DRIVER
def test_a_driver_that_is_killed_can_write_again_as_the_same_run(
    service: Service, spark: Any, killed: Killed
) -> None:
    """P2, P8, P15"""
    table = killed.written
    assert service.operations(table) == []
    for _ in range(2):
        writing(service, table, numbers(spark, 1000), run="nightly")
    assert service.ids(table) == list(range(1000))
    assert sum("rows" in operation.facts for operation in service.operations(table)) == 1


@DRIVER
def test_a_stream_whose_driver_is_killed_has_every_row_once(
    service: Service, spark: Any, killed: Killed
) -> None:
    """P15: killed in the middle of a batch; and again, once one was published and Spark had not noted it."""
    table, checkpoint = killed.streamed, killed.checkpoint
    assert service.ids(table) == list(range(200))

    def run() -> None:
        stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(killed.source))
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
    assert newest.run == f"{query_id}.3"
    assert service.client.table(table).watermarks() == {f"stream:{query_id}": {"batch": "3"}}
