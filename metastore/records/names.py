"""Names that people give: one way to write each, and nothing in it that cannot be seen."""

from __future__ import annotations

import unicodedata

from distop.errors import InvalidName
from distop.metastore.records.keyspace import check_name

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode: control and format characters (marks of direction among them), what has no meaning
of its own, and separators of lines."""


def check_new_name(name: str, what: str) -> str:
    """Return ``name`` if a new table may have it.

    Raises
    ------
    InvalidName
        It would be taken for another name, or for none: parts between dots or slashes that are empty or
        ``..``, blanks at an end, characters that are not seen, a spelling of Unicode that is not NFC.
    """
    check_name(name, what)
    parts = name.split(".")
    if not all(part.strip(" ") for part in parts):
        reason = "has an empty part: dots stand between names"
    elif not all(part.replace("%2E", "") for part in parts):
        reason = "has a part of nothing but dots, which reads as a path"
    elif {"", ".", ".."}.intersection(name.split("/")):
        reason = "reads as a path that goes elsewhere"
    else:
        reason = unreadable(name)
    if reason:
        raise InvalidName(f"{what} {name!r} {reason}", details={"field": what})
    return name


def unreadable(name: str) -> str:
    """What keeps people from reading a name as what it is; empty: nothing."""
    for letter in name:
        category = unicodedata.category(letter)
        if category in _UNSEEN or (category == "Zs" and letter != " "):
            return f"holds the character U+{ord(letter):04X}, which cannot be seen"
    if name != name.strip(" "):
        return "begins or ends with a blank"
    if not unicodedata.is_normalized("NFC", name):
        return f"is not in the normal form NFC of Unicode: write {unicodedata.normalize('NFC', name)!r}"
    return ""
