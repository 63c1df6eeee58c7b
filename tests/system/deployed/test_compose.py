"""The cluster of deploy/compose.yaml, as far as it can be seen without starting it."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from support.command_lines import parse
from support.repository import ROOT

FILE = ROOT / "deploy" / "compose.yaml"
OPENS_ETCD = {"etcd-password", "etcd-root-password", "etcd-client.key", "etcd.key"}


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def test_distop_takes_the_words_of_its_services(cluster: dict[str, Any]) -> None:
    """D1: every option of every command exists, with such a value."""
    ours = {
        name: one for name, one in cluster["services"].items() if "DISTOP_ETCD" in one.get("environment", {})
    }
    assert len(ours) == 6
    for name, service in ours.items():
        try:
            parse(service["command"])
        except typer.TyperException as error:
            pytest.fail(f"{name}: {error.format_message()}")


def test_workers_hold_nothing_that_opens_etcd(cluster: dict[str, Any]) -> None:
    """D1, S5: only members of etcd, and services of distop, hold its passwords and keys."""
    holders = {name for name, one in cluster["services"].items() if OPENS_ETCD & set(one.get("secrets", ()))}
    pairs = {f"{kind}{number}" for kind in ("coordinator", "executor", "sidecar") for number in (1, 2)}
    assert holders == {*pairs, "etcd1", "etcd2", "etcd3", "etcd-users"}


def test_a_worker_and_its_sidecar_meet_in_one_folder(cluster: dict[str, Any]) -> None:
    for number in ("1", "2"):
        volumes = [cluster["services"][f"{kind}{number}"]["volumes"] for kind in ("worker", "sidecar")]
        assert volumes == [[f"run{number}:/run/distop"]] * 2


def test_every_service_but_grafana_is_confined(cluster: dict[str, Any]) -> None:
    """D1: it cannot write where no volume is, and has no capability of Linux."""
    for name, service in cluster["services"].items():
        confined = (service.get("read_only"), service.get("cap_drop")) == (True, ["ALL"])
        assert confined or service["profiles"] == ["grafana"], name


def test_files_that_are_mounted_are_there(cluster: dict[str, Any]) -> None:
    mounts = [volume for one in cluster["services"].values() for volume in one.get("volumes", ())]
    files = [Path(mount.split(":")[0]) for mount in mounts if mount.startswith(".")]
    assert files
    assert all((FILE.parent / file).is_file() for file in files)
    made = (ROOT / "deploy" / "compose" / "secrets.sh").read_text()
    for secret in cluster["secrets"].values():
        name = Path(secret["file"]).name
        assert name in made or f"certificate {name.rpartition('.')[0]} " in made


def test_without_containers_the_demo_starts_the_same_services(
    cluster: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "demo")
    found = import_module("cluster_namespaces").commands(tmp_path)
    containers_only = {"etcd-users", "s3", "buckets", "prometheus", "grafana"}
    assert set(found) == set(cluster["services"]) - containers_only
    ours = {name: words for name, (words, _) in found.items() if "distop.cli.main" in words}
    assert len(ours) == 6
    for name, words in ours.items():
        try:
            parse(words[words.index("distop.cli.main") + 1 :])
        except typer.TyperException as error:
            pytest.fail(f"{name}: {error.format_message()}")
    for name, (_, environment) in found.items():
        assert ("DISTOP_ETCD" in environment) == (name in ours), name
