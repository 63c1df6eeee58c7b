"""``distop executor --check`` asks the workers of a real Spark."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distop.executor.checking.probe import Asked
from distop.executor.checking.spark_setup import ask
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.sidecar.client import dial
from distop.proto.identity import own_version
from support.spark.spark_service import Service

pytestmark = pytest.mark.spark


@pytest.fixture
def asked(service: Service) -> Asked:
    return Asked(own_version(), service.etcd.to_public_env(), "", {}, {})


def found(spark: Any, asked: Asked) -> dict[str, str]:
    checked = ask(spark, asked)
    assert len(checked.workers) == 1
    return {one.code: one.sentence for one in checked.findings}


@pytest.mark.slow("the first job of a session starts its Python workers")
def test_workers_that_are_well(spark: Any, service: Service, asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "sign").write_text("sign")
    with dial(SidecarFolder.of(service.etcd.endpoints, service.etcd.prefix), service.etcd.to_env()):
        assert found(spark, replace(asked, stores={str(tmp_path): "sign"})) == {}


@pytest.mark.slow("waits as long as a worker waits for a sidecar that does not come")
def test_each_thing_that_is_wrong_is_told(spark: Any, service: Service, asked: Asked, tmp_path: Path) -> None:
    stores = {str(tmp_path): "not-there", "file:///proc/none": "not-there", "nope://t": "sign"}
    # A user without a password, and nobody who has one: no sidecar.
    etcd = asked.etcd | {"DISTOP_ETCD_USER": "distop", "DISTOP_PREFIX": f"{service.etcd.prefix}-none"}
    wrong = found(spark, replace(asked, etcd=etcd, stores=stores))
    assert set(wrong) == {"SIDECAR_UNREACHABLE", "STORE_NOT_SHARED", "STORE_UNREACHABLE"}
    assert "no sidecar answers at" in wrong["SIDECAR_UNREACHABLE"]
    assert "nope://t" in wrong["STORE_UNREACHABLE"]


def test_another_version_is_told(spark: Any, asked: Asked) -> None:
    wrong = found(spark, replace(asked, version="9.9.9"))
    assert "the driver 9.9.9" in wrong.pop("WORKER_DISTOP_DIFFERS")
    assert not wrong
