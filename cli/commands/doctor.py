"""The command that looks for what should not be: doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from distop.cli.commands.tables import PANEL
from distop.cli.options.bundles import command
from distop.cli.options.parsing import parse_duration
from distop.cli.options.session import Connected
from distop.cli.output.exits import SOMETHING_WRONG

app = typer.Typer()


@command(app, rich_help_panel=PANEL)
def doctor(
    session: Connected,
    table: Annotated[
        str, typer.Option(metavar="NAME", help="Only this table. Default: all, the members and etcd.")
    ] = "",
    fix: Annotated[
        bool, typer.Option("--fix", help="Put right what is safe to put right, and say what was done.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read manifests, and see whether data files exist.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings make the exit code 22, too.")] = False,
    patience: Annotated[
        str, typer.Option(metavar="TIME", help="How long a table may be without a leader or a runner.")
    ] = "10s",
) -> int:
    """Look for what should not be, and say what to do.

    Operations that nobody drives, keys and files without an owner, watermarks that do not match the rows,
    clocks, etcd without room. What may pass by itself is looked at again before it is reported.

    Exit code 22 when something is wrong (and was not put right); with --strict also when there are warnings:
    of what does not go on before somebody does something, or may be lost.
    """
    found = session.client.diagnose(
        table, deep=deep, fix=fix, patience_s=parse_duration(patience, "patience")
    )
    session.out.show(found)
    return SOMETHING_WRONG if found.wrong or (strict and found.warned) else 0
