"""What tests of the data source need: a coordinator, tables and a session."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.client import Client, Operation
from distop.executor.runner import run_hosted
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.records.names import OperationId
from distop.spark_jobs.ingest.operation import Ingest
from support.repository import TESTS as TESTS
from support.services.coordinators import CoordinatorProcess
from support.services.leases import LEASE_S
from support.spark.spark_driver import session_of
from support.tables.trees import all_files


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
        given: Any = options or {"partitionBy": ["kind"]}
        self.client.create_table(name, str(self.folder / name), options=given)
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
        return {path for path in all_files(self.folder / table) if path.suffix == ".parquet"}

    def published(self, table: str) -> set[Path]:
        return {Path(urlsplit(task.file.file_path).path) for task in self.iceberg(table).scan().plan_files()}

    def operations(self, table: str) -> list[Operation]:
        return list(self.client.operations(table))


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    """One for all tests in this process: to start Spark takes longer than most of what they do with it."""
    session = session_of("local[2,2]")
    yield session
    session.stop()


def writing(service: Service, table: str, frame: Any, save_mode: str = "append", **options: str) -> None:
    given = {"table": table, "coordinator": service.address, **options}
    frame.write.format("distop").options(**given).mode(save_mode).save()


def ingested(service: Service, spark: Any, table: str, argument: dict[str, Any]) -> Operation:
    """An ingest to its end, on this session."""
    operation = service.client.start(table, "ingest", argument)
    return run_hosted(
        OperationId.parse(operation.name),
        Ingest(),
        lambda: operation.wait(timeout_s=1.0),
        session=spark,
        etcd=service.etcd,
        lease_ttl_s=LEASE_S,
    ).raise_for_outcome()


def reading(service: Service, spark: Any, table: str, **options: str) -> Any:
    return spark.read.format("distop").options(table=table, coordinator=service.address, **options).load()


def ids_of(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())
