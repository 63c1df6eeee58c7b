"""Properties of the catalog that say how to reach etcd."""

from pathlib import Path

import pytest

from distop.catalog.catalog import EtcdCatalog, etcd_config
from distop.errors import InvalidArgument
from distop.metastore.etcd.config import EtcdConfig
from distop.process.secret import Secret


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("of the file\n")
    monkeypatch.setenv("DISTOP_ETCD", "10.0.0.1:2379,10.0.0.2:2379")
    monkeypatch.setenv("DISTOP_PREFIX", "theirs")
    monkeypatch.setenv("DISTOP_ETCD_USER", "ann")
    monkeypatch.setenv("DISTOP_ETCD_PASSWORD_FILE", str(tmp_path / "password"))


def test_properties_lie_over_the_environment() -> None:
    """U3: each for itself; a program that names a prefix works on no other installation."""
    assert etcd_config({}) == EtcdConfig.from_env()
    only_prefix = etcd_config({"etcd.prefix": "mine"})
    assert (only_prefix.prefix, only_prefix.endpoints) == ("mine", ("10.0.0.1:2379", "10.0.0.2:2379"))
    assert (only_prefix.user, only_prefix.password) == ("ann", Secret("of the file"))
    only_endpoints = etcd_config({"etcd.endpoints": "127.0.0.1:1", "etcd.timeout": "0.5"})
    assert (only_endpoints.prefix, only_endpoints.endpoints) == ("theirs", ("127.0.0.1:1",))
    assert only_endpoints.timeout_s == 0.5
    other_password = etcd_config({"etcd.password": "given"})
    assert (other_password.password, other_password.password_file) == (Secret("given"), "")


@pytest.mark.parametrize("uri", ["etcd://127.0.0.1:1,127.0.0.1:2", "127.0.0.1:1,127.0.0.1:2"])
def test_a_uri_names_the_endpoints(uri: str) -> None:
    assert etcd_config({"uri": uri}).endpoints == ("127.0.0.1:1", "127.0.0.1:2")
    assert etcd_config({"uri": uri, "etcd.endpoints": uri}).endpoints == ("127.0.0.1:1", "127.0.0.1:2")
    assert etcd_config({"uri": "https://127.0.0.1:1"}).tls


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"etcd.prefx": "mine"}, r"etcd\.prefx"),
        ({"etcd.prefx": "mine", "etcd.endpoints": "127.0.0.1:1"}, r"etcd\.prefx"),
        ({"etcd.timeout": "soon"}, "soon"),
        ({"uri": "127.0.0.1:1", "etcd.endpoints": "127.0.0.1:2"}, "differ"),
        ({"uri": "sqlite:///x.db"}, "sqlite"),
    ],
)
def test_properties_that_make_no_sense_are_refused(properties: dict[str, str], says: str) -> None:
    """U3: nothing is dropped without a word."""
    with pytest.raises(InvalidArgument, match=says) as refused:
        EtcdCatalog("x", **properties)
    assert isinstance(refused.value, ValueError)
