"""Settings of the Kafka client: what may be given, and how secrets stay where they are."""

import sys
from pathlib import Path
from typing import Any

import pytest

from distop.errors import InvalidArgument, NotAllowed, PreconditionFailed
from distop.process.secret import revealed
from distop.sources.kafka.client import Cluster, consumer_settings, resolved
from support.refusals import refused


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"sasl.password": "hunter2"}, "is a secret, but arguments are stored where operators can read them"),
        ({"sasl.password": {"env": "DISTOP_ETCD_PASSWORD"}}, "may not be used"),
        ({"client.id": {"env": "DISTOP_KAFKA_PASSWORD"}}, "is not a secret"),
        ({"security.protocol": {"env": "DISTOP_KAFKA_PASSWORD"}}, "is not a secret"),
        ({"ssl.ca.location": {"file": "password"}}, "is not a secret"),
        ({"sasl.password": {"file": "../etc/passwd"}}, "not the name of a file alone"),
        ({"sasl.password": {"file": ".."}}, "not the name of a file alone"),
        ({"sasl.password": {"env": "DISTOP_KAFKA_A", "file": "a"}}, "a reference is"),
        ({"sasl.password": {"vault": "a"}}, "a reference is"),
        ({"sasl.kerberos.kinit.cmd": "rm -rf /"}, "is not an allowed setting"),
        ({"plugin.library.paths": "/tmp/x.so"}, "is not an allowed setting"),
        ({"ssl.engine.location": "/tmp/x.so"}, "is not an allowed setting"),
        ({"enable.auto.commit": True}, "is not an allowed setting"),
        ({"isolation.level": "read_uncommitted"}, "is not an allowed setting"),
        ({"auto.offset.reset": "latest"}, "is not an allowed setting"),
        ({"bootstrap.servers": "elsewhere:1"}, "is not an allowed setting"),
        ({"ssl.key.location": "server.key"}, "is not an absolute path"),
        ({"ssl.ca.location": "/dev/zero"}, "is not a file"),
    ],
)
def test_settings_that_run_programs_or_change_what_is_read_are_refused(
    config: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U3, U5, S5."""
    monkeypatch.setenv("DISTOP_KAFKA_PASSWORD", "hunter2")
    with refused("kafka.config", text) as told:
        Cluster("h:1", config, 1.0)
    assert "hunter2" not in str(told.value)


def test_secrets_are_found_where_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("from file\n")
    monkeypatch.setenv("DISTOP_KAFKA_SECRETS", str(tmp_path))
    monkeypatch.setenv("DISTOP_KAFKA_PASSWORD", "from environment")
    config = {
        "sasl.password": {"env": "DISTOP_KAFKA_PASSWORD"},
        "ssl.key.password": {"file": "key"},
        "check.crcs": True,
        "fetch.max.bytes": 1_000_000,
    }
    assert revealed(resolved(config)) == {
        "sasl.password": "from environment",
        "ssl.key.password": "from file",
        "check.crcs": "true",
        "fetch.max.bytes": "1000000",
    }
    with pytest.raises(InvalidArgument, match="missing cannot be read"):
        resolved({"sasl.password": {"file": "missing"}})
    monkeypatch.delenv("DISTOP_KAFKA_SECRETS")
    with pytest.raises(InvalidArgument, match="is not set"):
        resolved(config)


@pytest.mark.parametrize(
    "name", ["ssl.key.location", "ssl.certificate.location", "ssl.ca.location", "sasl.kerberos.keytab"]
)
def test_keys_of_the_host_are_not_shown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: only files that may be read, or were put there for Kafka; links are followed first."""
    kept, own = tmp_path / "secrets", tmp_path / "server.key"
    kept.mkdir()
    own.write_text("key")
    (kept / "link").symlink_to(own)
    (kept / "key").write_text("key")
    monkeypatch.setenv("DISTOP_ALLOW_SOURCES", f"kafka://h:1,{tmp_path}/in")
    monkeypatch.setenv("DISTOP_KAFKA_SECRETS", str(kept))
    for path in (own, kept / "link", kept / ".." / "server.key"):
        with pytest.raises(NotAllowed):
            consumer_settings("h:1", {name: str(path)})
    for good in (kept / "key", tmp_path / "in" / "key"):
        assert consumer_settings("h:1", {name: str(good)})[name] == str(good)


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(PreconditionFailed, match="confluent-kafka") as missing:
        Cluster("h:1", {}, 1.0)
    assert missing.value.hint == "pip install 'distop[kafka]'"
