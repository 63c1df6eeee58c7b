"""Whether an operation's files fit the table's present schema, and the columns that they add."""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate

from distop.errors import Conflict, SchemaConflict
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.layout.evolution import check_new_names, evolution_of, put_on
from distop.lake.layout.model import Layout, check_format
from distop.metastore.records.operation import OperationArg


def fitted(layout: Layout, file: TableFile, arg: OperationArg) -> list[TableUpdate]:
    """The updates that add or widen columns for the operation's files; mostly none.

    Files may be added if the table still knows the schema and the partition spec of the files, even as
    earlier ones: Iceberg reads older files through the present schema.

    Raises
    ------
    SchemaConflict
        The table does not know the columns, or has changed so that they no longer fit.
    Conflict
        The table does not know the partitioning.
    PreconditionFailed
        distop does not write this table format version.
    """
    base, schema, spec = file.metadata, layout.schema, layout.spec
    check_format(base)
    if spec not in base.partition_specs:
        raise Conflict(
            f"{arg.id} wrote its files with partition spec {spec.spec_id}, which table {arg.table!r} "
            "does not know",
            hint="start the operation again: it will use the table's present partitioning",
        )
    evolution = evolution_of(arg)
    if evolution and file.location is not None:
        return schema_updates(base, put_on(base.schema(), schema, evolution, base.schemas))
    if not any(known.schema_id == schema.schema_id and known == schema for known in base.schemas):
        raise SchemaConflict(
            f"{arg.id} wrote its files with schema {schema.schema_id}, which table {arg.table!r} does "
            f"not know; its present schema is {base.current_schema_id}"
        )
    return []


def schema_updates(base: TableMetadata, schema: Schema) -> list[TableUpdate]:
    """The updates by which a table gets these columns; none if it has them. Raises as
    :func:`~distop.lake.layout.evolution.check_new_names`."""
    if schema == base.schema():
        return []
    check_new_names(schema, base.schema(), base.partition_specs)
    same = next((known.schema_id for known in base.schemas if known == schema), None)
    if same is not None:
        return [SetCurrentSchemaUpdate(schema_id=same)]
    new_id = 1 + max(known.schema_id for known in base.schemas)
    added = schema.model_copy(update={"schema_id": new_id})
    return [AddSchemaUpdate(schema_=added), SetCurrentSchemaUpdate(schema_id=-1)]
