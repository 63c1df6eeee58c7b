"""Sort orders: from a caller's text to Iceberg's records."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from distop.lake.writing.sorting import has_order
from distop.operations.arguments import invalid
from distop.spark_jobs.compact.argument import MAX_SORT_COLUMNS

_TERM = re.compile(
    r"(?P<column>\"[^\"]+\"|.+?)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?",
    re.IGNORECASE,
)


def sort_order(terms: Sequence[str] | str, metadata: TableMetadata) -> SortOrder | None:
    """The requested order: one that the table knows, or a new one; ``None`` if none is requested.

    Raises :class:`~distop.errors.InvalidArgument` for a column that does not exist or has no order.
    """
    texts = [text.strip() for text in terms.split(",")] if isinstance(terms, str) else list(terms)
    if not texts:
        return None
    if len(texts) > MAX_SORT_COLUMNS:
        raise invalid("sort_by", f"at most {MAX_SORT_COLUMNS} columns can be used for sorting")
    fields = [_field(text, metadata.schema()) for text in texts]
    if len({field.source_id for field in fields}) < len(fields):
        raise invalid("sort_by", "a column is named twice in --sort-by")
    for known in metadata.sort_orders:
        if known.fields == fields:
            return known
    return SortOrder(*fields, order_id=max((one.order_id for one in metadata.sort_orders), default=0) + 1)


def _field(text: str, schema: Schema) -> SortField:
    match = _TERM.fullmatch(text)
    name = "" if match is None else match["column"].strip('"')
    column = next((one for one in schema.columns if one.name == name), None)
    if match is None or column is None:
        names = ", ".join(one.name for one in schema.columns)
        raise invalid("sort_by", f"{text!r} is not a column of the table; its columns are: {names}")
    if not has_order(column):
        raise invalid("sort_by", f"column {name!r} has the type {column.field_type}, which cannot be sorted")
    descending = (match["direction"] or "asc").lower() == "desc"
    nulls = (match["nulls"] or ("last" if descending else "first")).lower()
    return SortField(
        source_id=column.field_id,
        transform=IdentityTransform(),
        direction=SortDirection.DESC if descending else SortDirection.ASC,
        null_order=NullOrder.NULLS_FIRST if nulls == "first" else NullOrder.NULLS_LAST,
    )
