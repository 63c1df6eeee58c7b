"""Rules for the names of tables, types, objects and partitions."""

from __future__ import annotations

import re
import unicodedata

from distop.errors import InvalidName

MAX_NAME_BYTES = 512
"""Longest name of a table, object, partition or request, in UTF-8 bytes before escaping."""

DEFAULT_NAMESPACE = "default"
"""The catalog's default namespace; holds the tables whose name has no dot."""

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
        "undone",
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
"""Components that may follow the name of a table in a key, apart from operation types."""

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
"""Components that may follow the number of an operation in a key, apart from objects and partitions."""

_SEPARATORS = re.compile(r"([/.])[/. ]+")
_TYPE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it is valid in etcd, else raise :class:`InvalidName` with the reason."""
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
    """The canonical form of a table's name, else :class:`InvalidName`.

    Its parts, separated by dots, are namespaces of the catalog and the name in the last of them. A name of
    one part is in the namespace ``default``, which may be given: ``default.flights`` is ``flights``.
    """
    check_name(name, what)
    parts = name.split(".")
    if not all(part.strip() for part in parts):
        raise InvalidName(f"{what} {name!r} has an empty part", hint=_instead(name), details={"field": what})
    if len(parts) == 2 and parts[0] == DEFAULT_NAMESPACE:
        return check_name(parts[1], what)
    return name


def check_type(name: str) -> str:
    """An operation type: a letter, then letters, digits, '-' or '_'; not a word that distop uses itself."""
    if not _TYPE_NAME.fullmatch(name) or name in TABLE_WORDS:
        raise InvalidName(f"{name!r} cannot be the name of an operation type", details={"field": "type"})
    return name


def check_object(name: str) -> str:
    """An object id begins with a letter, so that it differs from every instance number."""
    check_name(name, "object")
    if not name[0].isalpha() or name in _OPERATION_WORDS:
        raise InvalidName(
            f"object {name!r} must begin with a letter and not be a reserved word",
            details={"field": "object"},
        )
    return name


def check_partition(name: str) -> str:
    """A partition id is any name except the words used below an operation."""
    check_name(name, "partition")
    if name in _OPERATION_WORDS:
        raise InvalidName(f"partition {name!r} is a reserved word", details={"field": "partitions"})
    return name


_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode: control and format characters (direction marks among them), unassigned ones, and
line separators."""


def check_new_name(name: str, what: str) -> str:
    """Return ``name`` if a new table may have it.

    Raises
    ------
    InvalidName
        It could be confused with another name: parts between dots or slashes that are empty or ``..``, blanks
        at an end, invisible characters, a Unicode spelling that is not NFC.
    """
    check_name(name, what)
    if reason := _misleading(name):
        raise InvalidName(f"{what} {name!r} {reason}", hint=_instead(name), details={"field": what})
    return name


def _misleading(name: str) -> str:
    """Why a name could be confused with another one; empty: it cannot."""
    parts = name.split(".")
    if not all(part.strip(" ") for part in parts):
        return "has an empty part: dots separate names"
    if not all(part.replace("%2E", "") for part in parts):
        return "has a part that consists of dots, like a path"
    if {"", ".", ".."}.intersection(name.split("/")):
        return "looks like a path that leads elsewhere"
    return unreadable(name)


def _instead(name: str) -> str:
    """The hint for a name with empty parts: the name without them, if a table may have that."""
    left = _SEPARATORS.sub(lambda found: found[1], name).strip("/. ")
    return f"write {left!r}" if left and not left.startswith("_") and not _misleading(left) else ""


def unreadable(name: str) -> str:
    """Why a name could be misread; empty: it cannot."""
    for letter in name:
        category = unicodedata.category(letter)
        if category in _UNSEEN or (category == "Zs" and letter != " "):
            return f"contains the invisible character U+{ord(letter):04X}"
    if name != name.strip(" "):
        return "begins or ends with a blank"
    if not unicodedata.is_normalized("NFC", name):
        return f"is not in the normal form NFC of Unicode: write {unicodedata.normalize('NFC', name)!r}"
    return ""
