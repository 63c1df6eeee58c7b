"""Rows into a table: the same rule for columns and values whichever way they come."""

from collections.abc import Callable
from datetime import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from distop.client import OperationFailed, OperationState
from distop.executor.launch import spark as launcher
from distop.executor.launch.settings import ADAPTIVE, CHECKED, ShufflesUnchecked, refuse_unchecked
from distop.spark import dataframe as before
from distop.spark import ingest_dataframe, read, write
from support.spark.spark_service import Service, ids_of, ingested, reading, writing

pytestmark = pytest.mark.spark

Door = Callable[[Service, Any, str, Path], Any]


def files(service: Service, frame: Any, table: str, folder: Path) -> Any:
    pq.write_table(frame.toArrow(), folder / "rows.parquet")
    return ingested(service, frame.sparkSession, table, {"paths": str(folder / "rows.parquet")})


def query(service: Service, frame: Any, table: str, folder: Path) -> Any:
    pq.write_table(frame.toArrow(), folder / "rows.parquet")
    argument = {"paths": str(folder / "rows.parquet"), "transform": "SELECT * FROM source"}
    return ingested(service, frame.sparkSession, table, argument)


def dataframe(service: Service, frame: Any, table: str, folder: Path) -> Any:
    session = frame.sparkSession
    return ingest_dataframe(session, frame, table=table, client=service.client, etcd=service.etcd)


def data_source(service: Service, frame: Any, table: str, folder: Path) -> Any:
    return writing(service, table, frame)


def native(service: Service, frame: Any, table: str, folder: Path) -> Any:
    return write(frame, table, coordinator=service.address)


DOORS = (files, query, dataframe, data_source, native)


@pytest.fixture(scope="module", autouse=True)
def loaded_workers(service: Service, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Spark's Python workers load distop once, which takes them seconds."""
    files(service, spark.range(1), service.table(schema=["id: long"]), tmp_path_factory.mktemp("loaded"))


@pytest.mark.slow("seven jobs of Spark by each door")
@pytest.mark.parametrize("door", DOORS, ids=lambda it: it.__name__)
def test_every_door_treats_columns_and_values_alike(
    service: Service, spark: Any, tmp_path: Path, door: Door
) -> None:
    """U3: by name; what lacks becomes NULL unless it is required; the same value in another type, or none."""
    table = service.table(schema=["id: long not null", "kind: string", "n: int"])
    numbers = spark.range(0, 4, 1, 2)
    for columns, says in (
        (["id", "1 AS more"], "no column 'more'"),
        (["id", "'k' AS Kind"], "the table has 'kind'"),
        (["'k' AS kind"], "requires a column 'id'"),
        (["id", "true AS n"], "'n': bool"),
        (["id + 0.5D AS id"], "column 'id'"),
        (["CAST(NULL AS int) AS id"], "'id' is required"),
    ):
        with pytest.raises(Exception, match=says):
            door(service, numbers.selectExpr(*columns), table, tmp_path)
    assert service.client.table(table).get().snapshot_id is None
    door(service, numbers.selectExpr("CAST(id + 1 AS int) AS n", "CAST(id AS int) AS id"), table, tmp_path)
    rows = sorted(service.iceberg(table).scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": number, "kind": None, "n": number + 1} for number in range(4)]


@pytest.mark.parametrize("door", [files, dataframe, data_source, native], ids=lambda it: it.__name__)
def test_a_name_may_have_its_namespace(service: Service, spark: Any, tmp_path: Path, door: Door) -> None:
    """O29: every door leads to the same table."""
    table = service.table(schema=["id: long"])
    door(service, spark.range(0, 2, 1, 1), f"default.{table}", tmp_path)
    assert ids_of(reading(service, spark, f"default.{table}")) == [0, 1]
    assert [one.name for one in service.client.tables() if table in one.name] == [table]


@pytest.mark.slow("seven jobs of Spark")
def test_a_time_of_day_comes_through(service: Service, spark: Any, tmp_path: Path) -> None:
    """U3: to the microsecond, into a table by every door, and out of it again."""
    table = service.table(schema=["id: int", "at: time"])
    moments = [time(5, 6, 7), time(23, 59, 59, 999_999), None]
    for number, door in enumerate(DOORS):
        rows = enumerate(moments, number * len(moments))
        (tmp_path / door.__name__).mkdir()
        door(service, spark.createDataFrame([*rows], "id int, at time(6)"), table, tmp_path / door.__name__)
    expected = moments * len(DOORS)
    assert service.iceberg(table).scan().to_arrow().sort_by("id")["at"].to_pylist() == expected
    for read_back in (reading(service, spark, table), read(spark, table, coordinator=service.address)):
        assert [row["at"] for row in sorted(read_back.collect())] == expected


def test_a_dataframe_is_not_computed_in_a_session_that_does_not_check_shuffles(
    service: Service, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: neither is an operation started, nor a launcher, nor a computation: the settings may have changed
    since."""
    table, session = service.table(schema=["id: long"]), spark.newSession()
    for name in CHECKED:
        session.conf.set(name, "false")
    with pytest.raises(ShufflesUnchecked, match="orderIndependentChecksum"):
        dataframe(service, session.range(4), table, tmp_path)
    assert service.operations(table) == []
    with pytest.raises(ShufflesUnchecked):
        query(service, session.range(4), table, tmp_path)
    (started,) = service.operations(table)
    service.client.operation(started.name).cancel()
    assert service.client.operation(started.name).wait(timeout_s=60).state is OperationState.CANCELLED
    at_launch = iter([lambda session: None])
    monkeypatch.setattr(before, "refuse_unchecked", lambda session: None)
    monkeypatch.setattr(launcher, "refuse_unchecked", lambda at: next(at_launch, refuse_unchecked)(at))
    with pytest.raises(OperationFailed, match="orderIndependentChecksum"):
        dataframe(service, session.range(4), table, tmp_path)
    session.conf.set(ADAPTIVE, "false")
    dataframe(service, session.range(4), table, tmp_path)
    assert service.ids(table) == list(range(4))
