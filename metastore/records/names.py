"""Names of tables, operations, objects and partitions: which are allowed, and how they become parts of keys.

A component's own dots, percent signs, spaces, control and non-ASCII bytes are percent-encoded, so that a key
is readable in ``etcdctl`` and can be split at its dots in only one way.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass
from urllib.parse import quote, unquote

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

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode: control and format characters (direction marks among them), unassigned ones, and
line separators."""

# Printable ASCII that needs no escaping, in addition to letters, digits and "_-~", which quote() always
# keeps. "." separates, "%" escapes, "/" stays readable since names are often paths.
_SAFE = "!#$&'()*+,/:;<=>?@[]^`{|}\\\""

_INSTANCE = re.compile(r"[1-9][0-9]{0,17}")


def check_name(name: str, field: str) -> str:
    """Return ``name`` if it is valid in etcd, else raise :class:`InvalidName` with the reason."""
    if not name:
        raise InvalidName(f"{field} is empty", details={"field": field})
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{field} is not valid unicode", details={"field": field}) from None
    if size > MAX_NAME_BYTES:
        raise InvalidName(
            f"{field} is {size} bytes long, the longest allowed is {MAX_NAME_BYTES}", details={"field": field}
        )
    if name.startswith("_"):
        raise InvalidName(f"{field} {name!r} begins with '_', which is reserved", details={"field": field})
    return name


def check_table_name(name: str, field: str = "table") -> str:
    """The canonical form of a table's name, else :class:`InvalidName`.

    Its parts, separated by dots, are namespaces of the catalog and the name in the last of them. A name of
    one part is in the namespace ``default``, which may be given: ``default.flights`` is ``flights``.
    """
    check_name(name, field)
    parts = name.split(".")
    if not all(part.strip() for part in parts):
        raise InvalidName(
            f"{field} {name!r} has an empty part", hint=_instead(name), details={"field": field}
        )
    if len(parts) == 2 and parts[0] == DEFAULT_NAMESPACE:
        return check_name(parts[1], field)
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


def check_new_name(name: str, field: str) -> str:
    """Return ``name`` if a new table may have it.

    Raises
    ------
    InvalidName
        It could be confused with another name: parts between dots or slashes that are empty or ``..``, blanks
        at an end, invisible characters, a Unicode spelling that is not NFC.
    """
    check_name(name, field)
    if reason := _misleading(name):
        raise InvalidName(f"{field} {name!r} {reason}", hint=_instead(name), details={"field": field})
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
    left = _SEPARATORS.sub(lambda match: match[1], name).strip("/. ")
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


def escape(name: str) -> str:
    """One name as one component of a key."""
    if name.isascii() and name.isalnum():
        return name  # most partitions are numbers, and there may be a hundred thousand
    return _quoted(name)


@functools.lru_cache(maxsize=4096)
def _quoted(name: str) -> str:
    return quote(name, safe=_SAFE).replace(".", "%2E")


def unescape(component: str) -> str:
    """The name in a component of a key."""
    return unquote(component, errors="strict") if "%" in component else component


def prefix_end(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with ``prefix``."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


@dataclass(frozen=True, slots=True, order=True)
class OperationId:
    """Names one operation: ``table/type/instance`` or ``table/type/object/instance``."""

    table: str
    type: str
    instance: int
    object: str = ""

    def __str__(self) -> str:
        names = (self.table, self.type, self.object) if self.object else (self.table, self.type)
        path = "/".join(names)
        if "%" in path or path.count("/") >= len(names):
            path = "/".join(name.replace("%", "%25").replace("/", "%2F") for name in names)
        return f"{path}/{self.instance}"

    @property
    def slot(self) -> str:
        """Its form in ``runOps``: ``"17"`` or ``"tailnum.3"``."""
        return f"{escape(self.object)}.{self.instance}" if self.object else str(self.instance)

    @classmethod
    def parse(cls, text: str) -> OperationId:
        """The inverse of ``str``: slashes inside names are written ``%2F``, percent signs ``%25``.

        Raises :class:`InvalidName` for any other text, which must not become a key.
        """
        try:
            parts = [unescape(part) for part in text.split("/")]
        except UnicodeDecodeError:
            parts = []
        if len(parts) not in (3, 4) or not _INSTANCE.fullmatch(parts[-1]):
            raise InvalidName(
                f"{text[:200]!r} is not the name of an operation",
                hint="write table/type/instance or table/type/object/instance",
                details={"field": "name"},
            )
        obj = check_object(parts[2]) if len(parts) == 4 else ""
        return cls(check_table_name(parts[0]), check_type(parts[1]), int(parts[-1]), obj)

    @classmethod
    def from_slot(cls, table: str, type_name: str, slot: str) -> OperationId:
        """The operation with this ``slot`` in the table's ``runOps``."""
        head, _, tail = slot.rpartition(".")
        return cls(table, type_name, int(tail), unescape(head))
