"""How to reach etcd: what travels from process to process, and what does not."""

import pickle
from pathlib import Path

import pytest

from distop.errors import InvalidArgument
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.launch.spark_task import SparkTask
from distop.executor.sidecar.client import SidecarUnavailable, start_sidecar
from distop.metastore.etcd.config import EtcdConfig
from distop.process.secret import Secret

ENDPOINT = {"DISTOP_ETCD": "10.0.0.1:2379", "DISTOP_ETCD_USER": "distop"}


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    return str(path)


def test_a_password_comes_from_its_file(password_file: str) -> None:
    environment = {**ENDPOINT, "DISTOP_ETCD_PASSWORD": "another", "DISTOP_ETCD_PASSWORD_FILE": password_file}
    assert EtcdConfig.from_env(environment).password == Secret("s3cret")


def test_an_empty_file_is_no_password(tmp_path: Path) -> None:
    """The units of systemd name one in any case."""
    (tmp_path / "none").touch()
    config = EtcdConfig.from_env({"DISTOP_ETCD_PASSWORD_FILE": str(tmp_path / "none")})
    assert (config.user, config.password) == ("", Secret(""))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        EtcdConfig.from_env({"DISTOP_ETCD_PASSWORD_FILE": str(tmp_path / "none")})


def test_children_are_told_the_file_and_read_it_themselves(password_file: str) -> None:
    config = EtcdConfig.from_env({**ENDPOINT, "DISTOP_ETCD_PASSWORD_FILE": password_file})
    environment = config.to_env()
    assert "s3cret" not in str(environment)
    assert EtcdConfig.from_env(environment) == config


def test_a_password_that_was_given_wins_over_a_file_that_the_child_inherits(password_file: str) -> None:
    config = EtcdConfig.from_env({**ENDPOINT, "DISTOP_ETCD_PASSWORD": "given"})
    inherited = {"DISTOP_ETCD_PASSWORD_FILE": password_file, **config.to_env()}
    assert EtcdConfig.from_env(inherited).password == Secret("given")


def test_a_configuration_is_shown_without_its_password() -> None:
    assert "s3cret" not in repr(EtcdConfig(password="s3cret"))


@pytest.mark.parametrize("by_file", [True, False])
def test_no_password_travels_with_the_tasks_of_spark(password_file: str, by_file: bool) -> None:
    given = {"DISTOP_ETCD_PASSWORD_FILE": password_file} if by_file else {"DISTOP_ETCD_PASSWORD": "s3cret"}
    config = EtcdConfig.from_env({**ENDPOINT, **given})
    task = SparkTask(arg_value=b"{}", run_token=1, tried={}, types="", etcd=config.to_public_env())
    assert b"s3cret" not in pickle.dumps(task)


def test_a_sidecar_without_a_password_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would only be in the way of one that has it."""
    monkeypatch.delenv("DISTOP_ETCD_PASSWORD", raising=False)
    monkeypatch.delenv("DISTOP_ETCD_PASSWORD_FILE", raising=False)
    with pytest.raises(SidecarUnavailable, match="no password"):
        start_sidecar(SidecarFolder(tmp_path), ENDPOINT)
