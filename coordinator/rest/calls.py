"""One request as its handler sees it, and the answer to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyiceberg.typedef import Identifier

from distop.coordinator.access.callers import Caller
from distop.errors import InvalidArgument

MAX_PAGE = 1000
"""Most names in one answer; whoever wants more asks again with the token of the next page."""

SEPARATOR = "\x1f"
"""Stands between the levels of a namespace, in paths (``%1F``) and in parameters."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What is asked for. The parts of the path are decoded, each for itself."""

    parts: Mapping[str, str]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """With names in lower case."""
    body: Any = None
    """As the model of the route."""
    text: bytes = b""
    """The same as it came."""
    who: Caller = field(default_factory=Caller)
    """Who asks, and what it may see."""

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
        """The namespace whose namespaces are asked for; empty: the topmost."""
        given = self.query.get("parent", "")
        return tuple(given.split(SEPARATOR)) if given else ()

    @property
    def page_token(self) -> str:
        return self.query.get("pageToken", "")

    @property
    def page_size(self) -> int:
        """Names in one answer, at most. Raises :class:`~distop.errors.InvalidArgument`."""
        given = self.query.get("pageSize", "") or str(MAX_PAGE)
        if not (given.isascii() and given.isdecimal() and int(given[:9]) > 0):
            raise InvalidArgument(
                f"pageSize={given[:50]!r} is no positive number", details={"field": "pageSize"}
            )
        return min(int(given[:9]), MAX_PAGE)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer: JSON, or none."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def json_reply(value: Any, status: int = 200, **headers: str) -> Reply:
    """An answer with a value in it; ``msgspec.Raw`` goes in as it is."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Reply(status=status, body=msgspec.json.encode(value), headers=named)


NOTHING = Reply(status=204)
