"""Commands for access control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distop.cli.commands.control import PANEL
from distop.cli.options.bundles import command
from distop.cli.options.common import Reason
from distop.cli.options.session import Connected
from distop.errors import InvalidArgument

if TYPE_CHECKING:
    from distop.client import Grant

app = typer.Typer()
group = typer.Typer(
    no_args_is_help=True,
    help="Access control: ls, add, rm, apply. Each role includes those before it: reader (look), "
    "operator (start, cancel, pause, enqueue, approve), writer (create, alter, write), admin (drop, resolve, "
    "drain, repair, grant).",
)
app.add_typer(group, name="grants", rich_help_panel=PANEL)

Who = Annotated[str, typer.Argument(metavar="WHO", help="A subject, or group:NAME; * matches any text.")]


@command(group)
def ls(session: Connected) -> None:
    """Show who you are to the service, and the grants: all of them to an admin, otherwise your own."""
    session.out.show(session.client.grants())


@command(group)
def add(
    session: Connected,
    who: Who,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="reader, operator, writer or admin.")],
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE...", help="Patterns: 'sales.*'; '*' is everything.")
    ],
    reason: Reason = "",
) -> None:
    """Grant a role on tables. The first grant of all must make an admin of '*'.

    Example: distop grants add group:analysts reader 'sales.*'
    """
    session.out.show(session.client.change_grants(add=[_grant(who, role, tables)], reason=reason))


@command(group)
def rm(
    session: Connected,
    who: Who,
    role: Annotated[str, typer.Argument(metavar="[ROLE]", help="Without: every role.")] = "",
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Patterns as granted. Default: all.")
    ] = None,
    reason: Reason = "",
) -> None:
    """Remove grants."""
    session.out.show(session.client.change_grants(remove=[_grant(who, role, tables or [])], reason=reason))


@command(group)
def apply(
    session: Connected,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON, as distop grants ls -o json gives it.")],
    reason: Reason = "",
) -> None:
    """Replace all grants with those of a file, in one transaction."""
    grants = [_grant(*fields) for fields in _read(file)]
    session.out.show(session.client.change_grants(add=grants, replace=True, reason=reason))


def _grant(who: str, role: str, tables: list[str]) -> Grant:
    from distop.client import Grant

    return Grant(who=who, role=role, tables=tuple(tables))


def _read(file: Path) -> list[tuple[str, str, list[str]]]:
    try:
        document: Any = json.loads(file.read_text())
        listed = document["grants"] if isinstance(document, dict) else document
        return [
            (str(one["who"]), str(one["role"]), [str(table) for table in one["tables"]]) for one in listed
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f"{file} is not a list of grants: {type(error).__name__}: {error}",
            hint='write [{"who": "alice", "role": "reader", "tables": ["sales.*"]}]',
            details={"field": "file"},
        ) from None
