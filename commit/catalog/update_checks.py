"""Checks of updates of a table, for all callers."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)

from distop.commit.layout.properties import check_properties
from distop.commit.layout.schemas import check_fields, check_schema


def check_updates(updates: Iterable[TableUpdate]) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if a property, column or field is invalid."""
    for update in updates:
        if isinstance(update, SetPropertiesUpdate):
            check_properties(update.updates)
        if isinstance(update, AddSchemaUpdate):
            check_schema(update.schema_)
        if isinstance(update, AddPartitionSpecUpdate):
            check_fields(update.spec.fields)
        if isinstance(update, AddSortOrderUpdate):
            check_fields(update.sort_order.fields)
