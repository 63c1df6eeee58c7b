"""Parses what users write on a command line."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, overload

from distop.errors import InvalidArgument

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")

MAX_ARGUMENT_BYTES = 4 * 1024 * 1024
"""Far more than etcd accepts; prevents reading a wrong, huge file as a whole."""


@overload
def parse_duration(text: str, field: str) -> float: ...
@overload
def parse_duration(text: str | None, field: str) -> float | None: ...
def parse_duration(text: str | None, field: str) -> float | None:
    """``"90"``, ``"90s"``, ``"1h30m"`` in seconds; ``None``: not given."""
    if text is None:
        return None
    wanted = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", wanted):
        return float(wanted)
    if not _DURATION.fullmatch(wanted):
        raise InvalidArgument(
            f"{text!r} is not a duration",
            hint="write for example 90s, 10m or 1h30m",
            details={"field": field},
        )
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(wanted))


def parse_since(text: str, field: str) -> datetime:
    """A time such as ``"2024-05-01T08:00:00Z"`` (UTC by default), or a time ago: ``"2h"``."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text, field))
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def parse_limit(text: str, field: str) -> int:
    """A number, or ``any``: -1."""
    if text == "any":
        return -1
    if not re.fullmatch(r"\d{1,9}", text):
        raise InvalidArgument(f"{text!r} is neither a number nor any", details={"field": field})
    return int(text)


def parse_assignments(items: Iterable[str]) -> dict[str, Any]:
    """``key=value`` to JSON: a value that parses as JSON is JSON, any other is text.

    A key given twice makes a list: ``["paths=/a", "paths=/b", "header=true"]`` is
    ``{"paths": ["/a", "/b"], "header": True}``.
    """
    values: dict[str, list[Any]] = {}
    for item in items:
        key, text = parse_property(item)
        try:
            value = _read_json(text)
        except ValueError:
            value = text
        values.setdefault(key, []).append(value)
    return {key: given[0] if len(given) == 1 else given for key, given in values.items()}


def parse_properties(items: Iterable[str]) -> dict[str, str]:
    """``key=value``, both as text."""
    return dict(map(parse_property, items))


def parse_object(text: str, field: str) -> dict[str, Any]:
    """A JSON object: written on the command line, in a file, or on standard input (``-``)."""
    value = _parse_json(text if text.lstrip().startswith("{") else _read(text, field), field)
    if not isinstance(value, dict):
        raise InvalidArgument(f"{field} is not a JSON object", details={"field": field})
    return value


def parse_rules(conditions: Iterable[str], not_null: Iterable[str], unique: Iterable[str]) -> list[Any]:
    """Rules for rows: SQL conditions or JSON, columns that must not be NULL, columns that must be unique."""
    rules: list[Any] = [
        parse_object(text, "rule") if text.lstrip().startswith("{") else text for text in conditions
    ]
    rules += [{"not_null": column} for column in not_null]
    return rules + [{"unique": columns.split(",")} for columns in unique]


def absolute(path: str) -> str:
    """An absolute local path; a URL as it is."""
    if not path:
        raise InvalidArgument("a path is empty", details={"field": "paths"})
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def parse_lines(name: str, field: str) -> list[str]:
    """The lines of a file, or of standard input (``-``), without empty ones."""
    return [line.strip() for line in _read(name, field).splitlines() if line.strip()]


def parse_schema(items: Iterable[str]) -> list[str]:
    """Columns as ``"name: type"``: separated by commas, or ``@FILE`` with JSON.

    The file holds a list of such columns, or an object of names and types.
    """
    columns: list[str] = []
    for item in items:
        if not item.startswith("@"):
            columns += split_list(item)
            continue
        value = _parse_json(_read(item[1:], "schema"), "schema")
        if isinstance(value, dict):
            # A JSON object on the wire has no order, columns have one.
            value = [f"{name}: {kind}" for name, kind in value.items()]
        if not isinstance(value, list) or not all(isinstance(column, str) for column in value):
            raise InvalidArgument(
                f"{item[1:]} holds no columns",
                hint='write a JSON list such as ["id: long not null", "at: timestamp"]',
                details={"field": "schema"},
            )
        columns += value
    return columns


def parse_types(items: Iterable[str]) -> dict[str, str]:
    """Columns as of :func:`parse_schema`, as names and types."""
    types = {}
    for name, type_text in parse_columns(items):
        if not name:
            raise InvalidArgument(
                f"{type_text!r} is not a column: write 'name: type'", details={"field": "schema"}
            )
        types[name] = type_text
    return types


def parse_columns(items: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The name and the type of each column of :func:`parse_schema`; without a colon the name is empty."""
    for column in parse_schema(items):
        name, _, type_text = column.rpartition(":")
        yield name.strip(), type_text.strip()


def split_list(text: str) -> list[str]:
    """Split at commas outside of brackets: ``"price: decimal(9,2), bucket[4](id)"``."""
    parts = re.split(r",(?![^(\[]*[)\]])", text)
    return [part.strip() for part in parts if part.strip()]


def parse_property(item: str) -> tuple[str, str]:
    """``key=value``: the key and the value."""
    key, equals, value = item.partition("=")
    if not equals or not key.strip():
        raise InvalidArgument(f"{item!r} is not key=value", details={"field": "arg"})
    return key.strip(), value


def _parse_json(text: str, field: str) -> Any:
    try:
        return _read_json(text)
    except ValueError as error:
        raise InvalidArgument(f"{field} is not JSON: {error}", details={"field": field}) from None


def _read_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _read(name: str, field: str) -> str:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_ARGUMENT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_ARGUMENT_BYTES + 1)
        if len(data) > MAX_ARGUMENT_BYTES:
            raise InvalidArgument(
                f"{name} is larger than {MAX_ARGUMENT_BYTES:,} bytes", details={"field": field}
            )
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{name} cannot be read: {error}", details={"field": field}) from None
