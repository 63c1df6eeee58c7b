"""Limits for every text and list of a request: many of them are stored, and shown in lists."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from distop.errors import InvalidArgument
from distop.metastore.records.names import unreadable
from distop.metastore.records.watermarks import MAX_ENTRY_BYTES

MAX_BY_BYTES = 256
MAX_REASON_BYTES = 2_000

MAX_TEXT_BYTES = 4_096
"""Limit for every field that is not named below."""

MAX_ITEMS = 1_000
"""Limit for every list that is not named below."""

_WHO = frozenset({"created_by", "started_by", "requested_by"})

_LONGEST = dict.fromkeys(_WHO, MAX_BY_BYTES) | {
    "reason": MAX_REASON_BYTES,
    "location": 2_048,
    # Tables and operations: the rules for names limit them, with an error of their own.
    "name": 2 * MAX_TEXT_BYTES,
    # Their containers limit them, with an error of their own.
    "argument_json": 8 << 20,
    "options_json": 8 << 20,
    "changes_json": 8 << 20,
    # Watermarks.
    "source": MAX_ENTRY_BYTES,
    "partition": MAX_ENTRY_BYTES,
    "value": MAX_ENTRY_BYTES,
    # An encoded name, or a source and a partition, with escapes and in base64.
    "page_token": 5 * MAX_ENTRY_BYTES,
}

_MOST = {"partitions": 500_000}


def check_texts(request: Message) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` for a field of a request that is too long, and for a
    caller's name with invisible characters; the error names the field."""
    for path, why in _problems(request, ""):
        raise InvalidArgument(f"{path} {why}", details={"field": path})


@dataclass(frozen=True, slots=True)
class _Rule:
    """The limits of a field."""

    path: str
    """JSON objects have the names that clients use in arguments and options."""
    is_text: bool
    is_message: bool
    is_repeated: bool
    longest: int
    most: int
    is_who: bool


@functools.cache
def _rule(field: FieldDescriptor) -> _Rule:
    return _Rule(
        path=field.name.removesuffix("_json"),
        is_text=field.type == FieldDescriptor.TYPE_STRING,
        is_message=field.type == FieldDescriptor.TYPE_MESSAGE,
        is_repeated=field.is_repeated,
        longest=_LONGEST.get(field.name, MAX_TEXT_BYTES),
        most=_MOST.get(field.name, MAX_ITEMS),
        is_who=field.name in _WHO,
    )


def _problems(message: Message, above: str) -> Iterator[tuple[str, str]]:
    for field, value in message.ListFields():
        rule = _rule(field)
        values = value if rule.is_repeated else (value,)
        if len(values) > rule.most:
            yield f"{above}{rule.path}", f"has {len(values):,} items, at most {rule.most:,} are allowed"
        elif rule.is_message:
            for one in values:
                yield from _problems(one, f"{above}{rule.path}.")
        elif rule.is_text:
            # A character takes at most four bytes: few texts need to be encoded.
            if (
                4 * max(map(len, values)) > rule.longest
                and (size := max(len(one.encode()) for one in values)) > rule.longest
            ):
                yield f"{above}{rule.path}", f"is {size:,} bytes long, at most {rule.longest:,} are allowed"
            if rule.is_who and (unseen := unreadable(value)):
                yield f"{above}{rule.path}", unseen
