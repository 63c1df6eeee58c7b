"""Executors of Spark that are processes of their own, on two hosts: some are lost, some lack distop.

The last module of this folder: its sessions take the place of the one that the others share.
"""

import json
import os
import signal
import threading
import time
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark import SparkContext, TaskContext
from pyspark.sql.functions import rand
from typer.testing import CliRunner

import distop.executor
from distop.cli.main import app
from distop.executor.host.sidecar_folder import BASE_VARIABLE
from distop.executor.launch.spark import SparkLauncher
from distop.executor.launch.spark_job import executors_of
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.operations.jobs import FAILED
from distop.spark import ingest_dataframe
from support.etcd.lossy import LossyClient
from support.processes import children
from support.repository import TESTS
from support.services.executing import (
    all_done,
    job_records,
    place_in,
    short_folder,
    sidecar_pid,
    start_operation,
)
from support.spark.spark_driver import COLUMNS, numbers, session_of
from support.spark.spark_service import Service, writing
from support.types.work_types import WORK_TYPES
from support.waiting import until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("starts executors of Spark, each a JVM, and waits until lost ones are replaced"),
]


HOSTS = ("127.0.0.2", "127.0.0.3")
"""Spark begins the second attempt of a slow task on another host only."""


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Two hosts with one core each; yields the address of the master.

    As Spark's own ``local-cluster`` does it, whose workers all have the same host.
    """
    SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    jvm: Any = SparkContext._jvm
    deploy, option = jvm.org.apache.spark.deploy, jvm.scala.Option.apply
    conf = jvm.org.apache.spark.SparkConf()
    servers = [deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)._1()]
    try:
        masters = gateway.new_array(jvm.java.lang.String, 1)
        masters[0] = f"spark://{servers[0].address().hostPort()}"
        for number, host in enumerate(HOSTS):
            worker = deploy.worker.Worker.startRpcEnvAndEndpoint(
                host, 0, 0, 1, 1024, masters, str(folder / host), option(number), conf, option(None)
            )
            servers.append(worker)
        yield str(masters[0])
    finally:
        for server in reversed(servers):
            server.shutdown()
            server.awaitTermination()


MEMORY = {"spark.executor.memory": "512m"}
ROWS, PARTITIONS, AT_ONCE = 1200, 12, 3


@pytest.fixture(scope="module")
def master(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster in the JVM of the session that the other modules share, which is stopped."""
    spark.stop()
    with cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    """Where sidecars of executors are."""
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def made(master: str, runtime: Path) -> Iterator[Any]:
    """A session that starts a second attempt of tasks that take long."""
    settings = {
        **MEMORY,
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.executorEnv.PYTHONPATH": str(TESTS),
        f"spark.executorEnv.{BASE_VARIABLE}": str(runtime),
    }
    session = session_of(master, **settings)
    yield session
    session.stop()


@pytest.fixture
def session(made: Any) -> Any:
    """The session with both executors: those that another test has killed were replaced."""
    until(lambda: executors_of(made.sparkContext) == 2)
    return made


def executor_processes() -> list[int]:
    jvm: Any = SparkContext._jvm
    return children(jvm.java.lang.ProcessHandle.current().pid(), b"GrainedExecutorBackend")


def test_a_lost_executor_and_a_speculative_attempt_cost_time_and_no_row(
    service: Service, session: Any, tmp_path: Path
) -> None:
    """P2, O11: the executor of one task is killed, another task is overtaken by a copy of itself."""
    table = service.table()

    def awkward(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def first(what: str) -> bool:
            try:
                (tmp_path / what).touch(exist_ok=False)
            except FileExistsError:
                return False
            return True

        for batch in batches:
            ids = batch["id"].to_pylist()
            if 0 in ids and first("deadly"):
                # Its parent is the daemon of Python workers, and the parent of that the executor.
                executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
                os.kill(executor, signal.SIGKILL)
            if 999 in ids and first("slow"):
                while True:
                    time.sleep(0.05)
            yield batch

    writing(service, table, numbers(session, 1000).mapInArrow(awkward, COLUMNS))
    assert (tmp_path / "deadly").exists()
    assert (tmp_path / "slow").exists()
    assert service.ids(table) == list(range(1000))
    published = [operation for operation in service.operations(table) if "snapshotId" in operation.facts]
    assert len(published) == 1


def test_an_executor_lost_with_its_shuffle_files_begins_the_computation_anew(
    service: Service, session: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P2, H5: of a DataFrame in random order. Spark would repeat the tasks that have not ended, on rows that
    are cut in another way."""
    table = service.table(partitionBy=[])

    def held(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        while context.partitionId() >= AT_ONCE and not (tmp_path / "release").exists():
            time.sleep(0.01)
        yield from batches

    rows = session.range(ROWS).orderBy(rand()).repartition(PARTITIONS).mapInArrow(held, "id long")
    with ThreadPoolExecutor() as threads:
        given: dict[str, Any] = {"table": table, "client": service.client, "etcd": service.etcd}
        ingest = threads.submit(ingest_dataframe, session, rows, **given)
        until(lambda: len(service.files(table)) >= AT_ONCE or ingest.done())
        lost = service.files(table)
        os.kill(dealer_among(executor_processes()), signal.SIGKILL)
        (tmp_path / "release").touch()
        operation = ingest.result()
    assert "launch_failed" in caplog.messages
    assert operation.facts["rows"] == ROWS
    assert operation.jobs.total == operation.jobs.succeeded == PARTITIONS
    assert service.ids(table) == list(range(ROWS))
    until(lambda: service.files(table) == service.published(table))
    assert not service.files(table) & lost


def test_an_executor_lost_in_the_middle_of_two_shuffles_begins_the_computation_anew(
    service: Service, session: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P2, H5: under adaptive execution the stage between is a job of its own, and has ended when the rows
    are written. The rows of the first stage are cut in another way each time."""
    table = service.table(partitionBy=[])

    def dealt(batches: Iterator[Any]) -> Iterator[Any]:
        executor = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
        for batch in batches:
            (tmp_path / f"dealt.{executor}.{os.urandom(4).hex()}").touch()
            numbers = pa.array([int.from_bytes(os.urandom(3)) for _ in range(len(batch))], pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column(0), numbers], names=["id", "dealt"])

    def held(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        rows = list(batches)
        (tmp_path / f"held.{context.partitionId()}").touch()
        while context.partitionId() >= AT_ONCE and not (tmp_path / "release").exists():
            time.sleep(0.01)
        yield from rows

    columns = "id long, dealt long"
    rows = session.range(0, ROWS, 1, 4).mapInArrow(dealt, columns).repartition(PARTITIONS, "dealt")
    rows = rows.mapInArrow(held, columns).repartition(AT_ONCE, "dealt").select("id")
    with ThreadPoolExecutor() as threads:
        given: dict[str, Any] = {"table": table, "client": service.client, "etcd": service.etcd}
        ingest = threads.submit(ingest_dataframe, session, rows, **given)
        until(lambda: len(list(tmp_path.glob("held.*"))) > AT_ONCE or ingest.done())
        dealers = [path.name.split(".")[1] for path in tmp_path.glob("dealt.*")]
        os.kill(int(max(dealers, key=dealers.count)), signal.SIGKILL)
        (tmp_path / "release").touch()
        operation = ingest.result()
    assert "launch_failed" in caplog.messages
    assert operation.facts["rows"] == ROWS
    assert service.ids(table) == list(range(ROWS))
    until(lambda: service.files(table) == service.published(table))


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


async def test_a_users_program_runs_operations_on_executors_that_are_processes_of_their_own(
    client: LossyClient,
    etcd_config: EtcdConfig,
    session: Any,
    runtime: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sidecar is started by whichever task comes first. The session stays the program's."""
    monkeypatch.setenv("DISTOP_OPERATIONS", WORK_TYPES)
    monkeypatch.setenv(BASE_VARIABLE, str(runtime))
    stop = threading.Event()
    with ThreadPoolExecutor() as threads:
        program = threads.submit(
            distop.executor.run, session, etcd=etcd_config, types=["traced", "noop"], stop=stop
        )
        try:
            argument = {"folder": str(tmp_path), "permanent": ["2"]}
            arg = await start_operation(client, "traced", argument, jobs=6)
            small = await start_operation(client, jobs=500)
            records = await all_done(client, arg, 60.0)
            assert len(await all_done(client, small, 60.0)) == 500
            assert [name for name, record in records.items() if record.state == FAILED] == ["2"]
            assert await job_records(client, arg) == records
        finally:
            stop.set()
        assert program.result(60.0) == 0
    assert sidecar_pid(place_in(runtime, etcd_config))
    assert session.range(3).count() == 3


def test_an_executor_of_spark_that_is_lost_is_missed_until_it_is_replaced(session: Any) -> None:
    """U1: but not one that the program has released itself. The last test of this session."""
    context, launcher = session.sparkContext, SparkLauncher(EtcdConfig(), session=session)
    assert launcher.held_up() == ""
    os.kill(executor_processes()[0], signal.SIGKILL)
    assert until(launcher.held_up).startswith("an executor of Spark was lost: ")
    until(lambda: not launcher.held_up())
    assert executors_of(context) == 2
    for number in range(10):
        context._jsc.sc().killExecutor(str(number))
    until(lambda: executors_of(context) < 2)
    assert launcher.held_up() == ""


def test_executors_whose_python_has_no_distop_are_named_by_the_check(
    service: Service, master: str, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``distop executor --check``, on executors with another Python."""
    made.stop()
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    # Spark itself brings what the worker runs; the one of the tests leaves that to this environment.
    brought = Path(pyspark.__path__[0], "python", "lib").glob("*.zip")
    settings = {**MEMORY, "spark.cores.max": "1", "spark.driver.host": "127.0.0.1"}
    settings["spark.executorEnv.PYTHONPATH"] = ":".join(map(str, brought))
    words = ["executor", "--check", "--master", master, "--output", "json"]
    conf = [word for one in settings.items() for word in ("--conf", "=".join(one))]
    done = CliRunner().invoke(app, [*words, *conf], env=service.etcd.to_env())
    assert done.exit_code == 22, done.output
    told = json.loads(done.stdout)
    assert told["wrong"] is True
    (finding,) = told["findings"]
    assert finding["code"] == "WORKER_DISTOP_MISSING"
    assert finding["sentence"].startswith(f"{python} does not load distop: ModuleNotFoundError")
    assert [one["python"] for one in told["workers"]] == [python]
