"""Loss of an etcd, and its return from a backup as operators do it."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from distop.client import AsyncClient
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdBinary, EtcdProcess, find_etcd
from distop.metastore.members.installation import BUMP
from support.processes import captured
from support.services.coordinators import CoordinatorProcess
from support.services.executing import Child, executor_process


@dataclass
class Services:
    """A coordinator and an executor, as processes."""

    coordinator: CoordinatorProcess
    executor: Child
    client: AsyncClient

    def sleep(self) -> None:
        """Stop both processes, as a host does that has halted."""
        self.coordinator.signal(signal.SIGSTOP)
        self.executor.stop()

    def wake(self) -> None:
        self.coordinator.signal(signal.SIGCONT)
        self.executor.resume()


def etcd_that_restores() -> EtcdBinary:
    """An etcd whose etcdutl raises revisions; the test is skipped where there is none."""
    folders = [find_etcd().path.parent, *sorted(Path(sys.prefix).glob("etcd*"), reverse=True)]
    for folder in (*folders, *map(Path, os.get_exec_path())):
        utl, server = folder / "etcdutl", folder / "etcd"
        if utl.is_file() and server.is_file():
            usage = subprocess.run([utl, "snapshot", "restore", "--help"], capture_output=True, timeout=20)
            if b"--bump-revision" in usage.stdout:
                version = captured([server, "--version"], timeout=20)
                return EtcdBinary(server, version.stdout.split("etcd Version: ")[1].split()[0], "restores")
    pytest.skip("no etcdutl with --bump-revision: make test-etcd ETCD=3.6.16 builds one")


def lose(etcd: EtcdProcess) -> None:
    """Kill etcd by SIGKILL and remove all its data."""
    etcd.kill()
    shutil.rmtree(etcd.data_dir / "data")


def restore(etcd: EtcdProcess, backup: Path) -> None:
    """Restore the one member from a backup, with the command of docs/operating.md."""
    command = [str(etcd.binary.path.with_name("etcdutl")), "snapshot", "restore", str(backup)]
    command += [f"--bump-revision={BUMP}", "--mark-compacted", f"--data-dir={etcd.data_dir / 'data'}"]
    command += ["--name=distop", "--initial-cluster=distop=http://127.0.0.1:0"]
    command += ["--initial-advertise-peer-urls=http://127.0.0.1:0"]
    done = captured(command, timeout=60)
    assert done.returncode == 0, done.stderr


def distop(etcd: str, prefix: str, *words: str, succeeds: bool = True) -> str:
    """Run a command that connects to etcd itself; its standard output."""
    env = {**os.environ, "DISTOP_ETCD": etcd, "DISTOP_PREFIX": prefix}
    command = [sys.executable, "-m", "distop.cli", *words, "--output", "json"]
    done = captured(command, env=env)
    assert (done.returncode == 0) == succeeds, (done.returncode, done.stdout, done.stderr)
    return done.stdout


async def services(stack: AsyncExitStack, config: EtcdConfig, folder: Path, store: EtcdClient) -> Services:
    coordinator = await stack.enter_async_context(CoordinatorProcess(config, folder))
    executor = stack.enter_context(executor_process(config, folder))
    await coordinator.member(store)
    client = await stack.enter_async_context(AsyncClient(coordinator.address, timeout_s=60))
    return Services(coordinator, executor, client)


async def findings(etcd: EtcdProcess, prefix: str, *words: str, succeeds: bool) -> list[dict[str, object]]:
    """What the doctor says after a restore."""
    printed = await asyncio.to_thread(
        distop, etcd.endpoint, prefix, "cluster", "doctor", "--after-restore", *words, succeeds=succeeds
    )
    reported: list[dict[str, object]] = json.loads(printed)["findings"]
    return reported
