"""Commands for operators: pause, resume, drain, audit."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from distop.cli.options.bundles import command
from distop.cli.options.common import Limit, Reason
from distop.cli.options.session import Connected, page_size

PANEL = "Control"

app = typer.Typer()

Target = Annotated[
    str, typer.Argument(metavar="OPERATION|TABLE", help="Such as flights/ingest/17, or flights.")
]
IsTable = Annotated[
    bool, typer.Option("--table", help="The name is a table's, although it looks like an operation's.")
]


def _names_operation(target: str) -> bool:
    """``table/type/17`` or ``table/type/object/17``; anything else is a table."""
    parts = target.split("/")
    return len(parts) in (3, 4) and parts[-1].isdecimal()


@command(app, rich_help_panel=PANEL)
def pause(session: Connected, target: Target, reason: Reason = "", table: IsTable = False) -> None:
    """Pause an operation, or a table with all its operations.

    Finished work stays; no new jobs are launched, nothing is published, and a paused table starts nothing.
    Deadlines keep counting. Idempotent: the first reason stays.
    """
    if table or not _names_operation(target):
        session.out.show(session.client.pause_table(target, reason))
    else:
        session.out.show(session.client.pause(target, reason))


@command(app, rich_help_panel=PANEL)
def resume(session: Connected, target: Target, reason: Reason = "", table: IsTable = False) -> None:
    """Resume a paused operation or table. Idempotent."""
    if table or not _names_operation(target):
        session.out.show(session.client.resume_table(target, reason))
    else:
        session.out.show(session.client.resume(target, reason))


@command(app, rich_help_panel=PANEL)
def drain(
    session: Connected,
    member: Annotated[
        str, typer.Argument(metavar="COORDINATOR", help="Its id or address: see distop members.")
    ],
    reason: Reason = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let it lead again.")] = False,
) -> None:
    """Make a coordinator hand over its tables and take none. It still answers calls.

    It lasts until the process ends. Idempotent.
    """
    session.client.drain(member, reason, undo=undo)
    session.out.members(session.client.members(), session.client.leaders())


@command(app, rich_help_panel=PANEL)
def audit(
    session: Connected,
    table: Annotated[
        str,
        typer.Argument(
            metavar="[TABLE]", help="Default: entries of the installation, such as drained coordinators."
        ),
    ] = "",
    limit: Limit = 100,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on with new entries, in the order they are written in."),
    ] = False,
    after: Annotated[
        str,
        typer.Option(metavar="CURSOR", help="Only what was written after this entry; 0: all kept entries."),
    ] = "",
) -> None:
    """Show who did what and when, the newest first.

    With --follow and --output json: one document per line for every entry, each with its cursor.
    """
    if not follow:
        entries = session.client.audit(table, after=after, page_size=page_size(limit))
        session.listed("audit", entries, limit)
        return
    with suppress(KeyboardInterrupt):
        for entry in session.client.follow_audit(table, after=after):
            session.out.show(entry)
