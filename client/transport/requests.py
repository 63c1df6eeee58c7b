"""Requests of the API, from what a caller has given."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import Message

from distop.errors import InvalidArgument

PAGE_SIZE = 200
"""Entries of a list that are asked for at one time."""

M = TypeVar("M", bound=Message)


def make_request(kind: type[M], **fields: Any) -> M:
    """A request, or :class:`InvalidArgument` if a field cannot be sent (text that is no unicode)."""
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"this cannot be sent: {error}") from None
