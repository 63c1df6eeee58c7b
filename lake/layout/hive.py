"""Partition folders as Hive and Spark name them: ``day=2013-01-01/kind=a%2Fb``, written and read.

The rules are those of Spark's ``ExternalCatalogUtils``: which characters are escaped, and how NULL is
written.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote
from uuid import UUID

from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform

from distop.errors import InvalidArgument
from distop.lake.layout.partitioning import PartitionKey, identity_columns

NULL = "__HIVE_DEFAULT_PARTITION__"
"""Means NULL. Spark and Hive read no other text as NULL, and no folder as the empty text."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 32)}


def escaped(text: str) -> str:
    """A name or a value as part of a folder's name."""
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in text)


def named_columns(path: str) -> list[str]:
    """The columns whose values the folders of a path name; parameter as of :func:`named_values`."""
    return list(dict.fromkeys(unquote(name) for name, _ in _named(path)))


def named_values(path: str) -> dict[str, str | None]:
    """The values that the folders of a path name, ``None`` for NULL; reverses :meth:`PartitionValues.folder`.

    Parameters
    ----------
    path:
        Of a file, or a URL; its last part is not a folder.

    Raises
    ------
    InvalidArgument
        It names two values for a column, or what is not UTF-8.
    """
    values: dict[str, str | None] = {}
    for quoted, text in _named(path):
        name = unquote(quoted)
        try:
            value = None if text == NULL else unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise _misnamed(path, f"a value for {name!r} that is not UTF-8", name) from None
        if values.setdefault(name, value) != value:
            raise _misnamed(path, f"two values for {name!r}", name)
    return values


def _named(path: str) -> Iterator[tuple[str, str]]:
    """Names and values as they are quoted."""
    for folder in path.split("/")[:-1]:
        name, _, text = folder.partition("=")
        if name and text:
            yield name, text


def _misnamed(path: str, named: str, column: str) -> InvalidArgument:
    return InvalidArgument(
        f"the folders of {path} name {named}", details={"field": "paths", "column": column}
    )


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
            if isinstance(kind, iceberg.UUIDType):
                return str(UUID(bytes=value) if isinstance(value, bytes) else value)
            if isinstance(kind, iceberg.BooleanType):
                return text.lower()
            if isinstance(kind, iceberg.TimestampType | iceberg.TimestamptzType):
                return text.removesuffix("+00:00").replace("T", " ")
        return text

    def folder(self, key: PartitionKey) -> str:
        """The folder below the table's location; empty if the table is not partitioned."""
        named = zip(self._fields, self.texts(key), strict=True)
        return "/".join(f"{escaped(field[0])}={escaped(text) if text else NULL}" for field, text in named)


def columns_in_files(schema: Schema, spec: PartitionSpec) -> list[str]:
    """The columns stored in the files: those that are not partition folders."""
    in_path = _columns_in_path(schema, spec)
    return [column.name for column in schema.columns if column not in in_path]


def never_empty(schema: Schema, spec: PartitionSpec) -> list[str]:
    """The columns of texts that are only in a folder's name, or a table's log: an empty one is NULL there."""
    in_path = _columns_in_path(schema, spec)
    return [column.name for column in in_path if isinstance(column.field_type, iceberg.StringType)]


def check_folders(schema: Schema, spec: PartitionSpec) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if partitions cannot be folders: no column is left for
    the files, or values are bytes, which have no text that all readers agree on."""
    if not columns_in_files(schema, spec):
        raise InvalidArgument(
            "all columns are partition columns, and the files would have none",
            details={"field": "partition_by"},
        )
    for field, kind in zip(spec.fields, spec.partition_type(schema).fields, strict=True):
        if isinstance(kind.field_type, iceberg.BinaryType | iceberg.FixedType):
            raise InvalidArgument(
                f"partition {field.name!r} has values of type {kind.field_type}, which cannot name a folder",
                hint="partition by another column, or by bucket[N] of this one where the format allows it",
                details={"field": "partition_by"},
            )


def _columns_in_path(schema: Schema, spec: PartitionSpec) -> list[iceberg.NestedField]:
    ids = identity_columns(spec)
    return [column for column in schema.columns if column.field_id in ids]
