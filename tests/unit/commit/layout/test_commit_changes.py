"""What changes make of the columns of a table."""

from __future__ import annotations

from typing import Any

import pytest

from distop.commit.layout.changes import changed_columns, parse_changes
from distop.commit.layout.model import Layout
from distop.commit.layout.schemas import parse_schema
from distop.errors import InvalidArgument

SCHEMA = Layout.create(
    parse_schema(["id: int not null", "fare: decimal(4,2)", "note: string", "f: float"])
).schema


def changed(*changes: dict[str, Any]) -> list[str]:
    schema = changed_columns(SCHEMA, parse_changes(changes), 9)
    return [
        f"{one.field_id} {one.name}: {one.field_type}{'' if one.required else '?'}{one.doc or ''}"
        for one in schema.columns
    ]


def test_each_change_does_what_it_says() -> None:
    assert changed(
        {"change": "rename", "column": "note", "to": "remark"},
        {"change": "drop", "column": "f"},
        {"change": "add", "column": "f", "type": "date", "doc": "!"},
        {"change": "widen", "column": "id", "type": "long"},
        {"change": "widen", "column": "fare", "type": "decimal(9, 2)"},
        {"change": "optional", "column": "id"},
        {"change": "doc", "column": "remark", "doc": "what"},
        {"change": "move", "column": "remark"},
        {"change": "move", "column": "id", "after": "fare"},
    ) == ["3 remark: string?what", "2 fare: decimal(9, 2)?", "1 id: long?", "10 f: date?!"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"change": "add", "column": "ID", "type": "long"}, "there is a column 'id' already"),
        ({"change": "add", "column": "x", "type": "long not null"}, "cannot be required"),
        ({"change": "add", "column": "x", "type": "lnog"}, "unknown type"),
        ({"change": "add", "column": " ", "type": "long"}, "no name"),
        ({"change": "add", "column": "a\x1b", "type": "long"}, r"U\+001B"),
        ({"change": "add", "column": "x"}, "missing required field `type`"),
        ({"change": "add", "column": "x", "type": "long", "first": True}, "unknown field `first`"),
        ({"change": "rename", "column": "x", "to": "y"}, "no column 'x'"),
        ({"change": "rename", "column": "id", "to": "note"}, "already"),
        ({"change": "widen", "column": "f", "type": "long"}, "cannot become"),
        ({"change": "widen", "column": "fare", "type": "decimal(9,3)"}, "cannot become"),
        ({"change": "widen", "column": "fare", "type": "decimal(3,2)"}, "cannot become"),
        ({"change": "move", "column": "id", "after": "x"}, "no column 'x'"),
        ({"change": "paint", "column": "id"}, "paint"),
    ],
)
def test_what_cannot_be_is_refused_by_its_number(change: dict[str, Any], says: str) -> None:
    """U3"""
    with pytest.raises(InvalidArgument, match=says) as caught:
        changed({"change": "optional", "column": "id"}, change)
    assert caught.value.details["field"] == "changes[1]"


def test_the_last_column_stays() -> None:
    names = ["id", "fare", "note", "f"]
    with pytest.raises(InvalidArgument, match="the only one"):
        changed(*({"change": "drop", "column": name} for name in names))
    with pytest.raises(InvalidArgument, match="0 changes"):
        changed()
