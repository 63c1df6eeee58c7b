"""``distop demo``: a table is filled while its runner and coordinator are killed; its rows are counted."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

from rich.console import Console

from distop.cli.demo.crew import until
from distop.cli.demo.days import KEY, SPLIT_BYTES, LandingDays, make_days
from distop.cli.demo.proof import Check, checks, verdict
from distop.cli.demo.stage import TABLE, Stage
from distop.cli.dev import end_sidecar
from distop.cli.output.base import Output
from distop.executor.runner.service import require_spark
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess

DAYS, ROWS, TOGETHER = 60, 2_000, 6
"""Days that land, rows of a day, and days that one operation may apply."""

_PER_LINE = 20
_APPLIED, _WAITING = "\N{BLACK SQUARE}", "\N{MIDDLE DOT}"


def play(out: Output, console: Console, master: str) -> bool:
    """Start everything in a folder of its own, play, and end it; whether every row is there once.

    Parameters
    ----------
    console:
        Where the progress is shown.
    master:
        Of Spark, for each of two runners; ``none``: threads.

    Raises
    ------
    ExtraMissing
        The master is one of Spark, which is not installed here.
    ServiceEnded, DeadlineExceeded
        The demo could not go on. Its folder stays, with the logs.
    """
    require_spark(master)
    began = time.monotonic()
    folder = Path(mkdtemp(prefix="distop-demo-"))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    good, ended = False, False
    try:
        results = _run(folder, console, master)
        good = all(holds for _, holds, _ in results)
    except (KeyboardInterrupt, SystemExit):
        ended = True
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        if good or ended:
            shutil.rmtree(folder)
        else:
            console.print(f"the logs are in {folder / 'logs'}")
    took = round(time.monotonic() - began)
    console.print(verdict(results))
    console.print(f"every row is there exactly once ({took} s)" if good else "something is wrong")
    shown = [{"what": label, "holds": holds, "found": value} for label, holds, value in results]
    out.result_for_programs({"good": good, "seconds": took, "checks": shown})
    return good


def _run(folder: Path, console: Console, master: str) -> list[Check]:
    days = make_days(folder / "source", DAYS, ROWS)
    with EtcdProcess(folder / "etcd") as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,))
        stage = Stage(folder, config, console, master=master)
        try:
            return acts(stage, days)
        finally:
            stage.client.close()
            stage.catalog.close()
            stage.crew.stop_all()
            end_sidecar(config)


def acts(stage: Stage, days: Counter[str]) -> list[Check]:
    """Everything that happens, and what it came to."""
    client = stage.client
    stage.console.print(
        f"{len(days)} days with {days.total():,} orders; two coordinators, two runners, one etcd"
    )
    for number in range(2):
        stage.start_coordinator(number)
        stage.start_runner(number)
    with stage.timed("all of them are there"):
        stage.wait_for_crew()
    stage.console.print(f"the page: http://{stage.page}/table?name={TABLE}")
    client.create_table(TABLE, str(stage.folder / "table"), options={"partitionBy": ["month(day)"]})
    client.table(TABLE).set_ordering(gate="closed", together=TOGETHER)
    landing = LandingDays(stage.folder / "landing", stage.folder / "source", {"split_bytes": SPLIT_BYTES})
    landing.drop(1.0)
    stage.start_feed(landing.folder)
    with stage.timed("all days were dropped into a folder, in no order, and are queued"):
        until(lambda: len(_queued(stage)) == len(days) or None, "the days")
    landing.history_done()

    names = sorted(days)
    blows = {
        names[2 * TOGETHER]: stage.kill_the_runner,
        names[5 * TOGETHER]: lambda _: stage.kill_the_leader(),
    }
    for day, blow in blows.items():
        stage.say(stage.strike(day, blow))
        _picture(stage, names)
    with stage.timed("the other days are applied"):
        until(lambda: not _queued(stage) or None, "an empty backlog", 120)
    _picture(stage, names)
    stage.wait_for_rest()
    return list(checks(stage.config, client, stage.catalog, TABLE, days, key=KEY, day=("day",)))


def _queued(stage: Stage) -> set[str]:
    return {batch.name for batch in stage.client.table(TABLE).backlog()}


def _picture(stage: Stage, names: list[str]) -> None:
    """A cell for each day, in their order: applied, or waiting."""
    waiting = _queued(stage)
    cells = "".join(_WAITING if name in waiting else _APPLIED for name in names)
    for at in range(0, len(names), _PER_LINE):
        stage.console.print(f"    {names[at]}  {cells[at : at + _PER_LINE]}")
    applied = len(names) - len(waiting)
    stage.console.print(f"    {applied} of {len(names)} days are applied")
