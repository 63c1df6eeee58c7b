"""An etcd of our own: started, stopped, halted and killed."""

import logging
import os
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from distop.metastore.etcd.embedded import LOSSY_WARNING, EtcdProcess, find_etcdctl
from support.processes import captured, sockets_of

pytestmark = pytest.mark.process

STARTS_ONE_AND_WAITS = """
import sys
from pathlib import Path
from distop.metastore.etcd.embedded import EtcdProcess

process = EtcdProcess(Path(sys.argv[1]))
process.start()
if sys.argv[2] == "halted":
    process.suspend()
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    """An etcd that a test may stop, unlike the shared one."""
    with EtcdProcess(tmp_path) as process:
        yield process


def etcdctl(process: EtcdProcess, *arguments: str) -> str:
    command = [str(find_etcdctl()), f"--endpoints={process.endpoint}", "--command-timeout=5s", *arguments]
    environment = os.environ | {"ETCDCTL_API": "3"}
    return captured(command, env=environment, check=True).stdout


def fill(process: EtcdProcess, megabytes: int) -> None:
    for n in range(megabytes * 10):
        etcdctl(process, "put", f"key{n}", "x" * 100_000)


def wait_until_ended(pid: int, timeout: float) -> bool:
    """Whether the process, not a child of ours, has ended within ``timeout`` seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout)[0])
    finally:
        os.close(handle)


def test_the_shared_etcd_keeps_what_is_put_below_the_prefix(etcd: EtcdProcess, prefix: str) -> None:
    etcdctl(etcd, "put", f"{prefix}.greeting", "hello")
    assert etcdctl(etcd, "get", "--prefix", f"{prefix}.") == f"{prefix}.greeting\nhello\n"


def test_an_embedded_etcd_listens_on_loopback_only(etcd: EtcdProcess) -> None:
    members = etcdctl(etcd, "member", "list")
    assert f"http://{etcd.endpoint}" in members
    addresses = {
        line.split()[1].partition(":")[0]
        for line in Path(f"/proc/{etcd.pid}/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[9] in sockets_of(etcd.pid)
    }
    assert addresses == {"0100007F"}
    assert not any(
        line.split()[3] == "0A" and line.split()[9] in sockets_of(etcd.pid)
        for line in Path(f"/proc/{etcd.pid}/net/tcp6").read_text().splitlines()[1:]
    )


def test_data_and_port_survive_a_restart(own_etcd: EtcdProcess) -> None:
    endpoint, first = own_etcd.endpoint, own_etcd.pid
    etcdctl(own_etcd, "put", "a", "1")
    own_etcd.stop()
    assert not own_etcd.running
    own_etcd.start()
    assert own_etcd.endpoint == endpoint
    assert own_etcd.pid != first
    assert etcdctl(own_etcd, "get", "a") == "a\n1\n"


def test_starting_a_running_one_changes_nothing(own_etcd: EtcdProcess) -> None:
    pid = own_etcd.pid
    own_etcd.start()
    assert own_etcd.pid == pid


def test_a_suspended_one_accepts_and_does_not_answer_until_it_is_resumed(own_etcd: EtcdProcess) -> None:
    url = f"http://{own_etcd.endpoint}/health"
    own_etcd.suspend()
    assert own_etcd.running
    with pytest.raises(OSError, match="timed out"):
        urllib.request.urlopen(url, timeout=0.3)
    own_etcd.resume()
    assert "true" in etcdctl(own_etcd, "endpoint", "health", "--write-out=json")


def test_a_suspended_one_is_stopped_in_an_orderly_way(own_etcd: EtcdProcess) -> None:
    own_etcd.suspend()
    own_etcd.stop(timeout=10)
    assert not own_etcd.running
    own_etcd.start()


def test_a_killed_one_is_gone_at_once_and_starts_again(own_etcd: EtcdProcess) -> None:
    pid = own_etcd.pid
    own_etcd.kill()
    assert not own_etcd.running
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://{own_etcd.endpoint}/health", timeout=1)
    own_etcd.start()
    etcdctl(own_etcd, "put", "b", "2")
    assert etcdctl(own_etcd, "get", "b") == "b\n2\n"


def test_options_and_variables_reach_etcd_as_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota is obeyed; a stray ETCD_NAME, which etcd refuses together with the flag, is not passed on."""
    monkeypatch.setenv("ETCD_NAME", "somebody-else")
    small = EtcdProcess(tmp_path, options=["--quota-backend-bytes=1000000"])
    with small, pytest.raises(subprocess.CalledProcessError) as raised:
        fill(small, megabytes=10)
    assert "database space exceeded" in raised.value.stderr


def test_a_lossy_version_warns_when_it_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with EtcdProcess(tmp_path) as process:
        assert (LOSSY_WARNING in caplog.text) == process.binary.lossy


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal of Linux")
@pytest.mark.parametrize("state", ["running", "halted"])
def test_an_embedded_etcd_ends_with_a_parent_that_was_killed(tmp_path: Path, state: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE_AND_WAITS, str(tmp_path), state],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # As a terminal or a service manager would: the kernel wakes a halted orphan, so that it sees a signal
        # only if its new parent, the first process of the machine or container, is of another session.
        start_new_session=True,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    ended = wait_until_ended(pid, timeout=10)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    assert ended
