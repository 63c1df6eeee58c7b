"""The verbs of ``distop table`` that start an operation; each has the name of the operation's type."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from distop.cli.commands.operations import Starting, follow_started
from distop.cli.commands.tables import group
from distop.cli.options.bundles import command
from distop.cli.options.ingest import IngestFields, Rules, with_source
from distop.cli.options.session import (
    Connected,
    TableName,
    complete_branch,
    complete_column,
    complete_snapshot,
)

PANEL = "Start an operation on it"

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show columns, some rows and warnings; start nothing.")
]

Branch = Annotated[
    str,
    typer.Argument(metavar="BRANCH", help="See distop snapshot list TABLE.", autocompletion=complete_branch),
]

OnConflict = Annotated[
    Literal["refuse", "rebase"] | None,
    typer.Option(help="If others wrote to the table since the branch began: rebase appends its rows."),
]

OlderThan = Annotated[
    str, typer.Option(metavar="AGE|TIME", help="Such as 12h, 30d or 2024-05-01T08:00:00Z (default: 3d).")
]


@command(group, rich_help_panel=PANEL)
def ingest(
    fields: IngestFields,
    options: Starting,
    session: Connected,
    table: TableName,
    object: Annotated[
        str, typer.Option(metavar="NAME", help="Run concurrently with other appends, one for each name.")
    ] = "",
    queue: Annotated[
        bool, typer.Option("--queue", help="Wait while an incompatible operation of the table runs.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Ingest files, or a topic, into a table. Relative paths are made absolute.

    Example: distop table ingest flights data/2013-01 data/2013-02 --wait

    Example: distop table ingest fares fares.csv --delimiter=';' --decimal-point , --dry-run

    Example: distop table ingest people changes.jsonl --mode merge --key id --order-by updated_at

    Example: distop table ingest orders --kafka-topic orders --kafka-servers broker1:9092 --wait
    """
    argument = with_source(fields)
    if dry_run:
        max_failed = options.given()["max_failed_partitions"]
        session.out.preview(
            session.client.preview(table, "ingest", argument, object=object, max_failed_partitions=max_failed)
        )
        return
    how = options.given() | {"object": object, "queue": queue}
    follow_started(session, options, lambda: session.client.start(table, "ingest", argument, **how))


@command(group, rich_help_panel=PANEL)
def rollback(
    options: Starting,
    session: Connected,
    table: TableName,
    snapshot: Annotated[
        str,
        typer.Argument(
            metavar="SNAPSHOT",
            help="Its id: see distop snapshot list TABLE.",
            autocompletion=complete_snapshot,
        ),
    ] = "",
    as_of: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Instead: the snapshot of that time, such as 2024-05-01T08:00:00Z."
        ),
    ] = "",
    watermarks: Annotated[
        Literal["restore", "keep"],
        typer.Option(help="keep: rolled-back data stays marked as ingested; see distop watermark rewind."),
    ] = "restore",
) -> None:
    """Make an earlier snapshot of a table current, and restore its watermarks.

    Example: distop table rollback flights 4216351713844670481 --wait
    """
    handle, time = session.client.table(table), as_of or None
    follow_started(
        session,
        options,
        lambda: handle.rollback(snapshot or None, as_of=time, watermarks=watermarks, **options.given()),
    )


@command(group, rich_help_panel=PANEL)
def compact(
    options: Starting,
    session: Connected,
    table: TableName,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this one, such as day_month=2013-01. Repeatable."),
    ] = None,
    filter: Annotated[
        str, typer.Option(metavar="EXPRESSION", help="Only files that may hold such rows.")
    ] = "",
    sort_by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Sort by it; append ' desc' for descending. Repeatable."),
    ] = None,
    min_files: Annotated[
        int | None, typer.Option(min=1, help="Skip a partition with fewer small files (default: 5).")
    ] = None,
    target_file_size: Annotated[str, typer.Option(metavar="SIZE", help="Such as 128m.")] = "",
    smaller_than: Annotated[str, typer.Option(metavar="SIZE", help="Skip larger files.")] = "",
    max_bytes_per_job: Annotated[
        str, typer.Option(metavar="SIZE", help="Most that one job reads (default: twice the target).")
    ] = "",
) -> None:
    """Rewrite the small files of a table into large ones. No row changes.

    Example: distop table compact flights --target-file-size 256m --wait
    """
    handle, how = session.client.table(table), options.given() | {"partitions": partition or ()}
    follow_started(
        session,
        options,
        lambda: handle.compact(
            filter=filter or None,
            sort_by=sort_by,
            min_files=min_files,
            target_file_size=target_file_size or None,
            smaller_than=smaller_than or None,
            max_bytes_per_job=max_bytes_per_job or None,
            **how,
        ),
    )


@command(group, rich_help_panel=PANEL)
def delete(
    options: Starting,
    session: Connected,
    table: TableName,
    where: Annotated[
        str, typer.Option(metavar="EXPRESSION", help="Rows for which it is true; for all rows: true.")
    ],
    branch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Delete from this branch.", autocompletion=complete_branch),
    ] = None,
) -> None:
    """Delete the rows of a table for which an expression is true.

    Example: distop table delete flights --where "day < '2013-02-01'" --wait
    """
    handle = session.client.table(table)
    follow_started(session, options, lambda: handle.delete(where, branch=branch, **options.given()))


@command(group, rich_help_panel=PANEL)
def publish_branch(
    options: Starting,
    session: Connected,
    table: TableName,
    branch: Branch,
    on_conflict: OnConflict = None,
    snapshot: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Publish it only if it is at this snapshot.",
            autocompletion=complete_snapshot,
        ),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Publish it only if the table lacks no more than one snapshot of it."),
    ] = False,
) -> None:
    """Make the content of a branch that of its table, watermarks included, and remove the branch.

    Example: distop table publish-branch flights staging --wait
    """
    handle = session.client.table(table)
    follow_started(
        session,
        options,
        lambda: handle.publish_branch(
            branch,
            on_conflict=on_conflict,
            snapshot=snapshot,
            alone=alone or None,
            **options.given(),
        ),
    )


@command(group, rich_help_panel=PANEL)
def drop_branch(options: Starting, session: Connected, table: TableName, branch: Branch) -> None:
    """Remove a branch. Its files are removed when its snapshots are expired.

    Example: distop table drop-branch flights staging --wait
    """
    handle = session.client.table(table)
    follow_started(session, options, lambda: handle.drop_branch(branch, **options.given()))


@command(group, rich_help_panel=PANEL)
def expire_snapshots(
    options: Starting,
    session: Connected,
    table: TableName,
    older_than: OlderThan = "",
    keep_last: Annotated[
        int | None, typer.Option(min=1, help="Keep this many of each branch, however old (default: 1).")
    ] = None,
) -> None:
    """Expire old snapshots of a table, and remove the files that only they refer to.

    Example: distop table expire-snapshots flights --older-than 30d --keep-last 10 --wait
    """
    handle, age = session.client.table(table), older_than or None
    follow_started(
        session,
        options,
        lambda: handle.expire_snapshots(older_than=age, keep_last=keep_last, **options.given()),
    )


@command(group, rich_help_panel=PANEL)
def remove_orphans(
    options: Starting,
    session: Connected,
    table: TableName,
    older_than: OlderThan = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only show what would be removed.")
    ] = True,
) -> None:
    """Find files below a table's location that nothing refers to; with --no-dry-run, remove them.

    Example: distop table remove-orphans flights --no-dry-run --wait
    """
    handle, age = session.client.table(table), older_than or None
    follow_started(
        session, options, lambda: handle.remove_orphans(older_than=age, dry_run=dry_run, **options.given())
    )


@command(group, rich_help_panel=PANEL)
def build_index(
    options: Starting,
    session: Connected,
    table: TableName,
    column: Annotated[
        str,
        typer.Argument(
            help="A column of a primitive type, not within a struct.", autocompletion=complete_column
        ),
    ],
    full: Annotated[bool, typer.Option("--full", help="Index all files again, not only new ones.")] = False,
    files_per_job: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Most that one job indexes (default: 256).")
    ] = None,
) -> None:
    """Build the index of a column, or update it to the table's current snapshot.

    Example: distop table build-index flights dest --wait
    """
    handle = session.client.table(table)
    follow_started(
        session,
        options,
        lambda: handle.build_index(column, full=full or None, files_per_job=files_per_job, **options.given()),
    )


@command(group, rich_help_panel=PANEL)
def validate(
    rules: Rules,
    options: Starting,
    session: Connected,
    table: TableName,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this one, such as day_month=2013-01. Repeatable."),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Validate this branch or tag.", autocompletion=complete_branch),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Validate this snapshot.", autocompletion=complete_snapshot),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Validate the table as of this time, such as 2024-05-01T08:00:00Z."
        ),
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish the branch if no rule is broken.")
    ] = False,
    on_conflict: OnConflict = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Succeed also if rules are broken, and report them.")
    ] = False,
    samples: Annotated[
        int | None, typer.Option(min=0, max=100, help="Sample rows for each rule and job (default: 5).")
    ] = None,
    show: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Of the sample rows, besides those of the rule. Repeatable."),
    ] = None,
    group_bytes: Annotated[
        int | None,
        typer.Option(metavar="BYTES", min=1, help="Several jobs read a larger partition (default: 1 GiB)."),
    ] = None,
) -> None:
    """Check rules on the rows of a table and report violations.

    Example: distop table validate flights --rule 'miles > 0' --not-null origin --not-null dest --wait
    """
    handle, how = session.client.table(table), options.given() | {"partitions": partition or ()}
    follow_started(
        session,
        options,
        lambda: handle.validate(
            rules,
            branch=branch,
            snapshot=snapshot,
            as_of=as_of,
            publish=publish or None,
            on_conflict=on_conflict,
            report_only=report_only or None,
            samples=samples,
            show=show,
            group_bytes=group_bytes,
            **how,
        ),
    )
