"""The demo: a year of real flights into one table, exactly once, in order, with processes killed on the way.

    make demo
    make demo ARGS=--secure     # behind TLS, with tokens and a policy

Starts etcd, two coordinators and two Spark runners as processes of their own, drops the New York flights of
2013 as 365 daily batches into a landing folder in no order at all, kills the feed, the leading coordinator
and the working runner with -9, loses a reply, and puts right a batch that cannot be read. Then it looks from
outside whether every row is there once, in order. The exit code says the verdict. Before that the table is
validated, indexed and compacted, and a streaming query copies it, whose driver is killed half-way.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from care import care
from feeding import feed
from flights import KEY, an_aeroplane_that_flew_once, write_days
from rich.console import Console
from streaming import copied, stream

from distop.cli.demo.proof import checks, verdict
from distop.cli.demo.stage import TABLE, Stage
from distop.cli.secure import GRANTS, Security
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess

FOLDER = Path(__file__).parent / "work"

console = Console(highlight=False)


def play(stage: Stage, days: Counter[str]) -> bool:
    """All of it; the verdict."""
    rare = an_aeroplane_that_flew_once(FOLDER / "source")
    for number in range(2):
        stage.start_coordinator(number)
        stage.start_runner(number)
    with stage.timed("two coordinators and two Spark runners are there"):
        stage.wait_for_crew()
    if stage.security is not None:
        stage.client.change_grants(GRANTS)
    stage.client.create_table(TABLE, str(FOLDER / "table"), options={"partitionBy": ["month(time_hour)"]})
    console.print(f"table {TABLE}, partitioned by month(time_hour), fed from a landing folder")
    with stage.timed("fed"):
        feed(stage)
    with stage.timed("looked after"):
        care(stage, rare)
    with stage.timed("streamed"):
        stream(stage, days.total())
    stage.wait_for_rest()
    return prove(stage, days)


def prove(stage: Stage, days: Counter[str]) -> bool:
    """Look at everything from outside."""
    columns = {"key": KEY, "day": ("year", "month", "day")}
    promised = checks(stage.config, stage.client, stage.catalog, TABLE, days, **columns)
    results = [*promised, copied(stage, days.total())]
    console.print()
    console.print(verdict(results))
    return all(holds for _, holds, _ in results)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo ARGS=...", description=__doc__.partition("\n")[0])
    parser.add_argument("--secure", action="store_true", help="behind TLS, with tokens and a policy")
    secure = parser.parse_args().secure
    began = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    days = write_days(FOLDER / "source")
    console.print(f"{days.total():,} flights of 2013 in {len(days)} daily folders")
    security = Security(FOLDER / "secure") if secure else None
    etcd, config = _etcd(security)
    with etcd:
        console.print(
            f"etcd {etcd.binary.version} on {config.endpoints[0]}{', behind TLS' if secure else ''}"
        )
        stage = Stage(FOLDER, config, console, security)
        try:
            good = play(stage, days)
        finally:
            stage.client.close()
            stage.catalog.close()
            stage.crew.stop_all()
    took = time.monotonic() - began
    console.print()
    if good:
        console.print(f"[bold green]every row is there exactly once[/] ({took:.0f} s)")
        return 0
    console.print(f"[bold red]something is wrong: see {FOLDER / 'logs'}[/] ({took:.0f} s)")
    return 1


def _etcd(security: Security | None) -> tuple[EtcdProcess, EtcdConfig]:
    if security is not None:
        return security.etcd(FOLDER / "etcd")
    etcd = EtcdProcess(FOLDER / "etcd")
    return etcd, EtcdConfig(endpoints=(etcd.endpoint,))


if __name__ == "__main__":
    sys.exit(main())
