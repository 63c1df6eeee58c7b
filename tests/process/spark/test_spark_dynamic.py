"""Ingest whose input is a DataFrame, on a real Spark."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distop.client import OperationState
from distop.executor.host.sidecar_folder import BASE_VARIABLE
from distop.metastore.etcd.config import EtcdConfig
from support.etcd.lossy import LossyClient
from support.processes import children
from support.services.executing import Child, executor_process, short_folder
from support.services.whole import Whole, coordinated, write_csv
from support.spark.dataframe_program import AT_ONCE, PARTITIONS
from support.spark.dataframe_program import ROWS as ROWS_OF_PROGRAM
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROWS = 24_000
SCHEMA = ["id: long", "kind: string", "day: date"]
PATIENCE_S = 240.0


@contextmanager
def hosts() -> Iterator[dict[str, str]]:
    """The environment of executors whose sidecars are ended with the test."""
    with short_folder() as base:
        yield {
            BASE_VARIABLE: str(base),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }


async def test_a_driver_killed_half_way_through_a_query_that_deals_rows_at_random(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    """P2, P3, O11: the next driver cuts the rows in another way, and each is there once; what the first one
    had written is removed."""
    source = write_csv(tmp_path / "src" / "a", "1.csv", 0, ROWS)
    query = (
        "SELECT /*+ REPARTITION(40) */ id, kind, day FROM "
        "(SELECT * FROM source WHERE id >= 0 DISTRIBUTE BY rand()) -- a comment at the end"
    )
    with hosts() as environment:
        async with coordinated(etcd_config, tmp_path, client, schema=SCHEMA) as service:
            argument = {"paths": [str(source)], "split_bytes": 65536, "transform": query}
            operation = await service.client.start("t", "ingest", argument)
            with (
                executor_process(etcd_config, tmp_path, "local[2]", **environment) as first,
                executor_process(etcd_config, tmp_path, "local[2]", **environment) as second,
            ):
                members = {first.pid: first, second.pid: second}
                await eventually(lambda: len(service.data_files()) > 3, PATIENCE_S)
                now = await service.client.get(operation.name)
                assert now.state is OperationState.RUNNING
                assert now.jobs.counting
                # "runner-<host>-<pid>-<random>"
                members[int(now.runner.split("-")[-2])].kill()
                of_the_dead = service.data_files()
                ended = await service.client.wait(operation.name, timeout_s=PATIENCE_S)
                assert ended.state is OperationState.SUCCEEDED, ended.error
                assert ended.jobs.total == ended.jobs.succeeded == 40
                await service.at_rest()
                assert await asyncio.to_thread(service.ids) == list(range(ROWS))
                assert service.data_files() == await asyncio.to_thread(service.published_files)
                assert not service.data_files() & of_the_dead
                await queries_that_cannot_be_answered(service, source)


async def queries_that_cannot_be_answered(service: Whole, source: Path) -> None:
    """O20, U3: each fails for a reason that says what to do, and not by being tried again and again."""
    (source / "2.csv").write_text("id,kind,day\n1,k,2013-01-01\nx,k,2013-01-01\n")
    schema = {"id": "long", "kind": "string", "day": "date"}
    for query, reason in (
        ("SELECT nothing FROM source", "`nothing` cannot be resolved"),
        ("DROP TABLE source", "Syntax error at or near"),
        ("SELECT id, id AS other FROM source", "the table has no column 'other'"),
        ("SELECT kind = 'k' AS id FROM source", "column 'id': bool in the source cannot become int64"),
        ("SELECT kind AS id FROM source", "column 'id': "),
        ("SELECT max(id) AS id FROM source", "2.csv, line 3: column 'id'"),
    ):
        argument = {"paths": [str(source)], "reingest": True, "schema": schema, "transform": query}
        operation = await service.client.start("t", "ingest", argument)
        ended = await service.client.wait(operation.name, timeout_s=PATIENCE_S)
        assert ended.state is OperationState.FAILED
        assert ended.error is not None
        assert reason in ended.error.message, (query, ended.error.message)


async def test_an_executor_lost_with_its_shuffle_files_begins_the_computation_anew(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    """P2: of a DataFrame in random order. Spark would repeat the tasks that have not ended, on rows that are
    cut in another way."""
    with hosts() as environment:
        async with coordinated(etcd_config, tmp_path, client, partitionBy=[]) as service:
            command = ("-m", "support.spark.dataframe_program", service.address, "local-cluster[2,1,1024]")
            with Child(etcd_config, tmp_path, *command, str(tmp_path), **environment) as program:
                await eventually(lambda: len(service.data_files()) >= AT_ONCE, PATIENCE_S)
                lost = service.data_files()
                [jvm] = children(program.pid, b"java")
                executors = children(jvm, b"CoarseGrainedExecutorBackend")
                os.kill(dealer_among(executors), signal.SIGKILL)
                (tmp_path / "release").touch()
                assert await program.exit_code(PATIENCE_S) == 0, program.log.read_text()
                assert "launch_failed" in program.log.read_text()
            await service.at_rest()
            assert await asyncio.to_thread(service.ids) == list(range(ROWS_OF_PROGRAM))
            assert service.data_files() == await asyncio.to_thread(service.published_files)
            assert not service.data_files() & lost
            operation = await service.client.get("t/ingest_dataframe/1")
            assert operation.jobs.total == operation.jobs.succeeded == PARTITIONS


def dealer_among(executors: list[int]) -> int:
    """The one that holds output of the last shuffle: without it, Spark has to repeat that stage."""
    newest: dict[int, int] = {}
    for pid in executors:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        folders = dict(word.split(b"=", 1) for word in words if b"=" in word)[b"SPARK_EXECUTOR_DIRS"]
        files = (
            file for folder in folders.decode().split(":") for file in Path(folder).rglob("shuffle_*.data")
        )
        newest[pid] = max((int(file.name.split("_")[1]) for file in files), default=-1)
    assert max(newest.values()) >= 0, newest
    return max(executors, key=newest.__getitem__)
