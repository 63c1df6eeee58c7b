"""``distop snapshot``: the states of a table; ``distop watermark``: how far its sources are ingested."""

from __future__ import annotations

from typing import Annotated

import typer

from distop.cli.options.bundles import command
from distop.cli.options.session import Connected, Limit, Reason, TableName, complete_source, page_size

watermark_group = typer.Typer()
snapshot_group = typer.Typer()

SourceName = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="As distop watermark list TABLE shows it.", autocompletion=complete_source
    ),
]
OnlySource = Annotated[
    str, typer.Option(metavar="NAME", help="Only this source.", autocompletion=complete_source)
]


@command(watermark_group, "list")
def list_watermarks(
    session: Connected,
    table: TableName,
    source: OnlySource = "",
) -> None:
    """Show how far each source of a table has been ingested.

    Example: distop watermark list flights
    """
    session.out.watermarks(session.client.table(table).watermarks(source))


@command(watermark_group, "set")
def set_watermark(
    session: Connected,
    table: TableName,
    source: SourceName,
    partition: Annotated[str, typer.Argument(metavar="PARTITION")],
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    reason: Reason = "",
) -> None:
    """Set a watermark. Refused while an operation runs that moves watermarks.

    Example: distop watermark set flights kafka:clicks 3 1200 --reason 'the topic was made anew'
    """
    session.out.watermarks(session.client.table(table).set_watermark(source, partition, value, reason))


@command(watermark_group)
def forget(
    session: Connected,
    table: TableName,
    source: SourceName,
    partition: Annotated[str, typer.Argument(metavar="PARTITION", help="Default: all of them.")] = "",
    reason: Reason = "",
) -> None:
    """Delete watermarks, so that their files can be ingested again. Shows what is left of the source.

    Example: distop watermark forget flights kafka:clicks 3
    """
    session.out.watermarks(session.client.table(table).forget_watermarks(source, partition, reason))


@command(watermark_group)
def compact(session: Connected, table: TableName, source: SourceName, reason: Reason = "") -> None:
    """Replace the watermarks of a folder's files by one for the folder.

    It is the newest of them. --new-only then ignores an older file that arrives later.

    Example: distop watermark compact flights file:///landing
    """
    session.out.watermarks(session.client.table(table).compact_watermarks(source, reason))


@command(watermark_group)
def rewind(
    session: Connected,
    table: TableName,
    source: OnlySource = "",
    reason: Reason = "",
) -> None:
    """Undo the watermark changes of snapshots that are no longer part of the table.

    After a rollback with --watermarks keep, this allows ingesting what was rolled back.

    Example: distop watermark rewind flights
    """
    session.out.watermarks(session.client.table(table).rewind_watermarks(source, reason))


@command(snapshot_group, "list")
def list_snapshots(session: Connected, table: TableName, limit: Limit = 20) -> None:
    """List the snapshots that a table still has, the newest first.

    Each can be read. Those of the table's history can be rolled back to: distop table rollback TABLE SNAPSHOT

    Example: distop snapshot list flights
    """
    session.listed("snapshots", session.client.table(table).snapshots(page_size=page_size(limit)), limit)
