"""The command that feeds a table from a landing folder."""

from __future__ import annotations

import dataclasses
import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from distop.cli.options.bundles import command
from distop.cli.options.parsing import parse_duration
from distop.cli.options.services import end_with
from distop.cli.options.session import Connected
from distop.cli.output.exits import SOMETHING_WRONG
from distop.cli.output.logs import Level, LogFormat, configure
from distop.errors import DistopError

if TYPE_CHECKING:
    from distop.spark_jobs.landing.folder import Report

app = typer.Typer()

OnChanged: TypeAlias = Literal["say", "replace"]

PANEL = "Ordered batches"


@command(app, rich_help_panel=PANEL)
def landing(
    session: Connected,
    url: Annotated[str, typer.Argument(metavar="URL", help="The folder: a path, s3://bucket/folder, ...")],
    table: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="The table that it feeds; folders above URL are ignored. Without: each folder "
            "in it feeds the table of its name.",
        ),
    ] = None,
    type: Annotated[str, typer.Option(metavar="TYPE", help="The operation that applies a batch.")] = "ingest",
    on_changed: Annotated[
        OnChanged,
        typer.Option(
            help="Of a batch that is written again after it was applied: say so, or replace its rows, once "
            "for each _SUCCESS."
        ),
    ] = "say",
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often to look.")] = "5s",
    once: Annotated[bool, typer.Option("--once", help="Look once, print what was found, and exit.")] = False,
    log_level: Annotated[Level, typer.Option(help="Of the log on stderr.")] = "info",
    log_format: Annotated[LogFormat, typer.Option(help="Of the log on stderr.")] = "text",
    end_with_parent: Annotated[int, typer.Option(metavar="PID", hidden=True)] = 0,
) -> int:
    """Publish the batches of a landing folder: every folder below it with a _SUCCESS file.

    Runs until SIGTERM or Ctrl-C; may be killed and started again at any time. A problem in the folder is
    logged once; with --once the exit code is then 22.
    """
    from distop.spark_jobs.landing.folder import Landing
    from distop.spark_jobs.landing.tables import Landings

    if end_with_parent:
        end_with(end_with_parent)
    pause = parse_duration(every, "every")
    how: Any = {"type": type, "replace": on_changed == "replace"}
    one = Landing(session.client, table, url, **how) if table is not None else None
    many = Landings(session.client, url, **how)

    def look() -> dict[str, Report]:
        return {table: one.poll()} if one is not None and table is not None else many.poll()

    configure(log_level, log_format)
    if once:
        reports = look()
        for name, report in reports.items():
            session.out.facts(f"landing of {name or url}", {"table": name, **dataclasses.asdict(report)})
        return SOMETHING_WRONG if any(report.problems for report in reports.values()) else 0
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    session.out.note(f"feeding {table or 'tables'} from {url}, looking every {pause:g} s")
    while not stop.is_set():
        try:
            look()
        except DistopError as error:
            if not error.retryable:
                raise
            session.out.note(f"{error.code}: {error.message}; retrying")
        stop.wait(pause)
    return 0
