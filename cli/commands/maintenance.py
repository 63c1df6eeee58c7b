"""Commands that start an operation which looks after a table."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from distop.cli.commands.operations import Starting, start_operation
from distop.cli.options.bundles import command
from distop.cli.options.common import TableName
from distop.cli.options.session import Connected

app = typer.Typer()

PANEL = "Looking after tables"


@command(app, rich_help_panel=PANEL)
def rollback(
    options: Starting,
    session: Connected,
    table: TableName,
    snapshot: Annotated[
        str, typer.Argument(metavar="[SNAPSHOT]", help="Its id: see distop tables snapshots TABLE.")
    ] = "",
    as_of: Annotated[
        str, typer.Option(metavar="TIME", help="Instead: the one of that time, such as 2024-05-01T08:00:00Z.")
    ] = "",
    watermarks: Annotated[
        Literal["restore", "keep"],
        typer.Option(help="keep: what is undone cannot be ingested again; distop watermarks rewind, later."),
    ] = "restore",
) -> None:
    """Make an earlier snapshot of a table the present one, and its watermarks with it.

    Example: distop rollback flights 4216351713844670481 --wait
    """
    given = {"snapshot": snapshot, "as_of": as_of, "watermarks": watermarks}
    argument = {name: value for name, value in given.items() if value}
    start_operation(session, options, table, "rollback", argument)
