"""Whether an operation's files fit a table as it is by now, and the columns that it gets with them."""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate

from distop.commit.iceberg.metadata_files import TableFile
from distop.commit.layout.evolution import evolution_of, put_on
from distop.commit.layout.model import Layout, check_format
from distop.errors import Conflict, SchemaConflict
from distop.metastore.records.operation import OperationArg


def fitted(layout: Layout, file: TableFile, arg: OperationArg) -> list[TableUpdate]:
    """The updates by which the table gets the columns that the operation adds or widens; mostly none.

    Files may become part of the table if it still knows the schema and the partition spec that they were
    written with, be it as an earlier one: Iceberg reads older files through the present schema.

    Raises
    ------
    SchemaConflict
        It does not know the columns, or has changed so that they do not go together any more.
    Conflict
        It does not know the partitioning.
    PreconditionFailed
        The table has a format that is not written.
    """
    base, schema, spec = file.metadata, layout.schema, layout.spec
    check_format(base)
    if spec not in base.partition_specs:
        raise Conflict(
            f"{arg.id} has written its files with a partition spec {spec.spec_id} that table {arg.table!r} "
            "does not know",
            hint="start the operation again: it will use the table's present partitioning",
        )
    evolution = evolution_of(arg)
    if evolution and file.location is not None:
        return schema_updates(base, put_on(base.schema(), schema, evolution, base.schemas))
    if not any(known.schema_id == schema.schema_id and known == schema for known in base.schemas):
        raise SchemaConflict(
            f"{arg.id} has written its files with a schema {schema.schema_id} that table {arg.table!r} does "
            f"not know; its present schema is {base.current_schema_id}"
        )
    return []


def schema_updates(base: TableMetadata, schema: Schema) -> list[TableUpdate]:
    """The updates by which a table gets these columns; none if it has them."""
    if schema == base.schema():
        return []
    same = next((known.schema_id for known in base.schemas if known == schema), None)
    if same is not None:
        return [SetCurrentSchemaUpdate(schema_id=same)]
    new_id = 1 + max(known.schema_id for known in base.schemas)
    added = schema.model_copy(update={"schema_id": new_id})
    return [AddSchemaUpdate(schema_=added), SetCurrentSchemaUpdate(schema_id=-1)]
