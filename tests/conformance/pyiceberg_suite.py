"""pyiceberg's own tests, with the catalog of distop in place of its in-memory one: a plugin of pytest.

``make conformance`` runs it, by ``run.py``. Each ``InMemoryCatalog`` that these tests make is a catalog
in etcd here, with a keyspace of its own. Tests of other catalogs are left out.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

import pyiceberg.catalog.memory
import pytest

from distop.commit.catalog.catalog import EtcdCatalog


class CatalogInEtcd(EtcdCatalog):
    """Empty, as an in-memory catalog is when it is made."""

    def __init__(self, name: str, warehouse: str = "", **properties: str) -> None:
        if warehouse and "://" not in warehouse:
            warehouse = f"file://{warehouse}"
        given = {"etcd.endpoints": os.environ["CONFORMANCE_ETCD"], "etcd.prefix": f"c{secrets.token_hex(6)}"}
        super().__init__(
            name, **{"warehouse": warehouse or os.environ["CONFORMANCE_WAREHOUSE"], **given, **properties}
        )


pyiceberg.catalog.memory.InMemoryCatalog = CatalogInEtcd  # type: ignore[misc,assignment]


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
    return bool(fixtures & _FIXTURES) and all("memory" in one and "sqlite" not in one for one in named)


_FIXTURES = {"catalog", "catalog_with_warehouse", "test_catalog"}
_OTHERS = {"rest_catalog", "session_catalog", "session_catalog_hive"}

outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The worst of a test's three phases is its outcome."""
    if report.failed or report.nodeid not in outcomes or report.skipped:
        outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    Path(os.environ["CONFORMANCE_OUTCOMES"]).write_text(json.dumps(outcomes))
