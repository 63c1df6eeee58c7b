"""HTML as values: what is not :class:`Html` is text, and text is always escaped and can always be seen.

There is no way to put a name into a page but through here, so a table called ``<script>`` is just a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias


class Html(str):
    """Markup that is finished: its text has been escaped."""

    __slots__ = ()


Child: TypeAlias = str | Iterable["Child"] | None
"""Markup, text to be escaped, several of them, or nothing."""

Attribute: TypeAlias = str | int | bool | None

_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """One element.

    Parameters
    ----------
    attributes:
        ``class_="x"`` is ``class``, ``aria_label`` is ``aria-label``; ``True`` stands alone, ``None`` and
        ``False`` are left out.
    """
    written = "".join(
        _attribute(key, value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Child) -> Html:
    """Children one after the other."""
    if children is None:
        return Html()
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return Html(_text(children))
    return Html("".join(join(child) for child in children))


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_text(str(value))}"'


def printable(text: str) -> str:
    """``text`` with everything that cannot be seen, such as a change of writing direction, spelled out."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def _text(text: str) -> str:
    return escape(printable(text))
