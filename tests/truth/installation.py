"""An installation without Spark: etcd, a coordinator and an executor as processes; a table for each type."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from pyiceberg.table import Table

from distop.catalog.catalog import EtcdCatalog
from distop.client import Client
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import CoordinatorProcess
from support.services.executing import Child
from support.services.leases import LEASE_S
from truth.values import Kind

PATIENCE_S = 240.0
"""Of a call: operations of many tables wait for each other."""


@dataclass
class Installation:
    """A running one."""

    etcd: EtcdConfig
    address: str
    client: Client
    folder: Path

    @cached_property
    def catalog(self) -> EtcdCatalog:
        endpoints = ",".join(self.etcd.endpoints)
        return EtcdCatalog("truth", **{"etcd.endpoints": endpoints, "etcd.prefix": self.etcd.prefix})

    def create(self, kind: Kind) -> None:
        """The table of a type: ``id`` says which value a row has in ``v``."""
        name, location = table_of(kind), f"file://{self.folder}/tables/{table_of(kind)}"
        if kind.nested:  # ``schema`` takes plain types only
            columns = pa.schema([("id", pa.int64()), ("v", kind.arrow)])
            self.catalog.create_table(f"default.{name}", columns, location)
        else:
            columns_of = ["id: long", f"v: {kind.name}"]
            self.client.create_table(name, location, options={"schema": columns_of})

    def iceberg(self, kind: Kind) -> Table:
        return self.catalog.load_table(f"default.{table_of(kind)}")


def table_of(kind: Kind) -> str:
    return re.sub(r"\W+", "_", kind.name).strip("_")


@contextmanager
def installed(etcd: EtcdConfig, folder: Path) -> Iterator[Installation]:
    """One that lives as long as the context is open, with its files in ``folder``."""
    ttl_s = LEASE_S  # nobody is killed here
    coordinator = CoordinatorProcess(etcd, folder, ttl_s=ttl_s)
    coordinator.start()
    try:
        with (
            Child(etcd, folder, "-m", "support.services.executor_main", "none", str(ttl_s)),
            Client(coordinator.address, timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S) as client,
        ):
            yield Installation(etcd, coordinator.address, client, folder)
    finally:
        coordinator.kill()
