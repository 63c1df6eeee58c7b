"""Checks the options of a new table: those that could never work are refused, by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distop.errors import InvalidArgument
from distop.lake.layout.partitioning import Partitioner
from distop.lake.layout.properties import check_properties
from distop.lake.layout.schemas import parse_schema
from distop.lake.layout.terms import check_terms
from distop.lake.rows import new_layout, output_of
from distop.lake.rules.parsing import check_option
from distop.lake.storage.allowed import check_location
from distop.lake.storage.storage import opened_with
from distop.metastore.records.names import unreadable
from distop.metastore.records.table import TableRecord

OPTIONS = ("checks", "partitionBy", "properties", "schema", "storage")


def check_options(record: TableRecord) -> None:
    """Check all options of a table, and turn a schema into a list: columns have an order, and the keys of an
    object in etcd have none. Blocking.

    Raises
    ------
    InvalidArgument
        ``details["field"]`` is ``options.<option>``, or ``location``.
    """
    options = record.options
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise _wrong(unknown[0], f"unknown option {unknown[0]!r}; known: {', '.join(OPTIONS)}")
    for name in ("storage", "properties", "checks"):
        if not isinstance(options.get(name, {}), dict):
            raise _wrong(name, f"{name} is not a JSON object")
    for name, value in options.get("properties", {}).items():
        if not isinstance(value, str | bool | int | float):
            raise _wrong("properties", f"property {name!r} is neither text, number nor boolean")
    check_location(record.location)
    _as_option("storage", lambda: opened_with(options.get("storage")))
    _as_option("properties", lambda: check_properties(options.get("properties", {}), record.location))
    schema = _checked_columns(record)
    if isinstance(columns := options.get("schema"), dict):
        options["schema"] = [f"{name}: {kind}" for name, kind in columns.items()]
    if "checks" in options:
        _as_option("checks", lambda: check_option(record, schema))


def _checked_columns(record: TableRecord) -> Any:
    """The schema, if one is given."""
    options = record.options
    schema, terms = options.get("schema"), options.get("partitionBy", [])
    if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
        raise _wrong("partitionBy", "partitionBy is not a list of terms")
    if schema is None:
        _as_option("partitionBy", lambda: check_terms(terms))
        return None
    columns: Sequence[Any] = [schema]
    if isinstance(schema, Mapping):
        columns = [*schema, *schema.values()]
    elif isinstance(schema, list):
        columns = schema
    if not isinstance(schema, Mapping | list) or not all(isinstance(column, str) for column in columns):
        raise _wrong(
            "schema",
            "schema is neither a list of columns nor an object of names and types",
            'write ["id: long not null", "at: timestamp"]',
        )
    return _as_option("schema", lambda: _checked_layout(record))


def _checked_layout(record: TableRecord) -> Any:
    schema = parse_schema(record.options["schema"])
    for column in schema.columns:
        if reason := unreadable(column.name):
            raise _wrong("schema", f"column {column.name!r} {reason}")
    layout = new_layout(record, schema)
    Partitioner(layout.schema, layout.spec)
    output_of(record.format).check(layout)
    return schema


def _as_option(name: str, check: Callable[[], Any]) -> Any:
    """Prefix the field of an error with the option's name."""
    try:
        return check()
    except InvalidArgument as error:
        field = {"partition_by": "partitionBy"}.get(error.details.get("field", ""), "")
        error.details["field"] = f"options.{field or name}"
        raise


def _wrong(option: str, message: str, hint: str = "") -> InvalidArgument:
    return InvalidArgument(message, hint=hint, details={"field": f"options.{option}"})
