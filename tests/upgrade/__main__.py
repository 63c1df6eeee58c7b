"""D3, two releases side by side: members are replaced one by one while operations run, and back again.

``make test-upgrade`` starts from the last release, ``FROM=<commit>`` from another one. etcd, two
coordinators, two executors with Spark and the sidecar of their tasks start as FROM; each is stopped in
order and started as what is checked out here, and later the other way. Meanwhile batches are ingested in
order, and a caller starts operations. Every row is counted. The last line is one JSON object.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from distop.catalog import EtcdCatalog
from distop.client import Client
from distop.errors import DistopError
from distop.lake.storage.allowed import ALL
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from support.processes import captured
from support.repository import ROOT

SIDECAR = "sidecar-0"
MEMBERS = ("coordinator-0", "coordinator-1", SIDECAR, "executor-0", "executor-1")
BATCHES, ROWS = 15, 40
"""How many are enqueued for each member that is replaced; and the rows of each."""

TTL_S = 2
DEADLINE_S = 120.0
"""For a member to be there or gone, and for what was enqueued to be applied."""

FED, CALLED = "fed", "called"


def until(condition: Callable[[], bool], awaited: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {DEADLINE_S:.0f} s in vain for {awaited}")
        time.sleep(0.2)


def last_release() -> str:
    """The commit of the newest release, which CHANGELOG.md names: a clone may lack its tag."""
    match = re.search(r"^## \[\d[^\n]*\n\nCommit (\w+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if match is None:
        raise SystemExit("CHANGELOG.md does not name the commit of the last release: give one")
    return match[1]


def unpacked(commit: str, folder: Path) -> Path:
    """The sources of a commit, below the folder; where Python finds its packages."""
    folder.mkdir()
    archive = folder / "sources.tar"
    made = captured(["git", "archive", f"--output={archive}", commit], cwd=ROOT)
    if made.returncode:
        raise SystemExit(f"git knows no sources of {commit!r}: {made.stderr.strip()}")
    subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={folder}"], check=True)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    # As if it were installed: members tell which release they are, and find its operation types.
    metadata = folder / "src" / f"distop-{project['version']}.dist-info"
    metadata.mkdir()
    written = f"Metadata-Version: 2.1\nName: distop\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(written)
    groups = project.get("entry-points", {}).items()
    text = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in groups
    )
    (metadata / "entry_points.txt").write_text(text)
    return folder / "src"


class Fleet:
    """The members, each of the release that it was started as last."""

    def __init__(self, folder: Path, config: EtcdConfig) -> None:
        self._folder = folder
        self._addresses = {name: f"127.0.0.1:{free_port()}" for name in MEMBERS[:2]}
        self._env = {**os.environ, **ALL, **config.to_env(), "DISTOP_RUNTIME_DIR": str(folder / "run")}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def client(self) -> Client:
        return Client(",".join(self._addresses.values()), timeout_s=60, connect_timeout_s=60)

    def start(self, name: str, sources: Path) -> None:
        """Start it from these sources; the one that checks them is Python itself."""
        role = name.partition("-")[0]
        words = {
            "coordinator": ["--listen", self._addresses.get(name, ""), "--lease-ttl", str(TTL_S)],
            "executor": ["--master", "local[1]", "--lease-ttl", str(TTL_S)],
            "sidecar": [],
        }[role]
        env = {**self._env, "PYTHONPATH": str(sources)}
        script = "import distop.cli.main as main; print(main.__file__)"
        path = captured([sys.executable, "-c", script], env=env, cwd=self._folder, check=True).stdout.strip()
        if not path.startswith(f"{sources}/"):
            raise SystemExit(f"Python takes distop from {path}, not from {sources}")
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "distop.cli.main", role, *words],
                env=env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self, name: str) -> None:
        """Ask it to end, as a service manager does."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise SystemExit(f"{name} did not end within {DEADLINE_S:.0f} s") from None

    def stop_all(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def all_there(self, client: Client) -> bool:
        """Whether the members are these processes, and no others."""
        if ended := [name for name, process in self._processes.items() if process.poll() is not None]:
            raise SystemExit(f"{', '.join(ended)} ended by itself: its log is in {self._folder}")
        return {member.pid for member in client.members()} == {
            process.pid for process in self._processes.values()
        }


class Caller(threading.Thread):
    """Starts one operation after the other and waits for its end."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self._client, self._over = client, threading.Event()
        self.operations = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._over.is_set():
            try:
                started = self._client.start(CALLED, "noop", {"partitions": 4})
                started.result(timeout_s=DEADLINE_S)
            except DistopError as error:
                self.failures.append(f"{type(error).__name__}: {error}"[:300])
            else:
                self.operations += 1

    def end(self) -> None:
        self._over.set()
        self.join(2 * DEADLINE_S)


class Feed:
    """Batches in order; each row is a different number."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client, self._folder = client, folder
        folder.mkdir()
        self.batches = 0

    def enqueue(self) -> None:
        for _ in range(BATCHES):
            file = self._folder / f"{self.batches:06d}.csv"
            first = self.batches * ROWS
            file.write_text("id\n" + "".join(f"{first + row}\n" for row in range(ROWS)))
            self._client.table(FED).enqueue(file.stem, "ingest", {"paths": [str(file)]})
            self.batches += 1

    def applied(self) -> bool:
        return not any(True for _ in self._client.table(FED).backlog())


def replaced(
    fleet: Fleet, client: Client, feed: Feed, caller: Caller, sources: Path, release: str
) -> set[str]:
    """All members, one by one, with work under way; each combination does some. The versions that ran
    together, such as ``0.1.0 0.2.0``."""
    together = set()
    for name in MEMBERS:
        feed.enqueue()
        fleet.stop(name)
        fleet.start(name, sources)
        until(lambda: fleet.all_there(client), f"{name} of {release}")
        feed.enqueue()
        until(feed.applied, f"all batches, with {name} of {release}")
        before = caller.operations
        until(lambda: caller.operations > before + 3, f"operations, with {name} of {release}")  # noqa: B023
        print(f"  {name} is {release}: {feed.batches} batches, {caller.operations} operations", flush=True)
        together.add(" ".join(sorted({member.version for member in client.members()})))
    return together


def play(commit: str, folder: Path, config: EtcdConfig) -> dict[str, object]:
    """Replace all members and back under load; the figures of the run, with rows lost and doubled."""
    before, now = unpacked(commit, folder / "before"), ROOT / "src"
    fleet = Fleet(folder, config)
    try:
        for name in MEMBERS:
            fleet.start(name, before)
        with fleet.client() as client, fleet.client() as callers:
            until(lambda: fleet.all_there(client), f"the members of {commit}")
            client.create_table(FED, str(folder / "table"))
            client.create_table(CALLED, str(folder / "called"))
            client.table(FED).set_ordering(together=2)
            caller, feed = Caller(callers), Feed(client, folder / "batches")
            caller.start()
            together = replaced(fleet, client, feed, caller, now, "new")
            together |= replaced(fleet, client, feed, caller, before, "old")
            caller.end()
            failed = [
                operation.name for operation in client.operations(FED) if operation.state.value == "failed"
            ]
            findings = sorted({finding.code for finding in client.diagnose().findings})
    finally:
        fleet.stop_all()
    with EtcdCatalog("upgrade", **{"etcd.endpoints": ",".join(config.endpoints)}) as catalog:
        table = catalog.load_table(f"default.{FED}")
        counted = Counter(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())
    expected = Counter(range(feed.batches * ROWS))
    return {
        "from": commit,
        "versions_together": sorted(together),
        "members_replaced": 2 * len(MEMBERS),
        "operations": caller.operations + feed.batches,
        "failed_operations": len(failed) + len(caller.failures),
        "failures": [*failed, *caller.failures][:5],
        "rows": counted.total(),
        "rows_lost": (expected - counted).total(),
        "rows_doubled": (counted - expected).total(),
        "findings": findings,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-upgrade", description=__doc__.partition("\n")[0])
    parser.add_argument("commit", nargs="?", help="what to start from (default: the last release)")
    commit = parser.parse_args().commit or last_release()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="distop-upgrade-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with EtcdProcess(folder / "etcd") as etcd:
            try:
                figures = play(commit, folder, EtcdConfig(endpoints=(etcd.endpoint,)))
            except SystemExit:
                for log in sorted(folder.glob("*.log")):
                    print(f"==== {log.name}", log.read_text(errors="replace")[-3000:], sep="\n")
                raise
    print(json.dumps({**figures, "seconds": round(time.monotonic() - began)}))
    return int(bool(figures["failed_operations"] or figures["rows_lost"] or figures["rows_doubled"]))


if __name__ == "__main__":
    sys.exit(main())
