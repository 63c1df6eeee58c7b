"""Passwords, tokens and keys: a text that only those see who ask for it by :meth:`Secret.reveal`."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, NoReturn

from distop.errors import InvalidArgument

MASK = "***"

MAX_TOKEN_BYTES = 8 << 10


class Secret:
    """A text that logs, errors and dumps of values do not show.

    It shows itself as ``***``. It cannot be pickled, and no encoder of JSON or MessagePack takes it: what
    leaves the process does so on purpose. Equal texts are equal secrets.

    Parameters
    ----------
    text:
        The text; a secret stays as it is. Of the empty one ``bool`` is false.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str | Secret = "") -> None:
        self._text: str = text._text if isinstance(text, Secret) else text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(errors="replace"), other._text.encode(errors="replace"))

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __repr__(self) -> str:
        return MASK if self._text else "''"

    __str__ = __repr__

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, _: object) -> Secret:
        return self

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("a secret does not leave its process: send its name, or reveal it on purpose")


NONE = Secret()
"""The empty secret."""


def revealed(value: Any) -> Any:
    """A value with the texts of its secrets in it: what goes to a library that takes them."""
    if isinstance(value, Mapping):
        return {name: revealed(each) for name, each in value.items()}
    return value.reveal() if isinstance(value, Secret) else value


def token_in(content: bytes, field: str) -> Secret:
    """The token that a file or a variable holds, without the blanks around it.

    Raises :class:`~distop.errors.InvalidArgument`, naming the field, for what a header cannot carry.
    """
    text = content.decode("ascii", errors="replace").strip()
    if not text or len(text) > MAX_TOKEN_BYTES or not text.isascii() or not text.isprintable():
        raise InvalidArgument(f"{field}: this is no token that can be sent", details={"field": field})
    return Secret(text)
