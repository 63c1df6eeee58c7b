"""Which columns are read from the files, as what, and which of them go into the table."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from distop.commit.layout.model import Layout, parse_schema
from distop.errors import InvalidArgument
from distop.operations.arguments import invalid
from distop.spark_jobs.formats.conversion import check_columns
from distop.spark_jobs.formats.inference import Sample
from distop.spark_jobs.formats.options import Format
from distop.spark_jobs.formats.reader import describe
from distop.spark_jobs.formats.types import UnsupportedType, json_type, text_type
from distop.spark_jobs.ingest.argument import IngestArgument


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The columns of a source that matter.

    Parameters
    ----------
    schema:
        Those that are read; field ids mean nothing.
    targets:
        Those that go into the table, in order.
    """

    schema: Schema
    targets: list[str]

    def target_schema(self) -> Schema:
        """The schema of a new table for them."""
        return Schema(*(self.schema.find_field(name) for name in self.targets))


def choose_columns(
    argument: IngestArgument,
    file_format: Format,
    sample: Sample,
    table: Schema | None,
    filtered: set[str],
    *,
    beside: Collection[str] = (),
) -> SourceColumns:
    """Decide about columns.

    Parameters
    ----------
    table:
        The schema of the table; ``None`` if the source determines it.
    filtered:
        Columns that the filter speaks of.
    beside:
        Columns whose values do not have to be written in the format.

    Raises
    ------
    InvalidArgument
        A column that does not exist, that the table does not have, or that lacks though the table requires
        it; types that do not go together.
    """
    declared = _declared(argument)
    declared_names = [] if declared is None else [field.name for field in declared.columns]
    if sample.complete:
        _check_known("schema", declared_names, [*sample.names, *beside])
    known = list(dict.fromkeys([*sample.names, *declared_names, *beside]))
    _check_known("columns", argument.columns or [], known)
    _check_known("filter", sorted(filtered), known)
    targets = list(dict.fromkeys([*_targets(argument, declared, sample), *beside]))
    read = [*targets, *sorted(filtered.difference(targets))]
    types = _types(read, declared, table if file_format != "parquet" else None, sample)
    if table is not None:
        check_columns(
            pa.schema([(name, types[name]) for name in targets]),
            schema_to_pyarrow(table, include_field_ids=False),
            field="paths" if argument.columns is None else "columns",
            hint="choose with columns which to take over",
        )
    for name, dtype in types.items():
        if name not in beside:
            _check_readable(name, dtype, file_format)
    schema = Layout.create(pa.schema([_field(name, dtype, declared) for name, dtype in types.items()])).schema
    return SourceColumns(schema, targets)


def _declared(argument: IngestArgument) -> Schema | None:
    return None if argument.schema is None else parse_schema(argument.schema)


def _check_known(field: str, names: Iterable[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise invalid(field, f"the source has no column {name!r}", f"it has {describe(known)}")


def _targets(argument: IngestArgument, declared: Schema | None, sample: Sample) -> list[str]:
    if argument.columns is not None:
        return argument.columns
    if declared is None:
        if "" in sample.names:
            position = sample.names.index("") + 1
            raise invalid(
                "columns", f"column {position} of the source has no name", "name those to take over"
            )
        if not sample.names:
            raise invalid("paths", "the files have no columns", "give schema if that is expected")
        return sample.names
    targets = [field.name for field in declared.columns]
    extra = [name for name in sample.names if name not in targets]
    if extra and argument.extra_columns == "error":
        raise invalid(
            "schema", f"the source has a column {extra[0]!r} that schema does not name", "set extra_columns"
        )
    # The order of the files is easier on the eye than that of a mapping, which transport does not keep.
    return sorted(
        targets, key=lambda name: sample.names.index(name) if name in sample.names else len(sample.names)
    )


def _types(
    read: list[str], declared: Schema | None, table: Schema | None, sample: Sample
) -> dict[str, pa.DataType]:
    """Types as said, else as the table has them, else as the sample suggests."""
    given = {**_arrow_types(table), **_arrow_types(declared)}
    guessed = sample.types([name for name in read if name not in given])
    return {name: given[name] if name in given else guessed[name] for name in read}


def _arrow_types(schema: Schema | None) -> dict[str, pa.DataType]:
    if schema is None:
        return {}
    return {field.name: field.type for field in schema_to_pyarrow(schema, include_field_ids=False)}


def _field(name: str, dtype: pa.DataType, declared: Schema | None) -> pa.Field:
    required = {field.name for field in declared.columns if field.required} if declared is not None else set()
    return pa.field(name, dtype, nullable=name not in required)


def _check_readable(name: str, dtype: pa.DataType, file_format: Format) -> None:
    check = {"csv": text_type, "jsonl": json_type}.get(file_format)
    try:
        if check is not None:
            check(dtype)
    except UnsupportedType as error:
        raise _bad_type(name, str(error)) from None


def _bad_type(name: str, reason: str) -> InvalidArgument:
    return invalid(
        "schema", f"column {name!r}: {reason}", "leave the column out with columns, or give it a type"
    )
