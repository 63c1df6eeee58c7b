"""The command that publishes, follows and takes out the batches of a range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from distop.cli.commands.backlog import PANEL
from distop.cli.options.bundles import command
from distop.cli.options.common import JsonArgument, Reason, TableName, Wait
from distop.cli.options.parsing import parse_lines
from distop.cli.options.session import Connected, Session
from distop.cli.output.exits import UsageFault

if TYPE_CHECKING:
    from distop.client import Backfill

app = typer.Typer()


@command(app, rich_help_panel=PANEL)
def backfill(
    argument: JsonArgument,
    session: Connected,
    table: TableName,
    first: Annotated[
        str, typer.Option("--from", metavar="BATCH", help="The first: 2024-01, 2024-01-31 or 2024-01-31T05.")
    ] = "",
    last: Annotated[str, typer.Option("--to", metavar="BATCH", help="The last, included.")] = "",
    every: Annotated[
        str,
        typer.Option(
            metavar="month|day|hour|N", help="The step. Default: as --from is written. N: of numbers."
        ),
    ] = "",
    batches: Annotated[
        str, typer.Option(metavar="FILE|-", help="Instead of a range: names, one a line.")
    ] = "",
    type: Annotated[
        str, typer.Option(metavar="TYPE", help="The operation that applies each batch.")
    ] = "ingest",
    replace: Annotated[
        bool, typer.Option("--replace", help="Apply those anew that were applied, in place of their rows.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Retry the one that blocks the table.")
    ] = False,
    hold: Annotated[
        bool,
        typer.Option("--hold", help="Close the gate, and open it once all are queued: nothing passes them."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the batches, with the first and last argument.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show how far they are, and change nothing.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take out those that wait.")] = False,
    reason: Reason = "",
    wait: Wait = False,
) -> None:
    """Publish a batch for each day, hour, month or number of a range, in order.

    Run it again at any time: what is queued or applied already stays, so it goes on after an interruption.
    {{ batch }} in the argument is the name of the batch, {{ tick | date('%Y/%m') }} the time that it shows.

    Example: distop backfill flights --from 2024-01-01 --to 2024-01-31 --arg 'paths=/data/{{ batch }}' --wait
    """
    from distop.client import batch_range
    from distop.client.backfill import batch_arguments, checked_batches

    if dry_run + status + cancel > 1 or bool(batches) == bool(first and last):
        raise UsageFault(
            "give --from and --to, or --batches; and at most one of --dry-run, --status, --cancel"
        )
    names = checked_batches(parse_lines(batches, "batches")) if batches else batch_range(first, last, every)
    if dry_run:
        arguments = batch_arguments(argument, names)
        shown = {name: arguments[name] for name in (names[0], names[-1])}
        session.out.facts(f"backfill of {table}", {"batches": names, "arguments": shown})
        return
    if status:
        session.out.show(session.client.backfill_progress(table, names))
        return
    if cancel:
        left = session.client.cancel_backfill(table, names, reason)
        session.out.show(left)
        if left.running:
            session.out.note(f"{left.running:,} are being applied; distop cancel {left.operation}")
        return
    progress = session.client.backfill(
        table, names, type, argument, replace=replace, retry_failed=retry_failed, hold=hold
    )
    if wait:
        _follow(session, table, names).raise_for_outcome()
        return
    session.out.show(progress)


def _follow(session: Session, table: str, names: list[str]) -> Backfill:
    """Show the progress until the end, and what the batches wait for."""
    said = set[str]()
    for progress in session.client.watch_backfill(table, names):
        finished = progress.batches - progress.waiting - progress.running
        lines = [f"{finished:,} of {progress.batches:,} batches"]
        if not progress.done and (why := session.client.explain(table)).mood in ("waiting", "stuck"):
            lines.append(why.sentence)
        for line in lines:
            if line not in said:
                session.out.note(line)
        said |= set(lines)
    session.out.show(progress)
    return progress
