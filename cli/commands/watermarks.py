"""Commands on watermarks: show and change them."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from distop.cli.commands.tables import PANEL
from distop.cli.options.bundles import command
from distop.cli.options.common import Reason, TableName
from distop.cli.options.session import Connected


class _ShowsByDefault(TyperGroup):
    """``distop watermarks flights`` is ``distop watermarks show flights``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer()
group = typer.Typer(
    cls=_ShowsByDefault,
    no_args_is_help=True,
    help="How far each source of a table has been ingested: distop watermarks TABLE. Or change watermarks.",
)
app.add_typer(group, name="watermarks", rich_help_panel=PANEL)

SourceName = Annotated[str, typer.Argument(metavar="SOURCE", help="As distop watermarks TABLE shows it.")]


@command(group)
def show(
    session: Connected,
    table: TableName,
    source: Annotated[str, typer.Option(metavar="NAME", help="Only this source.")] = "",
) -> None:
    """Show how far each source of a table has been ingested."""
    session.out.watermarks(session.client.watermarks(table, source))


@command(group)
def set(
    session: Connected,
    table: TableName,
    source: SourceName,
    partition: Annotated[str, typer.Argument(metavar="PARTITION")],
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    reason: Reason = "",
) -> None:
    """Set a watermark. Refused while an operation runs that moves watermarks."""
    session.out.watermarks(session.client.set_watermark(table, source, partition, value, reason))


@command(group)
def forget(
    session: Connected,
    table: TableName,
    source: SourceName,
    partition: Annotated[str, typer.Argument(metavar="[PARTITION]", help="Default: all of them.")] = "",
    reason: Reason = "",
) -> None:
    """Delete watermarks, so that their files can be ingested again. Shows what is left of the source."""
    session.out.watermarks(session.client.forget_watermarks(table, source, partition, reason))


@command(group)
def compact(session: Connected, table: TableName, source: SourceName, reason: Reason = "") -> None:
    """Replace the watermarks of a folder's files by one for the folder.

    It is the newest of them. --new-only then ignores an older file that arrives later.
    """
    session.out.watermarks(session.client.compact_watermarks(table, source, reason))


@command(group)
def rewind(
    session: Connected,
    table: TableName,
    source: Annotated[str, typer.Option(metavar="NAME", help="Only this source.")] = "",
    reason: Reason = "",
) -> None:
    """Undo the watermark changes of snapshots that are no longer part of the table.

    After a rollback with --watermarks keep, this allows ingesting what was rolled back.
    """
    session.out.watermarks(session.client.rewind_watermarks(table, source, reason))
