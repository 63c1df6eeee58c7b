"""What the tasks of an operation hold: a socket, and no credentials of etcd's."""

from __future__ import annotations

import os
import secrets
import signal
import stat
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from distop.executor.host.sidecar_folder import BASE_VARIABLE
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.operations.jobs import SUCCESS
from support.etcd.etcds import enable_users
from support.etcd.lossy import LossyClient
from support.processes import ancestors
from support.services.executing import Child, all_done, place_in, short_folder, sidecar_pid, start_operation
from support.services.leases import TTL_S
from support.types.work_types import traces
from support.waiting import eventually

pytestmark = pytest.mark.spark


def told(pid: int, name: str) -> bytes:
    """A file of a process."""
    return Path(f"/proc/{pid}/{name}").read_bytes()


async def test_tasks_hold_no_credentials_of_etcd_and_go_on_when_their_sidecar_dies(tmp_path: Path) -> None:
    """S5: neither the environment nor the command line of any process of Spark has the password."""
    canary, prefix = f"canary-{secrets.token_hex(8)}", "secured"
    with EtcdProcess(tmp_path / "etcd") as etcd, short_folder() as base:
        enable_users(etcd, user="distop", password=canary, prefix=f"{prefix}.")
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, user="distop", password=canary)
        place, client = place_in(base, config), LossyClient(config)
        environment = {BASE_VARIABLE: str(base), "PYSPARK_PYTHON": sys.executable}
        command = ("-m", "support.services.executor_main", "local[2]", str(TTL_S))
        with Child(config, tmp_path, *command, **environment) as executor:
            argument = {"folder": str(tmp_path), "hold": ["0", "1"]}
            arg = await start_operation(client, "traced", argument, jobs=2)
            await eventually(lambda: len(traces(tmp_path, "began")) == 2, 60.0)
            workers = {int(pid) for *_, pid in traces(tmp_path, "began")}
            of_spark = {
                pid
                for worker in workers
                for pid in (worker, *takewhile(lambda pid: pid != executor.pid, ancestors(worker)))
            }
            assert any(b"java" in told(pid, "cmdline") for pid in of_spark)
            for pid in of_spark:
                for name in ("environ", "cmdline"):
                    assert canary.encode() not in told(pid, name), (pid, name)

            first = sidecar_pid(place)
            assert canary.encode() not in told(first, "cmdline")
            for path, mode in ((place.folder, 0o700), (place.socket, 0o600)):
                found = path.stat()
                assert (stat.S_IMODE(found.st_mode), found.st_uid) == (mode, os.getuid())

            os.kill(first, signal.SIGKILL)
            (tmp_path / "release").touch()
            records = await all_done(client, arg, 60.0)
            assert {record.state for record in records.values()} == {SUCCESS}
            assert sidecar_pid(place) != first
            executor.terminate()
            executor.wait(60)
        assert canary not in executor.log.read_text()
        await client.close()
