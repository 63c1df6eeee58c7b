"""Commands for operators: pause, resume, drain, audit; and access control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distop.cli.options.bundles import command
from distop.cli.options.session import Connected, Limit, Reason, page_size
from distop.errors import InvalidArgument

if TYPE_CHECKING:
    from distop.client import Grant


PANEL = "Control"

app = typer.Typer()

Target = Annotated[
    str, typer.Argument(metavar="OPERATION|TABLE", help="Such as flights/ingest/17, or flights.")
]
IsTable = Annotated[
    bool, typer.Option("--table", help="The name is a table's, although it looks like an operation's.")
]


def _names_operation(target: str) -> bool:
    """``table/type/17`` or ``table/type/object/17``; anything else is a table."""
    parts = target.split("/")
    return len(parts) in (3, 4) and parts[-1].isdecimal()


@command(app, rich_help_panel=PANEL)
def pause(session: Connected, target: Target, reason: Reason = "", table: IsTable = False) -> None:
    """Pause an operation, or a table with all its operations.

    Finished work stays; no new jobs are launched, nothing is published, and a paused table starts nothing.
    Deadlines keep counting. Idempotent: the first reason stays.
    """
    if table or not _names_operation(target):
        session.out.show(session.client.table(target).pause(reason))
    else:
        session.out.show(session.client.operation(target).pause(reason))


@command(app, rich_help_panel=PANEL)
def resume(session: Connected, target: Target, reason: Reason = "", table: IsTable = False) -> None:
    """Resume a paused operation or table. Idempotent."""
    if table or not _names_operation(target):
        session.out.show(session.client.table(target).resume(reason))
    else:
        session.out.show(session.client.operation(target).resume(reason))


@command(app, rich_help_panel=PANEL)
def drain(
    session: Connected,
    member: Annotated[
        str, typer.Argument(metavar="COORDINATOR", help="Its id or address: see distop members.")
    ],
    reason: Reason = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let it lead again.")] = False,
) -> None:
    """Make a coordinator hand over its tables and take none. It still answers calls.

    It lasts until the process ends. Idempotent.
    """
    session.client.drain(member, reason, undo=undo)
    session.out.members(session.client.members(), session.client.leaders())


@command(app, rich_help_panel=PANEL)
def audit(
    session: Connected,
    table: Annotated[
        str,
        typer.Argument(
            metavar="[TABLE]", help="Default: entries of the installation, such as drained coordinators."
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
    """
    session.listed("audit", session.client.audit(table, after=after, page_size=page_size(limit)), limit)


grants = typer.Typer(
    no_args_is_help=True,
    help="Access control: ls, add, rm, apply. Each role includes those before it: reader (look), "
    "operator (start, cancel, pause, enqueue, approve), writer (create, alter, write), admin (drop, resolve, "
    "drain, repair, grant).",
)
app.add_typer(grants, name="grants", rich_help_panel=PANEL)

Who = Annotated[str, typer.Argument(metavar="WHO", help="A subject, or group:NAME; * matches any text.")]


@command(grants)
def ls(session: Connected) -> None:
    """Show who you are to the service, and the grants: all of them to an admin, otherwise your own."""
    session.out.show(session.client.grants())


@command(grants)
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


@command(grants)
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


@command(grants)
def apply(
    session: Connected,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON, as distop grants ls -o json gives it.")],
    reason: Reason = "",
) -> None:
    """Replace all grants with those of a file, in one transaction."""
    wanted = [_grant(*fields) for fields in _read(file)]
    session.out.show(session.client.change_grants(add=wanted, replace=True, reason=reason))


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
