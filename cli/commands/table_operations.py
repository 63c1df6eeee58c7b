"""The verbs of ``distop table`` that start an operation; each has the name of the operation's type."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from distop.cli.commands.operations import Starting, absolute, follow_started
from distop.cli.options.bundles import command
from distop.cli.options.parsing import parse_assignments, parse_object, parse_types
from distop.cli.options.session import Connected, TableName

PANEL = "Start an operation on it"

app = typer.Typer()

OlderThan = Annotated[
    str, typer.Option(metavar="AGE|TIME", help="Such as 12h, 30d or 2024-05-01T08:00:00Z (default: 3d).")
]


@command(app, rich_help_panel=PANEL)
def ingest(
    options: Starting,
    session: Connected,
    table: TableName,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, folders, globs or URLs.")],
    format: Annotated[
        Literal["csv", "jsonl", "parquet", "avro"] | None, typer.Option(help="Default: by file name.")
    ] = None,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMNS",
            help="Types of columns: 'id: long, at: timestamp', or @FILE with JSON. "
            "Default: the table's, else inferred.",
        ),
    ] = None,
    multiline: Annotated[
        bool | None,
        typer.Option(
            "--multiline/--no-multiline",
            help="CSV: quoted values may hold newlines, or do not. Default: refused if the first lines do.",
        ),
    ] = None,
    mode: Annotated[
        Literal["append", "overwrite", "overwrite_partitions", "error_if_exists", "ignore", "merge"] | None,
        typer.Option(help="Default: append."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="With --mode merge: key column. Repeatable."),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="With --mode merge: rows with a greater value are newer."),
    ] = None,
    delete_where: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="With --mode merge: new rows that delete their match."),
    ] = None,
    on_new_columns: Annotated[
        Literal["fail", "add", "ignore"] | None,
        typer.Option(help="For columns that the table does not have. Default: fail."),
    ] = None,
    on_wider_types: Annotated[
        Literal["fail", "widen"] | None,
        typer.Option(help="For values beyond the type of a column. Default: fail."),
    ] = None,
    on_bad_rows: Annotated[
        Literal["fail", "quarantine"] | None,
        typer.Option(help="For rows that cannot be parsed or do not fit. Default: fail."),
    ] = None,
    max_bad_rows: Annotated[
        int | None,
        typer.Option(metavar="COUNT", help="With quarantine: fail if more rows are bad."),
    ] = None,
    max_bad_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With quarantine: fail if a greater share of the rows is bad, 0 to 1. Default: if all are.",
        ),
    ] = None,
    partition_columns_from_path: Annotated[
        bool,
        typer.Option(
            "--partition-columns-from-path", help="Take columns from folders such as day=2024-01-01, too."
        ),
    ] = False,
    filter: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="Only rows for which it is true.")
    ] = None,
    new_only: Annotated[
        bool, typer.Option("--new-only", help="Ingest only files that were not ingested before.")
    ] = False,
    reingest: Annotated[
        bool,
        typer.Option("--reingest", help="Ingest again what was ingested before; may duplicate rows."),
    ] = False,
    null_value: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="CSV: a text that means NULL, in addition to an empty value. Repeatable."
        ),
    ] = None,
    branch: Annotated[
        str | None, typer.Option(metavar="NAME", help="Write to this branch, to publish it later.")
    ] = None,
    object: Annotated[
        str, typer.Option(metavar="NAME", help="Run concurrently with other appends, one for each name.")
    ] = "",
    queue: Annotated[
        bool, typer.Option("--queue", help="Wait while an incompatible operation of the table runs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show columns, some rows and warnings; start nothing.")
    ] = False,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg", metavar="KEY=VALUE", help="Any other part of the argument of ingest. Repeatable."
        ),
    ] = None,
) -> None:
    """Ingest files into a table. Relative paths are made absolute.

    Example: distop table ingest flights data/2013-01 data/2013-02 --wait
    """
    from distop.client import ingest_argument

    nulls = ["", *null_value] if null_value else None
    chosen: Any = {"format": format, "mode": mode}
    chosen |= {"new_only": new_only or None, "reingest": reingest or None}
    chosen |= {"on_new_columns": on_new_columns, "on_wider_types": on_wider_types, "null_values": nulls}
    chosen |= {"on_bad_rows": on_bad_rows, "filter": filter}
    chosen |= {"partition_columns_from_path": partition_columns_from_path or None}
    chosen |= {"max_bad_rows": max_bad_rows, "max_bad_share": max_bad_share}
    chosen |= {"keys": key, "order_by": order_by, "delete_where": delete_where, "branch": branch}
    chosen |= {"schema": parse_types(schema) if schema else None, "multiline": multiline}
    chosen |= parse_assignments(arg or ()) | {"paths": [absolute(path) for path in paths]}
    argument = ingest_argument(**chosen)
    if dry_run:
        session.out.preview(
            session.client.preview(
                table, "ingest", argument, object=object, max_failed_partitions=options.max_failed
            )
        )
        return
    how = options.given() | {"object": object, "queue": queue}
    follow_started(session, options, lambda: session.client.start(table, "ingest", argument, **how))


@command(app, rich_help_panel=PANEL)
def rollback(
    options: Starting,
    session: Connected,
    table: TableName,
    snapshot: Annotated[
        str, typer.Argument(metavar="[SNAPSHOT]", help="Its id: see distop snapshot list TABLE.")
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

    Example: distop table expire-snapshots flights --older-than 30d --keep-last 10 --wait
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

    Example: distop table remove-orphans flights --no-dry-run --wait
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

    Example: distop table build-index flights dest --wait
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

    Example: distop table validate flights --rule 'miles > 0' --not-null origin --not-null dest --wait
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
