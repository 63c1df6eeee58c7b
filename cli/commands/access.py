"""``distop grant``: who may do what; ``distop audit list``: who has done what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from distop.cli.options.bundles import command
from distop.cli.options.session import Connected, Limit, Reason, complete_table, page_size
from distop.client import Grant
from distop.errors import InvalidArgument

audit_group = typer.Typer()
grant_group = typer.Typer()

Who = Annotated[str, typer.Argument(metavar="WHO", help="A subject, or group:NAME; * matches any text.")]


@command(audit_group, "list")
def list_audit(
    session: Connected,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="Default: entries of the installation, such as drained coordinators.",
            autocompletion=complete_table,
        ),
    ] = "",
    limit: Limit = 100,
    after: Annotated[
        str,
        typer.Option(metavar="CURSOR", help="Only what was written after this entry; 0: all kept entries."),
    ] = "",
) -> None:
    """Show who did what and when, the newest first.

    With --output json: each entry with its cursor.

    Example: distop audit list flights --limit 20
    """
    session.listed("audit", session.client.audit(table, after=after, page_size=page_size(limit)), limit)


@command(grant_group, "list")
def list_grants(session: Connected) -> None:
    """Show who you are to the service, and the grants: all of them to an admin, otherwise your own.

    Example: distop grant list
    """
    session.out.show(session.client.grants())


@command(grant_group)
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

    Example: distop grant add group:analysts reader 'sales.*'
    """
    session.out.show(session.client.change_grants(add=[_grant(who, role, tables)], reason=reason))


@command(grant_group)
def remove(
    session: Connected,
    who: Who,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="Without: every role.")] = "",
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help="Patterns as granted. Default: all.")
    ] = None,
    reason: Reason = "",
) -> None:
    """Remove grants of a subject: of a role on tables, of a role, or all of them.

    Example: distop grant remove group:analysts reader 'sales.*'
    """
    session.out.show(session.client.change_grants(remove=[_grant(who, role, tables or [])], reason=reason))


@command(grant_group)
def apply(
    session: Connected,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON, as from distop grant list -o json.")],
    reason: Reason = "",
) -> None:
    """Replace all grants with those of a file, in one transaction.

    Example: distop grant apply grants.json --reason 'the policy of March'
    """
    wanted = [_grant(*fields) for fields in _read(file)]
    session.out.show(session.client.change_grants(add=wanted, replace=True, reason=reason))


def _grant(who: str, role: str, tables: list[str]) -> Grant:
    return Grant(who=who, role=role, tables=tuple(tables))


def _read(file: Path) -> list[tuple[str, str, list[str]]]:
    try:
        document: Any = json.loads(file.read_text())
        listed = document["grants"] if isinstance(document, dict) else document
        return [
            (str(grant["who"]), str(grant["role"]), [str(table) for table in grant["tables"]])
            for grant in listed
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f"{file} is not a list of grants: {type(error).__name__}: {error}",
            hint='write [{"who": "alice", "role": "reader", "tables": ["sales.*"]}]',
            details={"field": "file"},
        ) from None
