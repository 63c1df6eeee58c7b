"""The command that feeds a table from a landing folder."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from distop.cli.bundles import command
from distop.cli.logs import configure
from distop.cli.parsing import parse_duration
from distop.cli.session import Connected
from distop.errors import DistopError

app = typer.Typer()

PANEL = "Ordered batches"


@command(app, rich_help_panel=PANEL)
def landing(
    session: Connected,
    url: Annotated[str, typer.Argument(metavar="URL", help="The folder: a path, s3://bucket/folder, ...")],
    table: Annotated[str, typer.Option(metavar="TABLE", help="The table that it feeds.")],
    type: Annotated[str, typer.Option(metavar="TYPE", help="The operation that applies a batch.")] = "ingest",
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often to look.")] = "5s",
    once: Annotated[bool, typer.Option("--once", help="Look once, say what was found, and end.")] = False,
) -> None:
    """Publish the batches that land in a folder: every folder below it with a _SUCCESS file.

    Runs until it is told to end (SIGTERM, Ctrl-C); may be killed and started again at any time.
    """
    from distop.client.landing import Landing

    pause = parse_duration(every, "every")
    feed = Landing(session.client, table, url, type=type)
    if once:
        report = feed.poll()
        facts = {
            "published": report.published,
            "passed_over": report.passed_over,
            "controls": report.controls,
            "problems": report.problems,
        }
        session.out.facts(f"landing of {table}", facts)
        return
    configure("info", "text")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    session.out.note(f"feeding {table} from {url}, looking every {pause:g} s")
    while not stop.is_set():
        try:
            feed.poll()
        except DistopError as error:
            if not error.retryable:
                raise
            session.out.note(f"{error.code}: {error.message}; trying again")
        except OSError as error:
            session.out.note(f"{url} cannot be read: {error}; trying again")
        stop.wait(pause)
