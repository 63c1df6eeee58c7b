"""Options and arguments that commands of several groups have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from distop.cli.options.bundles import Bundle
from distop.cli.options.parsing import parse_assignments, parse_object
from distop.cli.options.session import complete_table

TableName = Annotated[str, typer.Argument(metavar="TABLE", autocompletion=complete_table)]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, help="Show at most this many; 0: all.")]
Reason = Annotated[str, typer.Option(help="The reason, shown to users and in the audit trail.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the end and show progress.")]


def json_argument(
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg", metavar="KEY=VALUE", help="Part of the argument; JSON, or else text. Repeatable."
        ),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-|JSON", help="The argument as a JSON object.")
    ] = None,
) -> dict[str, Any]:
    """The argument of an operation."""
    return (parse_object(json, "json") if json is not None else {}) | parse_assignments(arg or ())


JsonArgument = Annotated[dict[str, Any], Bundle(json_argument)]
