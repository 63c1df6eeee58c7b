"""Commands on the backlog of a table: publish, look, and decide."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Literal

import typer

from distop.cli.options.bundles import command
from distop.cli.options.parsing import parse_assignments, parse_object
from distop.cli.options.session import Connected

PANEL = "Ordered batches"

app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Batches of a table, applied strictly in order.")
app.add_typer(group, name="backlog", rich_help_panel=PANEL)

Table = Annotated[str, typer.Argument(metavar="TABLE")]
Meant = Annotated[
    str, typer.Argument(metavar="[BATCH]", help="The one that is meant; no other is decided about then.")
]
Reason = Annotated[str, typer.Option(help="Shown in the audit trail.")]


@command(group)
def add(
    session: Connected,
    table: Table,
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="Ordered byte by byte: '10' before '2'.")],
    type: Annotated[str, typer.Option(metavar="TYPE", help="The operation that applies it.")] = "ingest",
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg", metavar="KEY=VALUE", help="Part of the argument; JSON, or else text. Repeatable."
        ),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-|JSON", help="The argument as a JSON object.")
    ] = None,
    republish: Annotated[
        bool, typer.Option("--republish", help="Also if it was applied before, or is queued otherwise.")
    ] = False,
) -> None:
    """Publish a batch: it is applied once all that sort before it are. Twice is once.

    Example: distop backlog add flights 2013-01-02 --arg paths='["/landing/2013-01-02"]'
    """
    argument = (parse_object(json, "json") if json is not None else {}) | parse_assignments(arg or ())
    session.out.enqueued(session.client.enqueue(table, batch, type, argument, republish=republish))


@command(group)
def ls(
    session: Connected,
    table: Table,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most so many; 0: all.")] = 100,
) -> None:
    """List the batches that wait, in the order in which they will be applied."""
    found = list(islice(session.client.backlog(table), limit + 1 if limit else None))
    session.out.backlog(found[:limit] if limit else found, bool(limit) and len(found) > limit)


@command(group)
def show(session: Connected, table: Table) -> None:
    """Show how a table is fed, and what it waits for."""
    session.out.ordering(session.client.ordering(table))


@command(group)
def set(
    session: Connected,
    table: Table,
    gate: Annotated[
        Literal["open", "closed"] | None, typer.Option(help="closed: collect batches until it is opened.")
    ] = None,
    validation: Annotated[
        bool | None, typer.Option("--validation/--no-validation", help="Ask for approval after each batch.")
    ] = None,
    late: Annotated[
        Literal["block", "apply", "reject"] | None,
        typer.Option(help="About a batch that sorts before an applied one. Default: block."),
    ] = None,
    together: Annotated[
        int | None, typer.Option(min=1, max=20, help="Most batches that one operation applies.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=100, help="Attempts at a batch whose failures may pass.")
    ] = None,
    remember: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="So many batches that are done with stay known by name."),
    ] = None,
) -> None:
    """Change how a table is fed; what is not given stays as it is."""
    session.out.ordering(
        session.client.set_ordering(
            table,
            gate=gate,
            validation=validation,
            late=late,
            together=together,
            max_attempts=max_attempts,
            remember=remember,
        )
    )


@command(group)
def open(session: Connected, table: Table, reason: Reason = "") -> None:
    """Open the gate: what was collected is applied."""
    session.out.ordering(session.client.open_gate(table, reason))


@command(group)
def approve(session: Connected, table: Table, batch: Meant = "", reason: Reason = "") -> None:
    """Let the next batch come, after a look at the last one."""
    session.out.ordering(session.client.approve(table, batch, reason))


@command(group)
def retry(session: Connected, table: Table, batch: Meant = "", reason: Reason = "") -> None:
    """Try the batch again that blocks the table."""
    session.out.ordering(session.client.retry_batch(table, batch, reason))


@command(group)
def skip(session: Connected, table: Table, batch: Meant = "", reason: Reason = "") -> None:
    """Leave the batch out that blocks the table, for good."""
    session.out.ordering(session.client.skip_batch(table, batch, reason))
