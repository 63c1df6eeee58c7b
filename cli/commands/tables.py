"""Commands on tables, why one does not move, on watermarks, and on the members of the service."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from distop.cli.options.bundles import command, expanded
from distop.cli.options.parsing import parse_object, parse_properties, parse_schema, split_list
from distop.cli.options.session import Connected, Limit, Reason, Session, TableName, page_size

PANEL = "Tables and cluster"

app = typer.Typer()
group = typer.Typer(invoke_without_command=True)
app.add_typer(group, name="tables", rich_help_panel=PANEL)


def tables(ctx: typer.Context, session: Connected) -> None:
    """List, create, change and show tables."""
    if ctx.invoked_subcommand is None:
        _list(session, 100)


group.callback()(expanded(tables))


@command(group)
def ls(session: Connected, limit: Limit = 100) -> None:
    """List all tables."""
    _list(session, limit)


@command(group)
def create(
    session: Connected,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    location: Annotated[
        str,
        typer.Option(metavar="URL", help="Folder for its files: an absolute path, s3://bucket/folder, ..."),
    ],
    schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMNS",
            help="'id: long not null, at: timestamp', or @FILE with JSON. Default: the first ingest decides.",
        ),
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option(metavar="TERM", help="month(at), bucket[16](id), or a column. Repeatable."),
    ] = None,
    property: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Property of the table format. Repeatable.")
    ] = None,
    storage: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="fsspec option such as endpoint_url. Repeatable."),
    ] = None,
    checks: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-|JSON",
            help='Rules that all ingested rows must keep: \'{"rules": ["id > 0", {"not_null": "id"}]}\'.',
        ),
    ] = None,
    format: Annotated[
        str, typer.Option(help="Table format: iceberg, delta, or files (a tree of plain files).")
    ] = "iceberg",
) -> None:
    """Create a table.

    Example: distop tables create flights --location /data/flights --partition-by 'month(time_hour)'
    """
    options: dict[str, Any] = {
        "schema": parse_schema(schema or ()),
        "partitionBy": [term for terms in partition_by or () for term in split_list(terms)],
        "properties": parse_properties(property or ()),
        "storage": parse_properties(storage or ()),
        "checks": parse_object(checks, "checks") if checks is not None else None,
    }
    given = {key: value for key, value in options.items() if value}
    session.out.show(session.client.create_table(name, location, format=format, options=given))


@command(group)
def alter(
    session: Connected,
    table: TableName,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Give a column another name. Repeatable.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Repeatable.")] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMNS", help="'fare: decimal(9,2), note: string'. Repeatable."),
    ] = None,
    widen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMNS", help="New types, 'id: long': int to long, float to double. Repeatable."
        ),
    ] = None,
    optional: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Allow NULL from now on. Repeatable.")
    ] = None,
    doc: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=TEXT", help="Set the comment of a column. Repeatable.")
    ] = None,
    move: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN[=OTHER]", help="Move behind another column, or to the front. Repeatable."
        ),
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option(metavar="TERM", help="Partitioning of new rows; 'none': none. Repeatable."),
    ] = None,
    property: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Set a property. Repeatable.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Remove a property. Repeatable.")
    ] = None,
    checks: Annotated[
        str | None,
        typer.Option(metavar="FILE|-|JSON|none", help="Rules that rows must keep; replaces the old ones."),
    ] = None,
    reason: Reason = "",
) -> None:
    """Change a table: columns, partitioning, properties, rules. All changes in one transaction, or none.

    Applied in the order of these options. Refused while an operation runs that would fail because of it.

    Example: distop tables alter flights --add 'fare: decimal(9,2)' --widen 'id: long'
    """
    changes: list[dict[str, Any]] = []

    def each(kind: str, items: list[str] | None, *names: str) -> None:
        parsed = (parse_properties([item]).popitem() if len(names) > 1 else (item,) for item in items or ())
        changes.extend({"change": kind, **dict(zip(names, values, strict=True))} for values in parsed)

    def columns(kind: str, items: list[str] | None) -> None:
        for column in parse_schema(items or ()):
            name, _, type_text = column.rpartition(":")
            changes.append({"change": kind, "column": name.strip(), "type": type_text.strip()})

    each("rename", rename, "column", "to")
    each("drop", drop, "column")
    columns("add", add)
    columns("widen", widen)
    each("optional", optional, "column")
    each("doc", doc, "column", "doc")
    for item in move or ():
        column, _, after = item.partition("=")
        changes.append({"change": "move", "column": column.strip(), "after": after.strip()})
    if partition_by:
        terms = [term for terms in partition_by for term in split_list(terms) if term != "none"]
        changes.append({"change": "partition_by", "terms": terms})
    if property or unset:
        changes.append(
            {"change": "properties", "set": parse_properties(property or ()), "unset": unset or []}
        )
    if checks is not None:
        rules = {} if checks == "none" else {"checks": parse_object(checks, "checks")}
        changes.append({"change": "checks", **rules})
    session.out.show(session.client.table(table).alter(changes, reason))


@command(group)
def drop(
    session: Connected,
    table: TableName,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Remove its files, too: everything in its folder, if only this table uses it."
        ),
    ] = False,
    reason: Reason = "",
) -> None:
    """Drop a table with its watermarks, history and backlog. Refused while operations run.

    Its files stay, unless --purge is given.
    """
    session.client.table(table).drop(reason, purge=purge)
    session.out.result_for_programs({"table": table, "dropped": True, "purged": purge})
    session.out.note(f"dropped {table}" + (" and its files" if purge else "; its files stay"))


@command(group)
def show(session: Connected, table: TableName) -> None:
    """Show one table: its definition, its content, what loaded it last, and its indexes."""
    handle = session.client.table(table)
    found, indexes = handle.get(), tuple(handle.indexes())
    session.out.show(replace(found, indexes=indexes, content=handle.describe()))


@command(group)
def snapshots(session: Connected, table: TableName, limit: Limit = 20) -> None:
    """List the snapshots that a table still has, the newest first.

    Each can be read, and those of the table's history can be rolled back to: distop rollback TABLE SNAPSHOT.
    """
    session.listed("snapshots", session.client.table(table).snapshots(page_size=page_size(limit)), limit)


@command(app, rich_help_panel=PANEL)
def why(session: Connected, table: TableName) -> None:
    """Show in one line why a table moves or does not."""
    session.out.show(session.client.table(table).why())


@command(app, rich_help_panel=PANEL)
def members(session: Connected) -> None:
    """Show the live coordinators and executors, and the tables that they lead."""
    session.out.members(session.client.members(), session.client.leaders())


@command(app, rich_help_panel=PANEL)
def version(session: Connected) -> None:
    """Show the version of this command, and those of the live members."""
    from distop.proto.identity import own_version

    members = {member.id: member.version or "not said" for member in session.client.members()}
    session.out.facts("versions", {"distop": own_version(), "members": members})


def _list(session: Session, limit: int) -> None:
    session.listed("tables", session.client.tables(page_size=page_size(limit)), limit)


class _ShowsByDefault(TyperGroup):
    """``distop watermarks flights`` is ``distop watermarks show flights``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["show", *args]
        return super().parse_args(ctx, args)


watermarks = typer.Typer(
    cls=_ShowsByDefault,
    no_args_is_help=True,
    help="How far each source of a table has been ingested: distop watermarks TABLE. Or change watermarks.",
)
app.add_typer(watermarks, name="watermarks", rich_help_panel=PANEL)

SourceName = Annotated[str, typer.Argument(metavar="SOURCE", help="As distop watermarks TABLE shows it.")]


@command(watermarks, "show")
def show_watermarks(
    session: Connected,
    table: TableName,
    source: Annotated[str, typer.Option(metavar="NAME", help="Only this source.")] = "",
) -> None:
    """Show how far each source of a table has been ingested."""
    session.out.watermarks(session.client.table(table).watermarks(source))


@command(watermarks, "set")
def set_watermark(
    session: Connected,
    table: TableName,
    source: SourceName,
    partition: Annotated[str, typer.Argument(metavar="PARTITION")],
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    reason: Reason = "",
) -> None:
    """Set a watermark. Refused while an operation runs that moves watermarks."""
    session.out.watermarks(session.client.table(table).set_watermark(source, partition, value, reason))


@command(watermarks)
def forget(
    session: Connected,
    table: TableName,
    source: SourceName,
    partition: Annotated[str, typer.Argument(metavar="[PARTITION]", help="Default: all of them.")] = "",
    reason: Reason = "",
) -> None:
    """Delete watermarks, so that their files can be ingested again. Shows what is left of the source."""
    session.out.watermarks(session.client.table(table).forget_watermarks(source, partition, reason))


@command(watermarks)
def compact(session: Connected, table: TableName, source: SourceName, reason: Reason = "") -> None:
    """Replace the watermarks of a folder's files by one for the folder.

    It is the newest of them. --new-only then ignores an older file that arrives later.
    """
    session.out.watermarks(session.client.table(table).compact_watermarks(source, reason))


@command(watermarks)
def rewind(
    session: Connected,
    table: TableName,
    source: Annotated[str, typer.Option(metavar="NAME", help="Only this source.")] = "",
    reason: Reason = "",
) -> None:
    """Undo the watermark changes of snapshots that are no longer part of the table.

    After a rollback with --watermarks keep, this allows ingesting what was rolled back.
    """
    session.out.watermarks(session.client.table(table).rewind_watermarks(source, reason))
