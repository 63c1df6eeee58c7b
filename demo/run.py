"""The demo: a year of real flights into one table, exactly once, with processes killed on the way.

    make demo

Starts etcd, two coordinators and two Spark runners as processes of their own, ingests the New York flights
of 2013 month by month, kills the leading coordinator and the working runner with -9, loses the reply of a
start, and then looks from outside whether every row is there once. The exit code says the verdict.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from crew import Crew, until
from flights import write_months
from lost_reply import LossyProxy
from proof import checks
from rich.console import Console
from rich.table import Table

from distop.client import Client, Operation
from distop.errors import Unavailable
from distop.metastore.config import EtcdConfig
from distop.metastore.embedded import EtcdProcess, free_port

FOLDER = Path(__file__).parent / "work"
TABLE = "flights"
LEASE_TTL_S = 2
SPLIT_BYTES = 256 * 1024
KILL_COORDINATOR, KILL_RUNNER, LOSE_REPLY = "2013-03", "2013-06", "2013-09"

console = Console(highlight=False)


class Demo:
    """One run of it."""

    def __init__(self, config: EtcdConfig, months: Counter[str]) -> None:
        self.config = config
        self.months = months
        self.crew = Crew(FOLDER / "logs", config.to_env())
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.client = Client(",".join(self.addresses), timeout_s=30, connect_timeout_s=30)

    def start_coordinator(self, number: int) -> None:
        listen = ("--listen", self.addresses[number], "--lease-ttl", str(LEASE_TTL_S))
        self.crew.start(f"coordinator-{number}", "coordinator", *listen)

    def start_runner(self, number: int) -> None:
        # One slot each: two runners on two cores.
        master = ("--master", "local[1]", "--lease-ttl", str(LEASE_TTL_S))
        self.crew.start(f"runner-{number}", "executor", *master)

    def wait_for_crew(self, coordinators: int = 2, runners: int = 2) -> None:
        def complete() -> bool | None:
            roles = Counter(member.role for member in self.client.members())
            return (roles["coordinator"] >= coordinators and roles["executor"] >= runners) or None

        until(complete, "two coordinators and two runners", 90)

    # -- the story ---------------------------------------------------------------------------------------

    def ingest(self, month: str) -> None:
        """Ingest one month, with whatever happens to it on the way."""
        began = time.monotonic()
        operation = self.lose_a_reply(month) if month == LOSE_REPLY else self.start(self.client, month)
        note = "reply of the start lost, repeated: the same operation" if month == LOSE_REPLY else ""
        if month == KILL_COORDINATOR:
            self.wait_until_half_done(operation)
            note = self.kill_the_leader()
        elif month == KILL_RUNNER:
            self.wait_until_half_done(operation)
            note = self.kill_the_runner(operation)
        ended = self.client.wait(operation.name, timeout_s=90)
        ended.raise_for_outcome()
        console.print(f"  {month}  {ended.jobs.total:>2} jobs  {time.monotonic() - began:5.1f} s  {note}")

    def start(self, client: Client, month: str) -> Operation:
        argument = {"paths": [str(FOLDER / "flights" / month)], "split_bytes": SPLIT_BYTES}
        return client.start(TABLE, "ingest", argument, request_id=f"flights-{month}")

    def wait_until_half_done(self, operation: Operation) -> None:
        """Until some of its jobs are done and some are not."""
        for update in self.client.watch(operation.name):
            if 0 < update.operation.jobs.succeeded < update.operation.jobs.total:
                return
            if update.operation.done:
                raise SystemExit(
                    f"{operation.name} ended before anything could be killed: {update.operation.state}"
                )

    def kill_the_leader(self) -> str:
        """kill -9 the coordinator that leads the table; how long until the other one leads."""
        leader = until(
            lambda: next((found for found in self.client.leaders() if found.table == TABLE), None), "a leader"
        )
        member = next(found for found in self.client.members() if found.id == leader.member)
        killed = time.monotonic()
        self.crew.kill(member.pid)

        def another() -> str | None:
            now = self.client.get_table(TABLE).leader
            return now if now not in ("", leader.member) else None

        until(another, "a new leader")
        took = time.monotonic() - killed
        self.start_coordinator(self.addresses.index(member.address))
        return f"leading coordinator killed -9, the other one led after {took:.1f} s"

    def kill_the_runner(self, operation: Operation) -> str:
        """kill -9 the Spark driver that runs the operation; how long until the other one has it."""
        first = until(lambda: self.client.get(operation.name).runner or None, "a runner")
        member = next(found for found in self.client.members() if found.id == first)
        killed = time.monotonic()
        self.crew.kill(member.pid)

        def taken() -> Operation | None:
            now = self.client.get(operation.name)
            return now if now.runner not in ("", first) or now.done else None

        now = until(taken, "another runner")
        took = time.monotonic() - killed
        self.start_runner(2)
        kept = f"{now.jobs.succeeded} of {now.jobs.total} jobs were done and stayed done"
        return f"working runner killed -9, the other one took over after {took:.1f} s; {kept}"

    def lose_a_reply(self, month: str) -> Operation:
        """Start an operation, never hear of it, and ask again with the same request id."""
        with LossyProxy(self.addresses[0]) as proxy, Client(proxy.address, timeout_s=3) as client:
            client.get_table(TABLE)
            proxy.lose_replies()
            try:
                self.start(client, month)
            except (Unavailable, TimeoutError):
                pass
            except Exception as error:
                if getattr(error, "code", "") != "DEADLINE_EXCEEDED":
                    raise
            else:
                raise SystemExit("the reply was not lost")
        first = until(
            lambda: next(
                (found for found in self.client.list(TABLE) if found.request_id == f"flights-{month}"), None
            ),
            "the operation whose reply was lost",
        )
        again = self.start(self.client, month)
        if again.name != first.name:
            raise SystemExit(f"the repeated start made {again.name} beside {first.name}")
        return again

    def prove(self) -> bool:
        """The verdict."""

        def at_rest() -> bool | None:
            return not self.client.get_table(TABLE).leader or None

        until(at_rest, "the table to come to rest", 60)
        verdict = Table("what", "", "found", box=None)
        good = True
        for what, holds, found in checks(self.config, self.client, TABLE, self.months):
            verdict.add_row(what, "[green]ok[/]" if holds else "[red]WRONG[/]", found)
            good = good and holds
        console.print()
        console.print(verdict)
        return good


def timed(what: str, action: Callable[[], object]) -> None:
    began = time.monotonic()
    action()
    console.print(f"{what} [dim]({time.monotonic() - began:.1f} s)[/]")


def main() -> int:
    began = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    months = write_months(FOLDER / "flights")
    console.print(f"{months.total():,} flights of 2013 in {len(months)} monthly folders")
    with EtcdProcess(FOLDER / "etcd") as etcd:
        demo = Demo(EtcdConfig(endpoints=(etcd.endpoint,)), months)
        console.print(f"etcd {etcd.binary.version} on {etcd.endpoint}")
        try:
            for number in range(2):
                demo.start_coordinator(number)
                demo.start_runner(number)
            timed("two coordinators and two Spark runners are there", demo.wait_for_crew)
            options = {"partitionBy": ["month(time_hour)"]}
            demo.client.create_table(TABLE, str(FOLDER / "table"), options=options)
            console.print(f"ingesting into table {TABLE}, partitioned by month(time_hour)")
            for month in sorted(months):
                demo.ingest(month)
            good = demo.prove()
        finally:
            demo.client.close()
            demo.crew.stop_all()
    took = time.monotonic() - began
    console.print()
    if good:
        console.print(f"[bold green]every row is there exactly once[/] ({took:.0f} s)")
        return 0
    console.print(f"[bold red]something is wrong: see {FOLDER / 'logs'}[/] ({took:.0f} s)")
    return 1


if __name__ == "__main__":
    sys.exit(main())
