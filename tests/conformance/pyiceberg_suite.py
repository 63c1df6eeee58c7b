"""pyiceberg's own tests, with a catalog of distop in location of its in-memory one: a plugin of pytest.

``make conformance`` runs it, by ``run.py``. Each ``InMemoryCatalog`` that these tests make is a catalog
in etcd here, with a keyspace of its own; or, with ``CONFORMANCE_CATALOG=rest``, pyiceberg's ``RestCatalog``
with a REST service for it. Tests of other catalogs are left out.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyiceberg.catalog.memory
import pytest
from pyiceberg.catalog.rest import RestCatalog

from distop.catalog.catalog import EtcdCatalog
from distop.metastore.etcd.config import EtcdConfig
from support.services.rest import rest_door


def _given(warehouse: str) -> tuple[str, str]:
    """Where tables lie, and a keyspace that is empty."""
    if warehouse and "://" not in warehouse:
        warehouse = f"file://{warehouse}"
    return warehouse or os.environ["CONFORMANCE_WAREHOUSE"], f"c{secrets.token_hex(6)}"


class CatalogInEtcd(EtcdCatalog):
    """Empty, as an in-memory catalog is when it is made."""

    def __init__(self, name: str, warehouse: str = "", **properties: str) -> None:
        location, prefix = _given(warehouse)
        given = {"etcd.endpoints": os.environ["CONFORMANCE_ETCD"], "etcd.prefix": prefix}
        super().__init__(name, **{"warehouse": location, **given, **properties})


class CatalogOverHttp(RestCatalog):
    """The same, behind a REST service of its own, which ends with the test."""

    def __init__(self, name: str, warehouse: str = "", **properties: str) -> None:
        location, prefix = _given(warehouse)
        etcd = EtcdConfig(endpoints=(os.environ["CONFORMANCE_ETCD"],), prefix=prefix)
        served = _services.enter_context(rest_door(etcd, Path(location.removeprefix("file://"))))
        super().__init__(name, **{"uri": f"http://{served.address}", **properties})


_services = ExitStack()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    yield  # what fixtures do at their end needs it
    _services.pop_all().close()


_CATALOG = {"etcd": CatalogInEtcd, "rest": CatalogOverHttp}[os.environ["CONFORMANCE_CATALOG"]]
pyiceberg.catalog.memory.InMemoryCatalog = _CATALOG  # type: ignore[misc,assignment]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only what works on a catalog, and on no other one."""
    kept = [item for item in items if _on_our_catalog(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _on_our_catalog(item: pytest.Item) -> bool:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    named = [str(value) for key, value in parameters.items() if key in _FIXTURES]
    fixtures = set(getattr(item, "fixturenames", ()))
    if fixtures & _OTHERS:
        return False
    return bool(fixtures & _FIXTURES) and all("memory" in name and "sqlite" not in name for name in named)


_FIXTURES = {"catalog", "catalog_with_warehouse", "test_catalog"}
_OTHERS = {"rest_catalog", "session_catalog", "session_catalog_hive"}

outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The worst of a test's three phases is its outcome."""
    if report.failed or report.nodeid not in outcomes or report.skipped:
        outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    Path(os.environ["CONFORMANCE_OUTCOMES"]).write_text(json.dumps(outcomes))
