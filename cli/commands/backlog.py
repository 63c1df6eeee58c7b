"""``distop batch``: publish, list and decide about batches; ``distop backlog``: how they are applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from distop.cli.options.bundles import Bundle, command
from distop.cli.options.ingest import IngestFields, with_source
from distop.cli.options.parsing import parse_lines
from distop.cli.options.session import (
    Connected,
    JsonArgument,
    Limit,
    Reason,
    Session,
    TableName,
    Wait,
    complete_batch,
    complete_branch,
    complete_type,
    page_size,
)
from distop.cli.output.exits import UsageFault
from distop.client.backfill import Backfill, batch_arguments, batch_range, checked_batches

batch_group = typer.Typer()
backlog_group = typer.Typer()

BatchName = Annotated[str, typer.Argument(metavar="BATCH", autocompletion=complete_batch)]
OnlyBatch = Annotated[
    str,
    typer.Argument(metavar="BATCH", help="Decide only about this batch.", autocompletion=complete_batch),
]


@dataclass
class BatchContent:
    """What applies a batch: an ingest, by its options, or an operation of any type."""

    fields: IngestFields
    given: JsonArgument
    type: Annotated[
        str,
        typer.Option(
            metavar="TYPE", help="The operation that applies the batch.", autocompletion=complete_type
        ),
    ] = "ingest"

    def __post_init__(self) -> None:
        if self.fields and self.type != "ingest":
            raise UsageFault(
                f"files and options of an ingest are not for {self.type}: give it --arg or --json"
            )
        if self.fields and self.given:
            raise UsageFault("--arg and --json go with no file and no option of an ingest")
        self.argument = with_source(self.fields) if self.fields else self.given

    def published(self) -> dict[str, Any]:
        """The argument of a new batch. An ingest of nothing would stop the table when its turn comes."""
        return self.argument if self.argument or self.type != "ingest" else with_source({})


Content = Annotated[BatchContent, Bundle(BatchContent)]


@command(batch_group)
def add(
    content: Content,
    session: Connected,
    table: TableName,
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="Ordered byte by byte: '10' before '2'.")],
    republish: Annotated[
        bool,
        typer.Option("--republish", help="Also if it was applied before, or is queued with other content."),
    ] = False,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="Apply it without waiting for other batches or the gate.")
    ] = False,
) -> None:
    """Publish a batch: it is applied once all batches that sort before it are. Idempotent.

    Example: distop batch add flights 2013-01-02 landing/2013-01-02 --on-bad-rows quarantine

    Example: distop batch add flights 2013-01-02 --type export --arg to=/out
    """
    handle = session.client.table(table)
    session.out.show(
        handle.enqueue(batch, content.type, content.published(), republish=republish, ordered=not unordered)
    )


@command(batch_group, "list")
def list_batches(
    session: Connected,
    table: TableName,
    applied: Annotated[
        bool,
        typer.Option("--applied", help="List applied and skipped batches, as far as they are remembered."),
    ] = False,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="List unordered batches, also failed ones.")
    ] = False,
    limit: Limit = 100,
) -> None:
    """List the batches that wait, in the order in which they will be applied.

    Example: distop batch list flights --applied --limit 20
    """
    size = page_size(limit)
    listed = session.client.table(table).backlog(applied=applied, ordered=not unordered, page_size=size)
    session.listed("applied" if applied else "backlog", listed, limit)


@command(batch_group)
def replace(
    content: Content,
    session: Connected,
    table: TableName,
    batch: BatchName,
) -> None:
    """Apply an applied batch anew, in place of the rows that it has added. What came later stays.

    Without files, and without --arg, it is applied as it was published.

    Example: distop batch replace flights 2013-01-02

    Example: distop batch replace flights 2013-01-02 landing/2013-01-02-v2
    """
    handle = session.client.table(table)
    session.out.show(handle.replace_batch(batch, content.argument, type=content.type))


@command(batch_group)
def remove(
    session: Connected,
    table: TableName,
    batch: BatchName,
    reason: Reason = "",
) -> None:
    """Remove a batch that is not applied yet, as if it had never been published.

    A landing feed publishes it again after a restart: remove its _SUCCESS file as well, or skip the batch.

    Example: distop batch remove flights 2013-01-02 --reason 'published too early'
    """
    session.out.show(session.client.table(table).remove_batch(batch, reason))


@command(batch_group)
def show(
    session: Connected,
    table: TableName,
    batch: BatchName,
) -> None:
    """Show a batch: its argument, and what became of it.

    Example: distop batch show flights 2013-01-02
    """
    session.out.show(session.client.table(table).batch(batch))


@command(backlog_group, "show")
def show_ordering(session: Connected, table: TableName) -> None:
    """Show how a table's batches are applied, and what it waits for.

    Example: distop backlog show flights
    """
    session.out.show(session.client.table(table).ordering())


@command(backlog_group, "set")
def set_ordering(
    session: Connected,
    table: TableName,
    gate: Annotated[
        Literal["open", "closed"] | None,
        typer.Option(help="closed: collect batches until the gate is opened."),
    ] = None,
    validation: Annotated[
        Literal["off", "after", "before"] | None,
        typer.Option(
            help="Ask for approval of each batch: after it is published, or before, while it is on a branch."
        ),
    ] = None,
    late: Annotated[
        Literal["block", "apply", "reject"] | None,
        typer.Option(
            help="What to do with a batch that sorts before an applied or skipped one. Default: block."
        ),
    ] = None,
    together: Annotated[
        int | None, typer.Option(min=1, max=20, help="Most batches that one operation applies.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=100, help="Attempts at a batch with transient failures.")
    ] = None,
    remember: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="How many finished batches are remembered by name."),
    ] = None,
) -> None:
    """Change how a table is fed; options that are not given stay as they are.

    Example: distop backlog set flights --validation before --late apply
    """
    session.out.show(
        session.client.table(table).set_ordering(
            gate=gate,
            validation=None if validation is None else validation != "off",
            before=None if validation is None else validation == "before",
            late=late,
            together=together,
            max_attempts=max_attempts,
            remember=remember,
        )
    )


@command(backlog_group, "open")
def open_gate(session: Connected, table: TableName, reason: Reason = "") -> None:
    """Open the gate: the collected batches are applied.

    Example: distop backlog open flights --reason 'all of the past is there'
    """
    session.out.show(session.client.table(table).open_gate(reason))


@command(batch_group)
def approve(
    session: Connected,
    table: TableName,
    batch: OnlyBatch = "",
    branch: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only if the batch is on this branch, the one looked at.",
            autocompletion=complete_branch,
        ),
    ] = None,
    reason: Reason = "",
) -> None:
    """Approve the last batch, so that the next one is applied; or publish the batch that is on a branch.

    Example: distop batch approve flights 2013-01-02 --reason 'rows were compared'
    """
    if branch == "":  # perhaps a variable that was not set: no batch is on such a branch
        raise UsageFault("--branch is empty: name the branch that was looked at, or leave it out")
    session.out.show(session.client.table(table).approve_batch(batch, reason, branch=branch or ""))


@command(batch_group)
def retry(session: Connected, table: TableName, batch: OnlyBatch = "", reason: Reason = "") -> None:
    """Retry the batch that blocks the table, or an unordered one that has failed; write a staged one anew.

    Example: distop batch retry flights 2013-01-02 --reason 'the file was put right'
    """
    session.out.show(session.client.table(table).retry_batch(batch, reason))


@command(batch_group)
def skip(session: Connected, table: TableName, batch: OnlyBatch = "", reason: Reason = "") -> None:
    """Skip the batch that blocks the table or is staged, for good; or a failed unordered batch.

    Example: distop batch skip flights 2013-01-02 --reason 'the day has no flights'
    """
    session.out.show(session.client.table(table).skip_batch(batch, reason))


@command(batch_group)
def backfill(
    content: Content,
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
    {{ batch }} in a path or a value is the name of the batch, {{ tick | date('%Y/%m') }} its time.

    Example: distop batch backfill flights 'in/{{ batch }}' --from 2024-01-01 --to 2024-01-31
    """
    if dry_run + status + cancel > 1 or bool(batches) == bool(first and last):
        raise UsageFault(
            "give --from and --to, or --batches; and at most one of --dry-run, --status, --cancel"
        )
    names = checked_batches(parse_lines(batches, "batches")) if batches else batch_range(first, last, every)
    if status:
        session.out.show(session.client.table(table).backfill_progress(names))
        return
    if cancel:
        left = session.client.table(table).cancel_backfill(names, reason)
        session.out.show(left)
        if left.running:
            session.out.note(f"{left.running:,} are being applied; distop operation cancel {left.operation}")
        return
    argument = content.published()
    if dry_run:
        arguments = batch_arguments(argument, names)
        shown = {name: arguments[name] for name in (names[0], names[-1])}
        session.out.facts(f"backfill of {table}", {"batches": names, "arguments": shown})
        return
    progress = session.client.table(table).backfill(
        names, content.type, argument, replace=replace, retry_failed=retry_failed, hold=hold
    )
    if wait:
        _follow(session, table, names).raise_for_outcome()
        return
    session.out.show(progress)


def _follow(session: Session, table: str, names: list[str]) -> Backfill:
    """Show the progress until the end, and what the batches wait for."""
    shown = set[str]()
    for progress in session.client.table(table).watch_backfill(names):
        finished = progress.batches - progress.waiting - progress.running
        lines = [f"{finished:,} of {progress.batches:,} batches"]
        if progress.done and (batch := progress.awaiting):
            lines.append(f"batch {batch} waits for approval; distop batch approve {table} {batch}")
        elif not progress.done and (why := session.client.table(table).why()).mood in ("waiting", "stuck"):
            lines.append(why.sentence)
        for line in lines:
            if line not in shown:
                session.out.note(line)
        shown |= set(lines)
    session.out.show(progress)
    return progress
