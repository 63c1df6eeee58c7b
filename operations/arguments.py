"""Arguments of operations: conversion to types, and errors that name the invalid field."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from distop.errors import InvalidArgument, shortened
from distop.metastore.records.record import convert

T = TypeVar("T")


def invalid(field: str, message: str, hint: str = "", **details: str) -> InvalidArgument:
    """The error for one field of an argument."""
    return InvalidArgument(message, hint=hint, details={"field": field, **details})


def parse(raw: Mapping[str, Any], kind: type[T], label: str, *, below: str = "") -> T:
    """The argument of an operation, typed.

    Parameters
    ----------
    label:
        Name of the argument's owner, for the error.
    below:
        The field that contains it, if it is part of a larger argument.

    Raises
    ------
    InvalidArgument
        ``details["field"]`` names the field.
    """
    known = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else raw
    for name in raw:
        if name not in known:  # msgspec ignores them in a dataclass
            raise invalid(name, f"the argument of {label} has no field {name!r}", _names_hint(name, known))
    try:
        return convert(dict(raw), kind)
    except msgspec.ValidationError as error:
        message = str(error)
        match = re.search(r"at `\$\.?([^`.\[]*)", message) or re.search(r"field `([^`]*)`", message)
        field = match[1] if match else ""
        named = ".".join(name for name in (below, field) if name) or "argument"
        hint = _list_hint(raw.get(field), message)
        if message.endswith(f"unknown field `{field}`"):  # of the argument itself, not of a part of it
            hint = _names_hint(field, kind.__struct_encode_fields__)  # type: ignore[attr-defined]
    raise invalid(named, f"argument of {label}: {message}", hint) from None


def _names_hint(name: str, known: Collection[str]) -> str:
    if close := get_close_matches(name, known, 1):
        return f"did you mean {close[0]}?"
    return shortened(f"it has {', '.join(known) or 'no fields'}", 200)


def _list_hint(value: Any, message: str) -> str:
    """A single name where a list is expected is easily written without brackets."""
    if not isinstance(value, str) or "Expected `array" not in message:
        return ""
    return f"a list is expected: {json.dumps([value])}; on the command line quote it, as JSON"
