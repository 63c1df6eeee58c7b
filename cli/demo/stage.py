"""What all demos share: the table, the crew, and how its members are found and killed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from distop.catalog import EtcdCatalog
from distop.cli.demo.crew import AT_ONCE_S, Crew, until
from distop.cli.dev import environment_of
from distop.cli.secure import ADMIN, Security
from distop.client import Client, Credentials, Member, Operation
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port

TABLE = "flights"
LEASE_TTL_S = 2
PAGE_OF = 0
"""The coordinator that serves the page."""


class Stage:
    """Two coordinators, two runners, a landing feed, and the one who watches them.

    Parameters
    ----------
    folder:
        Where everything is.
    security:
        Its certificates and tokens; without: in plain text, for anybody.
    master:
        That of the runners. One slot each by default: two runners on two cores.
    """

    def __init__(
        self,
        folder: Path,
        config: EtcdConfig,
        console: Console,
        security: Security | None = None,
        master: str = "local[1]",
    ) -> None:
        self._master = master
        self.page = f"127.0.0.1:{free_port()}"
        self.folder, self.config, self.console, self.security = folder, config, console, security
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        address = ",".join(self.addresses)
        # The feed and the stream write, and do nothing that needs more.
        shown = security.credentials("writer").to_env() if security is not None else {}
        self.crew = Crew(folder / "logs", {**environment_of(config), **shown, "DISTOP_ADDRESS": address})
        self.client = self.connect(address, timeout_s=30)
        properties = {
            "etcd.endpoints": ",".join(config.endpoints),
            "etcd.prefix": config.prefix,
            "etcd.ca-cert": config.ca_cert,
            "etcd.cert": config.cert,
            "etcd.key": config.key,
        }
        self.catalog = EtcdCatalog("demo", **{name: text for name, text in properties.items() if text})

    def connect(self, address: str, timeout_s: float) -> Client:
        """As who may do everything."""
        shown = self.security.credentials(ADMIN) if self.security is not None else Credentials()
        return Client(address, timeout_s=timeout_s, connect_timeout_s=30, credentials=shown)

    def start_coordinator(self, number: int) -> None:
        options = ["--listen", self.addresses[number], "--lease-ttl", str(LEASE_TTL_S)]
        options += ["--web", self.page] if number == PAGE_OF else []
        options += self.security.coordinator_arguments() if self.security is not None else []
        self.crew.start(f"coordinator-{number}", "coordinator", *options)

    def start_runner(self, number: int) -> None:
        options = ("--master", self._master, "--lease-ttl", str(LEASE_TTL_S))
        self.crew.start(f"runner-{number}", "executor", *options)

    def start_feed(self, landing: Path) -> int:
        return self.crew.start("landing", "landing", str(landing), "--table", TABLE, "--every", "500ms")

    def wait_for_crew(self, coordinators: int = 2, runners: int = 2) -> None:
        def complete() -> bool | None:
            self.crew.check()
            roles = Counter(member.role for member in self.client.members())
            return (roles["coordinator"] >= coordinators and roles["executor"] >= runners) or None

        until(complete, "two coordinators and two runners", 90)

    def wait_for_rest(self) -> None:
        until(lambda: not self.client.table(TABLE).get().leader or None, "the table to come to rest", 60)

    def rows(self, table: str) -> int:
        """Rows of a table, as its present snapshot says."""
        snapshot = self.catalog.load_table(f"default.{table}").current_snapshot()
        return int(snapshot.summary["total-records"] or 0) if snapshot and snapshot.summary else 0

    def say(self, line: str) -> None:
        self.console.print(f"  {line}", soft_wrap=True)

    @contextmanager
    def timed(self, label: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.console.print(f"{label} [dim]({time.monotonic() - began:.1f} s)[/]")

    # -- kill -9 ---------------------------------------------------------------------------------------

    def strike(self, day: str, blow: Callable[[Operation], str]) -> str:
        """Strike in the middle of an operation, the first after ``day`` was reached; what came of it."""

        def struck() -> str | None:
            now = self.client.table(TABLE).ordering()
            if not now.running or now.last < day:
                return None
            operation = self.client.operation(now.running).get()
            return blow(operation) if operation.runner and not operation.done else None

        note = until(struck, f"an operation after {day}", 120, every_s=AT_ONCE_S)
        return f"{self.client.table(TABLE).ordering().last}: {note}"

    def kill_the_leader(self) -> str:
        """Kill the coordinator that leads the table; how long until the other one leads."""
        leader = until(
            lambda: next((leader for leader in self.client.leaders() if leader.table == TABLE), None),
            "a leader",
        )
        member = self._member(leader.member)
        killed = time.monotonic()
        self.crew.kill(member.pid)

        def another() -> str | None:
            now = self.client.table(TABLE).get().leader
            return now if now not in ("", leader.member) else None

        until(another, "a new leader", every_s=AT_ONCE_S)
        took = time.monotonic() - killed
        self.start_coordinator(self.addresses.index(member.address))
        return f"leading coordinator killed -9: the other one led after {took:.1f} s"

    def _member(self, id: str) -> Member:
        return next(member for member in self.client.members() if member.id == id)

    def kill_the_runner(self, operation: Operation) -> str:
        """Kill the Spark driver that runs the operation; how long until the other one has it."""
        first = operation.runner
        member = self._member(first)
        killed = time.monotonic()
        self.crew.kill(member.pid)

        def taken() -> Operation | None:
            now = self.client.operation(operation.name).get()
            return now if now.runner not in ("", first) or now.done else None

        now = until(taken, "another runner", every_s=AT_ONCE_S)
        took = time.monotonic() - killed
        self.start_runner(2)
        kept = f"{now.jobs.succeeded} of {now.jobs.total} jobs were done and stayed done"
        return f"working runner killed -9: the other one took over after {took:.1f} s; {kept}"
