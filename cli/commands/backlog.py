"""Commands on the backlog of a table: publish, look, and decide."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from distop.cli.options.bundles import command
from distop.cli.options.common import JsonArgument, Limit, Reason, TableName
from distop.cli.options.session import Connected

PANEL = "Ordered batches"

app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Batches of a table, applied strictly in order.")
app.add_typer(group, name="backlog", rich_help_panel=PANEL)

Meant = Annotated[
    str, typer.Argument(metavar="[BATCH]", help="The one that is meant; no other is decided about then.")
]


@command(group)
def add(
    argument: JsonArgument,
    session: Connected,
    table: TableName,
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="Ordered byte by byte: '10' before '2'.")],
    type: Annotated[str, typer.Option(metavar="TYPE", help="The operation that applies it.")] = "ingest",
    republish: Annotated[
        bool, typer.Option("--republish", help="Also if it was applied before, or is queued otherwise.")
    ] = False,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="It waits for no other batch, and no gate.")
    ] = False,
) -> None:
    """Publish a batch: it is applied once all that sort before it are. Twice is once.

    Example: distop backlog add flights 2013-01-02 --arg paths='["/landing/2013-01-02"]'
    """
    session.out.show(
        session.client.enqueue(table, batch, type, argument, republish=republish, ordered=not unordered)
    )


@command(group)
def ls(
    session: Connected,
    table: TableName,
    applied: Annotated[
        bool, typer.Option("--applied", help="Those that were applied or skipped, as far as it is known.")
    ] = False,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="Those without an order, failed ones too.")
    ] = False,
    limit: Limit = 100,
) -> None:
    """List the batches that wait, in the order in which they will be applied."""
    listed = session.client.backlog(table, applied=applied, ordered=not unordered)
    session.listed("backlog", listed, limit)


@command(group)
def rm(
    session: Connected,
    table: TableName,
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="One that is not applied yet.")],
    reason: Reason = "",
) -> None:
    """Take a batch back, as if it had never been published.

    What lies in a landing folder is published again by a feed that starts anew: remove its _SUCCESS, too, or
    skip the batch.
    """
    session.out.show(session.client.take_back(table, batch, reason))


@command(group)
def show(session: Connected, table: TableName) -> None:
    """Show how a table is fed, and what it waits for."""
    session.out.show(session.client.ordering(table))


@command(group)
def set(
    session: Connected,
    table: TableName,
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
    session.out.show(
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
def open(session: Connected, table: TableName, reason: Reason = "") -> None:
    """Open the gate: what was collected is applied."""
    session.out.show(session.client.open_gate(table, reason))


@command(group)
def approve(session: Connected, table: TableName, batch: Meant = "", reason: Reason = "") -> None:
    """Let the next batch come, after a look at the last one."""
    session.out.show(session.client.approve(table, batch, reason))


@command(group)
def retry(session: Connected, table: TableName, batch: Meant = "", reason: Reason = "") -> None:
    """Try the batch again that blocks the table; or the named one without an order that has failed."""
    session.out.show(session.client.retry_batch(table, batch, reason))


@command(group)
def skip(session: Connected, table: TableName, batch: Meant = "", reason: Reason = "") -> None:
    """Leave the batch out that blocks the table, for good; or a failed one without an order."""
    session.out.show(session.client.skip_batch(table, batch, reason))
