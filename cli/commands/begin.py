"""The commands that somebody begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from distop.cli import project
from distop.cli.commands.services import BEGIN, MASTER_HELP
from distop.cli.options.bundles import command
from distop.cli.options.session import WithOutput
from distop.cli.output.exits import SOMETHING_WRONG

app = typer.Typer()


@command(app, rich_help_panel=BEGIN)
def init(
    out: WithOutput,
    folder: Annotated[Path, typer.Argument(help="Made if it is missing.")] = Path("."),
) -> None:
    """Write a project that runs: data, a table with rules, a schedule, services, and a README that says how.

    Nothing is overwritten.

    Example: distop init shop
    """
    written = project.write(folder)
    out.facts(f"a project in {folder}", {"files": ", ".join(written)}, [f"Begin with {folder / 'README.md'}"])


@command(app, rich_help_panel=BEGIN)
def demo(
    out: WithOutput,
    master: Annotated[str, typer.Option(help=MASTER_HELP)] = "local[1]",
) -> int:
    """See it work, in a minute: a table is filled while processes are killed, and every row is counted.

    Starts etcd, two coordinators and two runners in a folder of its own, kills one of each with -9, and
    removes all of it in the end. Exit code 22 when a row is lost or twice.

    Example: distop demo --master none
    """
    from distop.cli.demo.play import play

    return 0 if play(out, Console(stderr=True, highlight=False), master) else SOMETHING_WRONG
