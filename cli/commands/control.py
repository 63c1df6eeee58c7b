"""Commands of those who run the service: pause, resume, drain, audit."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from distop.cli.options.bundles import command
from distop.cli.options.common import Limit, Reason
from distop.cli.options.session import Connected
from distop.errors import InvalidArgument

PANEL = "Control"

app = typer.Typer()

Target = Annotated[
    str, typer.Argument(metavar="OPERATION|TABLE", help="Such as flights/ingest/17, or flights.")
]
IsTable = Annotated[bool, typer.Option("--table", help="It is a table, although it looks like an operation.")]


def _names_operation(target: str) -> bool:
    """``table/type/17`` or ``table/type/object/17``; anything else is a table."""
    parts = target.split("/")
    return len(parts) in (3, 4) and parts[-1].isdecimal()


@command(app, rich_help_panel=PANEL)
def pause(session: Connected, target: Target, reason: Reason = "", table: IsTable = False) -> None:
    """Hold an operation, or a table with all that runs on it.

    What is done stays done; no new jobs are launched, nothing is published, and a paused table starts
    nothing. Deadlines go on counting. Pausing twice is fine: the first reason stays.
    """
    if table or not _names_operation(target):
        session.out.show(session.client.pause_table(target, reason))
    else:
        session.out.show(session.client.pause(target, reason))


@command(app, rich_help_panel=PANEL)
def resume(session: Connected, target: Target, reason: Reason = "", table: IsTable = False) -> None:
    """Let an operation or a table go on that was paused. Resuming twice is fine."""
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
    """Make a coordinator give its tables up and get none. It still answers calls.

    It lasts as long as the process does. Draining twice is fine.
    """
    session.client.drain(member, reason, undo=undo)
    session.out.members(session.client.members(), session.client.leaders())


@command(app, rich_help_panel=PANEL)
def audit(
    session: Connected,
    table: Annotated[
        str,
        typer.Argument(metavar="[TABLE]", help="Without: tables made and dropped, coordinators drained."),
    ] = "",
    limit: Limit = 100,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on as it grows, oldest first: of TABLE, or of everything."),
    ] = False,
    after: Annotated[
        str,
        typer.Option(metavar="CURSOR", help="With --follow: from behind this entry on; 0: all that is kept."),
    ] = "",
) -> None:
    """Show who did what and when, the newest first.

    With --follow and --output json: one document a line for every entry, each with its cursor.
    """
    if not follow:
        if after:
            raise InvalidArgument("--after is for --follow", details={"field": "after"})
        session.listed("audit", session.client.audit(table), limit)
        return
    with suppress(KeyboardInterrupt):
        for entry in session.client.follow_audit(table, after=after):
            session.out.show(entry)
