"""``distop schedule``: schedules that start operations on a table, at times or on a condition."""

from __future__ import annotations

from typing import Annotated

import typer

from distop.cli.commands.operations import show_started
from distop.cli.options.bundles import command
from distop.cli.options.parsing import parse_duration
from distop.cli.options.session import (
    Connected,
    JsonArgument,
    Reason,
    TableName,
    TypeName,
    Wait,
    complete_schedule,
)

group = typer.Typer()

NewName = Annotated[str, typer.Argument(metavar="NAME", help="Of the schedule.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the schedule.", autocompletion=complete_schedule)
]


@command(group)
def add(
    argument: JsonArgument,
    session: Connected,
    table: TableName,
    name: NewName,
    type: TypeName,
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

    Example: distop schedule add flights nightly compact --cron '30 3 * * *' --timezone Europe/Berlin

    Example: distop schedule add flights many compact --when 'small_files > 200'

    Example: distop schedule add flights derived merge_day --when 'watermark(trips, s3://in, 2024) >= 12'

    Example: distop schedule add trips daily ingest --cron '0 6 * * *' --arg 'paths=/in/{{ tick | date }}'
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


@command(group, "list")
def list_schedules(session: Connected, table: TableName) -> None:
    """List the schedules of a table: what they started, what was skipped, and why.

    Example: distop schedule list flights
    """
    session.out.listed("schedules", session.client.table(table).schedules(), 0)


@command(group)
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

    Example: distop schedule run flights nightly --tick 2026-03-29T03:30 --wait
    """
    show_started(session, session.client.table(table).run_schedule(name, tick).started, wait=wait)


@command(group)
def remove(session: Connected, table: TableName, name: Name, reason: Reason = "") -> None:
    """Remove a schedule; operations that it started go on.

    Example: distop schedule remove flights nightly
    """
    session.out.show(session.client.table(table).remove_schedule(name, reason))


@command(group)
def pause(session: Connected, table: TableName, name: Name, reason: Reason = "") -> None:
    """Pause a schedule: it starts nothing until it is resumed.

    Example: distop schedule pause flights nightly --reason 'during the move'
    """
    session.out.show(session.client.table(table).pause_schedule(name, reason))


@command(group)
def resume(session: Connected, table: TableName, name: Name, reason: Reason = "") -> None:
    """Resume a schedule; missed times are not made up for.

    Example: distop schedule resume flights nightly
    """
    session.out.show(session.client.table(table).resume_schedule(name, reason))
