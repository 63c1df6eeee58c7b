"""``format("distop")`` on a real Spark: what is written is there once, whoever is killed."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pyarrow as pa
import pyspark
import pytest

from distop.client import Client, Operation
from distop.commit.catalog import EtcdCatalog
from distop.errors import BadRow, InvalidArgument, PreconditionFailed
from distop.metastore.config import EtcdConfig
from distop.metastore.embedded import EtcdProcess, free_port
from distop.spark_jobs import read, write
from support.coordinators import CoordinatorProcess
from support.spark_driver import COLUMNS, numbers, session_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TESTS = Path(__file__).parents[1]


def until(condition: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    """The first true value of ``condition``."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        time.sleep(0.05)
    return value


@dataclass
class Service:
    """A coordinator, and tables of a test's own."""

    etcd: EtcdConfig
    address: str
    folder: Path
    client: Client
    _names: Any = field(default_factory=count)

    def table(self, **options: Any) -> str:
        name = f"t{next(self._names)}"
        self.client.create_table(name, str(self.folder / name), options=options or {"partitionBy": ["kind"]})
        return name

    @cached_property
    def catalog(self) -> EtcdCatalog:
        return EtcdCatalog(
            "test", **{"etcd.endpoints": ",".join(self.etcd.endpoints), "etcd.prefix": self.etcd.prefix}
        )

    def iceberg(self, table: str) -> Any:
        return self.catalog.load_table(f"default.{table}")

    def ids(self, table: str) -> list[int]:
        return sorted(self.iceberg(table).scan().to_arrow()["id"].to_pylist())

    def files(self, table: str) -> set[Path]:
        return {path for path in (self.folder / table).rglob("*.parquet") if path.is_file()}

    def published(self, table: str) -> set[Path]:
        return {Path(urlsplit(task.file.file_path).path) for task in self.iceberg(table).scan().plan_files()}

    def operations(self, table: str) -> list[Operation]:
        return list(self.client.list(table))


@pytest.fixture(scope="module")
def service(etcd: EtcdProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("source")
    config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=f"t{secrets.token_hex(6)}")
    coordinator = CoordinatorProcess(config, folder)
    coordinator.start()
    try:
        with Client(coordinator.address, timeout_s=60, connect_timeout_s=60) as client:
            yield Service(config, coordinator.address, folder, client)
    finally:
        coordinator.kill()


@pytest.fixture(scope="module")
def spark(service: Service) -> Iterator[Any]:
    session = session_of("local[2,4]")
    yield session
    session.stop()


def writing(service: Service, table: str, frame: Any, save_mode: str = "append", **options: str) -> None:
    given = {"table": table, "coordinator": service.address, **options}
    frame.write.format("distop").options(**given).mode(save_mode).save()


def reading(service: Service, spark: Any, table: str, **options: str) -> Any:
    return spark.read.format("distop").options(table=table, coordinator=service.address, **options).load()


def ids_of(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


# -- writing -----------------------------------------------------------------------------------------


def test_save_modes(service: Service, spark: Any) -> None:
    """P5"""
    table = service.table()
    writing(service, table, numbers(spark, 10))
    writing(service, table, numbers(spark, 10))
    assert service.ids(table) == sorted([*range(10)] * 2)
    with pytest.raises(Exception, match="holds data already"):
        writing(service, table, numbers(spark, 1), mode="error_if_exists")
    writing(service, table, numbers(spark, 1), mode="ignore")
    assert len(service.ids(table)) == 20
    writing(service, table, numbers(spark, 6), "overwrite")
    assert service.ids(table) == [*range(6)]
    replaced = numbers(spark, 31).where("kind = 'k1' AND id > 20")
    writing(service, table, replaced, mode="overwrite_partitions")
    assert service.ids(table) == [0, 2, 3, 5, 22, 25, 28]


def test_a_table_is_made_if_that_is_asked_for(service: Service, spark: Any) -> None:
    frame = numbers(spark, 5).selectExpr(
        "id", "kind", "CAST(id AS decimal(9,2)) AS price", "array(kind) AS tags"
    )
    with pytest.raises(Exception, match="does not exist"):
        writing(service, "made", frame)
    location = str(service.folder / "made")
    made = {"create": "true", "location": location, "partitionBy": "kind, bucket[4](id)"}
    writing(service, "made", frame, **made)
    writing(service, "made", frame, **made)
    assert service.ids("made") == sorted([*range(5)] * 2)
    assert [field.name for field in service.iceberg("made").spec().fields] == ["kind", "id_bucket_4"]
    assert reading(service, spark, "made").schema.simpleString() == (
        "struct<id:bigint,kind:string,price:decimal(9,2),tags:array<string>>"
    )


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["id"], "kind.*the DataFrame does not"),
        (["id", "kind", "1 AS more"], "more.*no such column"),
        (["id", "kind AS Kind"], "the table's is called 'kind'"),
        (["CAST(id AS double) AS id", "kind"], "id.*without loss"),
        (["id", "CURRENT_TIMESTAMP() AS kind"], "kind.*without loss"),
    ],
    ids=["missing", "extra", "spelled", "narrowing", "another type"],
)
def test_columns_that_are_not_those_of_the_table(
    service: Service, spark: Any, columns: list[str], says: str
) -> None:
    """U3"""
    table = service.table(schema=["id: long not null", "kind: string"])
    with pytest.raises(Exception, match=says):
        writing(service, table, numbers(spark, 3).selectExpr(*columns))
    assert service.operations(table) == []


def test_values_may_become_wider_and_nulls_are_refused_where_they_must_not_be(
    service: Service, spark: Any
) -> None:
    table = service.table(schema=["id: long not null", "kind: string"])
    writing(service, table, numbers(spark, 3).selectExpr("kind", "CAST(id AS int) AS id"))
    assert service.ids(table) == [0, 1, 2]
    with pytest.raises(Exception, match="is required"):
        writing(service, table, spark.createDataFrame([(None, "k")], COLUMNS))
    with pytest.raises(Exception, match="option 'tabel' is unknown"):
        writing(service, table, numbers(spark, 3), tabel="x")
    assert service.ids(table) == [0, 1, 2]
    until(lambda: service.files(table) == service.published(table))


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


def test_a_write_that_fails_leaves_nothing(service: Service, spark: Any) -> None:
    """P9"""
    table = service.table()
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        writing(service, table, numbers(spark, 1000).selectExpr("id + 1 DIV (id - 900) AS id", "kind"))
    assert service.client.get_table(table).snapshot_id is None
    until(lambda: not service.files(table))
    assert [operation.facts.get("gaveUp") for operation in service.operations(table)] == [True]


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A standalone cluster of two hosts with one core each: the only kind where Spark speculates."""
    spark_class = str(Path(pyspark.__path__[0]) / "bin" / "spark-class")
    package, port = "org.apache.spark.deploy", free_port()
    master = f"spark://127.0.0.1:{port}"
    ports = ["--webui-port", "0", "--port", str(port)]
    commands = {"127.0.0.1": [f"{package}.master.Master", "--host", "127.0.0.1", *ports]}
    for host in ("127.0.0.2", "127.0.0.3"):
        resources = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / host)]
        worker = [f"{package}.worker.Worker", "--host", host, "--webui-port", "0", *resources, master]
        commands[host] = worker
    processes = []
    try:
        with (folder / "cluster.log").open("ab") as log:
            for host, command in commands.items():
                environment = {**os.environ, "SPARK_LOCAL_IP": host, "SPARK_WORKER_DIR": str(folder / host)}
                processes.append(
                    subprocess.Popen([spark_class, *command], env=environment, stdout=log, stderr=log)
                )
        started = folder / "cluster.log"
        until(lambda: started.read_text().count("Registering worker") == 2)
        yield master
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


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


class Program:
    """A driver in a process of its own, and its children."""

    def __init__(self, service: Service, folder: Path, **what: Any) -> None:
        self.gate = folder / "gate"
        given = {"coordinator": service.address, "gate": str(self.gate), **what}
        command = [sys.executable, "-m", "support.spark_driver", json.dumps(given)]
        self.log = folder / "driver.log"
        with self.log.open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": str(TESTS)}
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def reached(self) -> list[int]:
        """The workers that wait at the gate."""
        assert self._process.poll() is None, self.log.read_text()[-4000:]
        return [int(path.suffix[1:]) for path in self.gate.parent.glob("gate.reached.*")]

    def kill(self) -> None:
        """The driver, its JVM and its workers, all at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)

    def succeeds(self) -> None:
        assert self._process.wait(400) == 0, self.log.read_text()[-4000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


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
    assert {operation.request_id for operation in published} == {f"{query_id}.{n}" for n in range(4)}
    assert len(published) == 4
    assert service.client.watermarks(table) == {f"stream:{query_id}": {"batch": "3"}}


# -- reading -----------------------------------------------------------------------------------------


def test_snapshots_columns_and_filters(service: Service, spark: Any) -> None:
    """P14"""
    table = service.table()
    writing(service, table, numbers(spark, 30))
    first = service.client.get_table(table).snapshot_id
    writing(service, table, numbers(spark, 60).where("id >= 30"))
    assert ids_of(reading(service, spark, table)) == list(range(60))
    assert ids_of(reading(service, spark, table, snapshotId=str(first))) == list(range(30))
    assert ids_of(reading(service, spark, table, asOf="2199-01-01")) == list(range(60))
    chosen = reading(
        service, spark, table, columns="kind,id", filter="kind = 'k1' and id >= 30", splitBytes="1024"
    )
    assert chosen.columns == ["kind", "id"]
    assert ids_of(chosen) == [n for n in range(30, 60) if n % 3 == 1]
    assert (
        reading(service, spark, table).where("kind = 'k2'").groupBy("kind").count().collect()[0]["count"]
        == 20
    )
    for options, says in (
        ({"snapshotId": "7"}, "no snapshot 7"),
        ({"filter": "nothing = 1"}, "no column 'nothing'"),
        ({"columns": "nothing"}, "no column 'nothing'"),
        ({"asOf": "yesterday"}, "is no time"),
    ):
        with pytest.raises(Exception, match=says):
            reading(service, spark, table, **options).count()
    with pytest.raises(Exception, match="does not exist"):
        reading(service, spark, "nobody").count()


def test_spark_reads_planned_files_natively(service: Service, spark: Any) -> None:
    """P14"""
    table = service.table()
    writing(service, table, numbers(spark, 30))
    first = service.client.get_table(table).snapshot_id
    writing(service, table, numbers(spark, 60).where("id >= 30"))
    where: dict[str, Any] = {"coordinator": service.address}
    assert ids_of(read(spark, table, **where)) == list(range(60))
    assert ids_of(read(spark, table, snapshot_id=first, **where)) == list(range(30))
    chosen = read(spark, table, columns=["id"], filter="kind in ('k0', 'k1') and not id < 30", **where)
    assert chosen.columns == ["id"]
    assert ids_of(chosen) == [n for n in range(30, 60) if n % 3 < 2]
    assert len(chosen.inputFiles()) < len(service.published(table))
    assert read(spark, table, filter="id > 1000", **where).count() == 0


def test_a_stream_reads_what_is_published_as_it_is_published(
    service: Service, spark: Any, tmp_path: Path
) -> None:
    """Every row once, in bounded batches, over restarts; what rewrites rows is refused by name."""
    table = service.table()
    for start in (0, 30):
        writing(service, table, numbers(spark, start + 30).where(f"id >= {start}"))

    def run(**options: str) -> list[int]:
        stream = (
            spark.readStream.format("distop")
            .options(table=table, coordinator=service.address, maxFilesPerTrigger="4", **options)
            .load()
        )
        query = (
            stream.writeStream.format("parquet")
            .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return ids_of(spark.read.parquet(str(tmp_path / "out")))

    files = len(service.published(table))
    assert run() == list(range(60))
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) >= files / 4
    writing(service, table, numbers(spark, 90).where("id >= 60"))
    assert run() == list(range(90))
    writing(service, table, numbers(spark, 10), "overwrite")
    with pytest.raises(Exception, match="ignoreOverwrites"):
        run()
    writing(service, table, numbers(spark, 100).where("id >= 90"))
    assert run(ignoreOverwrites="true") == list(range(100))


# -- through Spark's own writer ----------------------------------------------------------------------


def test_spark_writes_the_files_itself(service: Service, spark: Any) -> None:
    """P1, P5, P14: also with partitions, types that become wider, nulls; and once for a request id."""
    table = service.table(
        schema=["id: long not null", "kind: string", "day: date", "at: timestamptz", "price: decimal(12,2)"],
        partitionBy=["kind", "month(day)"],
    )
    frame = numbers(spark, 100).selectExpr(
        "CAST(id AS decimal(9,2)) AS price",
        "TIMESTAMP'2013-01-01 10:00:00Z' AS at",
        "CASE WHEN id % 7 = 0 THEN NULL ELSE kind END AS kind",
        "date_add(DATE'2013-01-15', CAST(id AS int)) AS day",
        "CAST(id AS int) AS id",
    )
    where = {"coordinator": service.address}
    for _ in range(2):
        done = write(frame, table, request_id="once", **where)
        assert done is not None
        assert done.facts["rows"] == 100
    read_back = service.iceberg(table).scan().to_arrow()
    assert sorted(read_back["id"].to_pylist()) == list(range(100))
    assert {str(at) for at in read_back["at"].to_pylist()} == {"2013-01-01 10:00:00+00:00"}
    of_march = service.iceberg(table).scan(row_filter="day >= '2013-03-01' and day < '2013-04-01'")
    march = (2013 - 1970) * 12 + 2
    assert {tuple(task.file.partition) for task in of_march.plan_files()} == {
        (kind, march) for kind in ("k0", "k1", "k2", None)
    }
    assert of_march.to_arrow().num_rows == 31
    assert ids_of(reading(service, spark, table, filter="kind is null")) == list(range(0, 100, 7))
    until(lambda: service.files(table) == service.published(table))
    replaced = frame.where("month(day) = 3").limit(1)
    assert write(replaced, table, mode="overwrite", **where) is not None
    assert len(service.ids(table)) == 1


def test_what_spark_cannot_write_by_itself_is_refused_and_leaves_nothing(
    service: Service, spark: Any
) -> None:
    """U3, P9"""
    where = {"coordinator": service.address}
    with pytest.raises(PreconditionFailed, match="bucket"):
        write(numbers(spark, 3), service.table(partitionBy=["bucket[4](id)"]), **where)
    table = service.table(schema=["id: long not null", "kind: string"])
    with pytest.raises(BadRow, match="is required"):
        write(spark.createDataFrame([(1, "k"), (None, "k")], COLUMNS), table, **where)
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        write(numbers(spark, 10).selectExpr("1 DIV (id - 9) AS id", "kind"), table, **where)
    with pytest.raises(InvalidArgument, match="no such column"):
        write(numbers(spark, 3).withColumnRenamed("id", "number"), table, **where)
    assert service.client.get_table(table).snapshot_id is None
    until(lambda: not service.files(table))
