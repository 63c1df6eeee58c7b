"""Commands that look after a table: its maintenance operations, and schedules that start operations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from distop.cli.commands.operations import Starting, follow_started, show_started
from distop.cli.options.bundles import command
from distop.cli.options.parsing import parse_duration, parse_object
from distop.cli.options.session import Connected, JsonArgument, Reason, TableName, Wait

app = typer.Typer()

PANEL = "Looking after tables"

OlderThan = Annotated[
    str, typer.Option(metavar="AGE|TIME", help="Such as 12h, 30d or 2024-05-01T08:00:00Z (default: 3d).")
]


@command(app, rich_help_panel=PANEL)
def rollback(
    options: Starting,
    session: Connected,
    table: TableName,
    snapshot: Annotated[
        str, typer.Argument(metavar="[SNAPSHOT]", help="Its id: see distop tables snapshots TABLE.")
    ] = "",
    as_of: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Instead: the snapshot of that time, such as 2024-05-01T08:00:00Z."
        ),
    ] = "",
    watermarks: Annotated[
        Literal["restore", "keep"],
        typer.Option(help="keep: rolled-back data stays marked as ingested; see distop watermarks rewind."),
    ] = "restore",
) -> None:
    """Make an earlier snapshot of a table current, and restore its watermarks.

    Example: distop rollback flights 4216351713844670481 --wait
    """
    handle, time = session.client.table(table), as_of or None
    follow_started(
        session,
        options,
        lambda: handle.rollback(snapshot or None, as_of=time, watermarks=watermarks, **options.given()),
    )


@command(app, rich_help_panel=PANEL)
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
) -> None:
    """Rewrite the small files of a table into large ones. No row changes.

    Example: distop compact flights --target-file-size 256m --wait
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
            **how,
        ),
    )


@command(app, rich_help_panel=PANEL)
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

    Example: distop expire-snapshots flights --older-than 30d --keep-last 10 --wait
    """
    handle, age = session.client.table(table), older_than or None
    follow_started(
        session,
        options,
        lambda: handle.expire_snapshots(older_than=age, keep_last=keep_last, **options.given()),
    )


@command(app, rich_help_panel=PANEL)
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

    Example: distop remove-orphans flights --no-dry-run --wait
    """
    handle, age = session.client.table(table), older_than or None
    follow_started(
        session, options, lambda: handle.remove_orphans(older_than=age, dry_run=dry_run, **options.given())
    )


@command(app, rich_help_panel=PANEL)
def build_index(
    options: Starting,
    session: Connected,
    table: TableName,
    column: Annotated[str, typer.Argument(help="A column of a primitive type, not within a struct.")],
    full: Annotated[bool, typer.Option("--full", help="Index all files again, not only new ones.")] = False,
) -> None:
    """Build the index of a column, or update it to the table's current snapshot.

    Example: distop build-index flights dest --wait
    """
    handle = session.client.table(table)
    follow_started(session, options, lambda: handle.build_index(column, full=full or None, **options.given()))


@command(app, rich_help_panel=PANEL)
def validate(
    options: Starting,
    session: Connected,
    table: TableName,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION|JSON", help="An SQL condition, or a rule as JSON. Repeatable."),
    ] = None,
    not_null: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="The column must not be NULL. Repeatable.")
    ] = None,
    unique: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN,...", help="Must be unique within each partition. Repeatable."),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this one, such as day_month=2013-01. Repeatable."),
    ] = None,
    branch: Annotated[str, typer.Option(metavar="NAME", help="Validate this branch or tag.")] = "",
    snapshot: Annotated[str, typer.Option(metavar="ID", help="Validate this snapshot.")] = "",
    as_of: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Validate the table as of this time, such as 2024-05-01T08:00:00Z."
        ),
    ] = "",
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish the branch if no rule is broken.")
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Succeed also if rules are broken, and report them.")
    ] = False,
) -> None:
    """Check rules on the rows of a table and report violations.

    Example: distop validate flights --rule 'miles > 0' --not-null origin --not-null dest --wait
    """
    rules: list[Any] = [
        parse_object(text, "rule") if text.lstrip().startswith("{") else text for text in rule or ()
    ]
    rules += [{"not_null": column} for column in not_null or ()]
    rules += [{"unique": columns.split(",")} for columns in unique or ()]
    handle, how = session.client.table(table), options.given() | {"partitions": partition or ()}
    follow_started(
        session,
        options,
        lambda: handle.validate(
            rules,
            branch=branch or None,
            snapshot=snapshot or None,
            as_of=as_of or None,
            publish=publish or None,
            report_only=report_only or None,
            **how,
        ),
    )


schedules = typer.Typer(
    no_args_is_help=True, help="Operations that start by schedule, at times or on a condition."
)
app.add_typer(schedules, name="schedules", rich_help_panel=PANEL)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the schedule.")]


@command(schedules)
def add(
    argument: JsonArgument,
    session: Connected,
    table: TableName,
    name: Name,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="Operation to start, such as compact.")],
    cron: Annotated[str, typer.Option(metavar="CRON", help="At these times: '30 3 * * *'.")] = "",
    timezone: Annotated[
        str,
        typer.Option(metavar="ZONE", help="Of --cron and templates, such as Europe/Berlin (default: UTC)."),
    ] = "",
    when: Annotated[
        str,
        typer.Option(
            metavar="CONDITION",
            help="Or: when one of small_files, data_files, delete_files, snapshots is more than a number. "
            "Or, also with --cron: 'watermark(TABLE, SOURCE, PARTITION) >= VALUE'.",
        ),
    ] = "",
    object: Annotated[str, typer.Option(help="For types with one operation per object.")] = "",
    deadline: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Abort an operation after this time, such as 10m.")
    ] = None,
) -> None:
    """Add a schedule that starts operations.

    Each time of a schedule starts one operation, also after a change of the table's leader. Of the times
    missed while no coordinator ran, only the last is made up for. A time is skipped, and counted, while the
    last operation still runs, an incompatible one runs, or the table is paused.

    In texts of the argument {{ tick }}, {{ tick | date }} and {{ tick | date('%Y/%m') }} stand for the time
    that the operation is started for: the scheduled one, not the present one.

    In a time zone, a time that the clocks jump over comes at that moment, and one that they show twice the
    first time only. '0 * * * *' comes in each hour that passes.

    Example: distop schedules add flights nightly compact --cron '30 3 * * *' --timezone Europe/Berlin

    Example: distop schedules add flights many compact --when 'small_files > 200'

    Example: distop schedules add flights derived merge_day --when 'watermark(trips, s3://in, 2024) >= 12'

    Example: distop schedules add trips daily ingest --cron '0 6 * * *' --arg 'paths=/in/{{ tick | date }}'
    """
    session.out.show(
        session.client.table(table).add_schedule(
            name,
            type,
            argument,
            cron=cron,
            timezone=timezone,
            when=when,
            object=object,
            deadline_s=parse_duration(deadline, "deadline"),
        )
    )


@command(schedules)
def ls(session: Connected, table: TableName) -> None:
    """List the schedules of a table: what they started, what was skipped, and why."""
    session.out.listed("schedules", session.client.table(table).schedules(), False)


@command(schedules)
def run(
    session: Connected,
    table: TableName,
    name: Name,
    tick: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="One of its times of the last 6 days, in its time zone: 2026-03-29T06:00."
        ),
    ],
    wait: Wait = False,
) -> None:
    """Make up for a time of a schedule, such as one that was skipped.

    Its operation is started once: if one was started for this time before, it is shown, unless it has failed
    or was cancelled. A condition of the schedule is not waited for.

    Example: distop schedules run flights nightly --tick 2026-03-29T03:30 --wait
    """
    show_started(session, session.client.table(table).run_schedule(name, tick).started, wait=wait)


@command(schedules)
def rm(session: Connected, table: TableName, name: Name, reason: Reason = "") -> None:
    """Remove a schedule; operations that it started go on."""
    session.out.show(session.client.table(table).remove_schedule(name, reason))


@command(schedules)
def pause(session: Connected, table: TableName, name: Name, reason: Reason = "") -> None:
    """Pause a schedule: it starts nothing until it is resumed."""
    session.out.show(session.client.table(table).pause_schedule(name, reason))


@command(schedules)
def resume(session: Connected, table: TableName, name: Name, reason: Reason = "") -> None:
    """Resume a schedule; missed times are not made up for."""
    session.out.show(session.client.table(table).resume_schedule(name, reason))
