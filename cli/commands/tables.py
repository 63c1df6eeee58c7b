"""``distop table``: create, list, show, change, pause and drop tables; why one makes no progress."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from distop.cli.options.bundles import command
from distop.cli.options.parsing import (
    parse_columns,
    parse_object,
    parse_properties,
    parse_property,
    parse_schema,
    split_list,
)
from distop.cli.options.session import Connected, Limit, Reason, TableName, page_size
from distop.client import TableChange, TableOptions

group = typer.Typer()


@command(group, "list")
def list_tables(session: Connected, limit: Limit = 100) -> None:
    """List all tables.

    Example: distop table list --limit 0 --output json
    """
    session.listed("tables", session.client.tables(page_size=page_size(limit)), limit)


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

    Example: distop table create flights --location /data/flights --partition-by 'month(time_hour)'
    """
    options: TableOptions = {}
    if schema:
        options["schema"] = parse_schema(schema)
    if partition_by:
        options["partitionBy"] = [term for terms in partition_by for term in split_list(terms)]
    if property:
        options["properties"] = parse_properties(property)
    if storage:
        options["storage"] = parse_properties(storage)
    if checks is not None:
        options["checks"] = parse_object(checks, "checks")
    session.out.show(session.client.create_table(name, location, format=format, options=options))


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

    Example: distop table alter flights --add 'fare: decimal(9,2)' --widen 'id: long'
    """
    changes: list[TableChange] = []
    for item in rename or ():
        column, new_name = parse_property(item)
        changes.append({"change": "rename", "column": column, "to": new_name})
    changes += [{"change": "drop", "column": column} for column in drop or ()]
    for name, kind in parse_columns(add or ()):
        changes.append({"change": "add", "column": name, "type": kind})
    changes += [
        {"change": "widen", "column": name, "type": kind} for name, kind in parse_columns(widen or ())
    ]
    changes += [{"change": "optional", "column": column} for column in optional or ()]
    for item in doc or ():
        column, text = parse_property(item)
        changes.append({"change": "doc", "column": column, "doc": text})
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
        rules: TableChange = {"change": "checks"}
        if checks != "none":
            rules["checks"] = parse_object(checks, "checks")
        changes.append(rules)
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

    Example: distop table drop flights --purge --reason 'moved to another catalog'
    """
    session.client.table(table).drop(reason, purge=purge)
    session.out.result_for_programs({"table": table, "dropped": True, "purged": purge})
    session.out.note(f"dropped {table}" + (" and its files" if purge else "; its files stay"))


@command(group)
def show(session: Connected, table: TableName) -> None:
    """Show one table: its definition, its content, what loaded it last, and its indexes.

    Example: distop table show flights
    """
    handle = session.client.table(table)
    definition, indexes = handle.get(), tuple(handle.indexes())
    session.out.show(replace(definition, indexes=indexes, content=handle.describe()))


@command(group)
def why(session: Connected, table: TableName) -> None:
    """Show in one line why a table makes progress or does not.

    Example: distop table why flights
    """
    session.out.show(session.client.table(table).why())


@command(group)
def pause(session: Connected, table: TableName, reason: Reason = "") -> None:
    """Pause a table with all its operations: it starts nothing, launches no jobs and publishes nothing.

    Finished work stays; deadlines keep counting. Idempotent: the first reason stays.

    Example: distop table pause flights --reason 'the bucket is moved'
    """
    session.out.show(session.client.table(table).pause(reason))


@command(group)
def resume(session: Connected, table: TableName, reason: Reason = "") -> None:
    """Resume a paused table. Idempotent.

    Example: distop table resume flights
    """
    session.out.show(session.client.table(table).resume(reason))
