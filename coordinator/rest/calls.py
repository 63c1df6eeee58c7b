"""One request as a handler gets it, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyiceberg.typedef import Identifier

from distop.coordinator.access.callers import Caller
from distop.errors import InvalidArgument

MAX_PAGE = 1000
"""Most names in one answer; the token of the next page continues the list."""

SEPARATOR = "\x1f"
"""Separates the levels of a namespace, in paths (``%1F``) and in parameters."""


@dataclass(frozen=True, kw_only=True)
class RestCall:
    """A request. The parts of the path are decoded one by one."""

    parts: Mapping[str, str]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """With names in lower case."""
    body: Any = None
    """The body, as the model of the route."""
    text: bytes = b""
    """The body as received."""
    who: Caller = field(default_factory=Caller)
    """The caller, and what it may see."""

    @property
    def namespace(self) -> Identifier:
        return tuple(self.parts["namespace"].split(SEPARATOR))

    @property
    def table(self) -> Identifier:
        return (*self.namespace, self.parts["table"])

    @property
    def view(self) -> Identifier:
        return (*self.namespace, self.parts["view"])

    @property
    def named(self) -> Identifier:
        """The table or view in the namespace of the path that the body names."""
        return (*self.namespace, self.body.name)

    @property
    def parent(self) -> Identifier:
        """The namespace whose children are requested; empty: the top level."""
        given = self.query.get("parent", "")
        return tuple(given.split(SEPARATOR)) if given else ()

    @property
    def page_token(self) -> str:
        return self.query.get("pageToken", "")

    @property
    def page_size(self) -> int:
        """Most names in one answer. Raises :class:`~distop.errors.InvalidArgument`."""
        given = self.query.get("pageSize", "") or str(MAX_PAGE)
        if not (given.isascii() and given.isdecimal() and int(given[:9]) > 0):
            raise InvalidArgument(
                f"pageSize={given[:50]!r} is no positive number", details={"field": "pageSize"}
            )
        return min(int(given[:9]), MAX_PAGE)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer: JSON, or no body."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def json_reply(value: Any, status: int = 200, **headers: str) -> Reply:
    """An answer with a value; ``msgspec.Raw`` is included unchanged."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Reply(status=status, body=msgspec.json.encode(value), headers=named)


NOTHING = Reply(status=204)
