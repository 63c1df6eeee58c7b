"""Commands that start an operation which looks after a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from distop.cli.commands.operations import Starting, start_operation
from distop.cli.options.bundles import command
from distop.cli.options.common import TableName
from distop.cli.options.session import Connected

app = typer.Typer()

PANEL = "Looking after tables"

OlderThan = Annotated[
    str, typer.Option(metavar="AGE|TIME", help="Such as 12h, 30d or 2024-05-01T08:00:00Z (default: 3d).")
]


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
    start_operation(session, options, table, "rollback", _said(given))


@command(app, rich_help_panel=PANEL)
def compact(
    options: Starting,
    session: Connected,
    table: TableName,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this one, such as day_month=2013-01. Repeatable."),
    ] = None,
    filter: Annotated[
        str, typer.Option(metavar="EXPRESSION", help="Only files that may hold such rows.")
    ] = "",
    sort_by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="With 'desc' behind it, if so. Repeatable."),
    ] = None,
    min_files: Annotated[
        int | None, typer.Option(min=1, help="Leave a partition alone with fewer small files (default: 5).")
    ] = None,
    target_file_size: Annotated[str, typer.Option(metavar="SIZE", help="Such as 128m.")] = "",
    smaller_than: Annotated[str, typer.Option(metavar="SIZE", help="Larger files are left alone.")] = "",
) -> None:
    """Rewrite the small files of a table into large ones. No row changes.

    Example: distop compact flights --target-file-size 256m --wait
    """
    given = {
        "filter": filter,
        "sort_by": sort_by,
        "min_files": min_files,
        "target_file_size": target_file_size,
        "smaller_than": smaller_than,
    }
    start_operation(session, options, table, "compact", _said(given), partitions=partition or ())


@command(app, rich_help_panel=PANEL)
def expire_snapshots(
    options: Starting,
    session: Connected,
    table: TableName,
    older_than: OlderThan = "",
    keep_last: Annotated[
        int | None, typer.Option(min=1, help="So many of each branch stay, however old (default: 1).")
    ] = None,
) -> None:
    """Make a table forget old snapshots, and remove the files that only they refer to.

    Example: distop expire-snapshots flights --older-than 30d --keep-last 10 --wait
    """
    given = {"older_than": older_than, "keep_last": keep_last}
    start_operation(session, options, table, "expire_snapshots", _said(given))


@command(app, rich_help_panel=PANEL)
def remove_orphans(
    options: Starting,
    session: Connected,
    table: TableName,
    older_than: OlderThan = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only say what would be removed.")
    ] = True,
) -> None:
    """Find files below a table's location that nothing refers to; with --no-dry-run, remove them.

    Example: distop remove-orphans flights --no-dry-run --wait
    """
    argument = _said({"older_than": older_than}) | {"dry_run": dry_run}
    start_operation(session, options, table, "remove_orphans", argument)


def _said(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was said; the operation has its defaults for the rest."""
    return {name: value for name, value in given.items() if value}
