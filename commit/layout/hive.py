"""Partition folders as Hive and Spark name them: ``day=2013-01-01/kind=a%2Fb``.

The rules are those of Spark's ``ExternalCatalogUtils``: which characters are escaped, and how NULL is
written.
"""

from __future__ import annotations

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BooleanType, TimestampType, TimestamptzType

from distop.commit.layout.partitioning import PartitionKey
from distop.errors import InvalidArgument

NULL = "__HIVE_DEFAULT_PARTITION__"
"""Means NULL, and the empty text: no folder is called ``name=``."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 32)}


def escaped(text: str) -> str:
    """A name or a value as part of a folder's name."""
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in text)


class PartitionValues:
    """Writes the partition values of one table as text."""

    def __init__(self, schema: Schema, spec: PartitionSpec) -> None:
        self._fields = [
            (field.name, field.transform, schema.find_field(field.source_id).field_type)
            for field in spec.fields
        ]

    def texts(self, key: PartitionKey) -> list[str | None]:
        """The values, one for each partition field, as Spark writes them; ``None`` for NULL."""
        return [self._text(index, value) for index, value in enumerate(key)]

    def _text(self, index: int, value: object) -> str | None:
        _, transform, kind = self._fields[index]
        if value is None:
            return None
        text = str(transform.to_human_string(kind, value))
        if isinstance(transform, IdentityTransform):
            if isinstance(kind, BooleanType):
                return text.lower()
            if isinstance(kind, TimestampType | TimestamptzType):
                return text.removesuffix("+00:00").replace("T", " ")
        return text

    def folder(self, key: PartitionKey) -> str:
        """The folder below the table's location; empty if the table is not partitioned."""
        named = zip(self._fields, self.texts(key), strict=True)
        return "/".join(f"{escaped(field[0])}={escaped(text) if text else NULL}" for field, text in named)


def columns_in_files(schema: Schema, spec: PartitionSpec) -> list[str]:
    """The columns stored in the files: those that are not partition folders.

    Raises :class:`~distop.errors.InvalidArgument` if no column is left.
    """
    in_path = {field.source_id for field in spec.fields if isinstance(field.transform, IdentityTransform)}
    names = [column.name for column in schema.columns if column.field_id not in in_path]
    if not names:
        raise InvalidArgument(
            "all columns are partition columns, and the files would have none",
            details={"field": "partition_by"},
        )
    return names
