"""Names that people give to tables, types, objects and partitions: which are allowed."""

from __future__ import annotations

import re
import unicodedata

from distop.errors import InvalidName

MAX_NAME_BYTES = 512
"""Longest name of a table, object, partition or request, in UTF-8 bytes before escaping."""

DEFAULT_NAMESPACE = "default"
"""Of the catalog; holds the tables whose name has no dot."""

TABLE_WORDS = frozenset(
    {
        "table",
        "coordinator",
        "runOps",
        "head",
        "watermarks",
        "ordering",
        "backlog",
        "applied",
        "unordered",
        "request",
        "requestExpiry",
        "history",
        "series",
        "index",
        "pause",
        "schedule",
        "auditTrail",
    }
)
"""What may follow the name of a table in a key, besides the types of operations."""

_OPERATION_WORDS = frozenset(
    {
        "arg",
        "state",
        "commit",
        "completion",
        "resolve",
        "runner",
        "cancel",
        "error",
        "plan",
        "nextInstanceId",
        "pause",
        "run",
        "jobCounts",
    }
)
"""What may follow the number of an operation in a key, besides objects and partitions."""

_TYPE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it can be a name in etcd, else raise :class:`InvalidName` that says why."""
    if not name:
        raise InvalidName(f"{what} is empty", details={"field": what})
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{what} is not valid unicode", details={"field": what}) from None
    if size > MAX_NAME_BYTES:
        raise InvalidName(
            f"{what} is {size} bytes long, the longest allowed is {MAX_NAME_BYTES}", details={"field": what}
        )
    if name.startswith("_"):
        raise InvalidName(f"{what} {name!r} begins with '_', which is reserved", details={"field": what})
    return name


def check_table_name(name: str, what: str = "table") -> str:
    """The one spelling of a table's name, else :class:`InvalidName`.

    Its parts, separated by dots, are namespaces of the catalog and the name in the last of them. A name of
    one part is in the namespace ``default``, which may be written: ``default.flights`` is ``flights``.
    """
    check_name(name, what)
    parts = name.split(".")
    if not all(part.strip() for part in parts):
        raise InvalidName(f"{what} {name!r} has an empty part", details={"field": what})
    if len(parts) == 2 and parts[0] == DEFAULT_NAMESPACE:
        return check_name(parts[1], what)
    return name


def check_type(name: str) -> str:
    """An operation type: a letter, then letters, digits, '-' or '_'; not a word that distop uses itself."""
    if not _TYPE_NAME.fullmatch(name) or name in TABLE_WORDS:
        raise InvalidName(f"{name!r} cannot be the name of an operation type", details={"field": "type"})
    return name


def check_object(name: str) -> str:
    """An object id begins with a letter, so that it is never taken for an instance number."""
    check_name(name, "object")
    if not name[0].isalpha() or name in _OPERATION_WORDS:
        raise InvalidName(
            f"object {name!r} must begin with a letter and not be a reserved word",
            details={"field": "object"},
        )
    return name


def check_partition(name: str) -> str:
    """A partition id is any name that is not a word used below an operation."""
    check_name(name, "partition")
    if name in _OPERATION_WORDS:
        raise InvalidName(f"partition {name!r} is a reserved word", details={"field": "partitions"})
    return name


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
