"""The name of one operation: table, type, object and instance."""

from __future__ import annotations

import re
from dataclasses import dataclass

from distop.errors import InvalidName
from distop.metastore.records.components import escape, unescape
from distop.metastore.records.names import check_object, check_table_name, check_type

_INSTANCE = re.compile(r"[1-9][0-9]{0,17}")


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
