"""Reads a table's metadata file, within limits, since any caller that registers a table names the file."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

import msgspec
from pydantic import ValidationError as PydanticError
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.view.metadata import ViewMetadata

from distop.errors import CorruptRecord
from distop.lake.layout.properties import FORMAT_VERSION
from distop.lake.layout.schemas import check_types, is_type, unsupported_type
from distop.lake.pyiceberg_private import UNCHECKED
from distop.metastore.records.record import from_json

MAX_METADATA_BYTES = 128 << 20
"""Largest file, decompressed: some hundred thousand snapshots."""

MAX_VIEW_BYTES = 8 << 20
"""Largest view metadata: all stored versions, with their SQL."""

MAX_PARTS = 500_000
"""Most parts of its JSON, in addition to snapshots and logs."""
MAX_MISTAKES = 20
"""Parts that are searched for the first one."""

_GZIP = b"\x1f\x8b"


def metadata_text(io: FileIO, location: str) -> bytes:
    """The content of a metadata file, decompressed.

    Raises ``FileNotFoundError``, and :class:`~distop.errors.CorruptRecord` if it is broken, or larger than
    :data:`MAX_METADATA_BYTES`.
    """
    try:
        with io.new_input(location).open() as stream:
            content: bytes = stream.read(MAX_METADATA_BYTES + 1)
        if content.startswith(_GZIP):
            with gzip.GzipFile(fileobj=BytesIO(content)) as plain:
                content = plain.read(MAX_METADATA_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorruptRecord(f"{location} is not table metadata: {error}") from error
    if len(content) > MAX_METADATA_BYTES:
        raise CorruptRecord(f"{location} has more than {MAX_METADATA_BYTES:,} bytes of metadata")
    return content


def read_metadata(io: FileIO, location: str) -> TableMetadata:
    """A table's metadata. Raises as :func:`metadata_text`, also if it is invalid."""
    text = metadata_text(io, location)
    try:
        _check_parts(text)
        return TableMetadataUtil.parse_raw(text.decode())
    except (ValidationError, PydanticError, UnicodeDecodeError, msgspec.MsgspecError, *UNCHECKED) as error:
        raise not_metadata(location, text, error) from error


def check_columns(metadata: TableMetadata, location: str) -> None:
    """Raise :class:`~distop.errors.UnsupportedType` if distop does not read one of the present columns."""
    schema = metadata.schema_by_id(metadata.current_schema_id)
    if schema is None:  # pyiceberg checks it in newer formats than 1
        raise CorruptRecord(f"{location} has no schema {metadata.current_schema_id}")
    check_types(schema, metadata.location)


def not_metadata(location: str, text: bytes, error: Exception) -> CorruptRecord:
    """The error for the content of a metadata file that cannot be read;
    :class:`~distop.errors.UnsupportedType` if that is because of a column: pyiceberg knows fewer types than
    newer formats have."""
    try:
        described = from_json(text, _Described)
    except msgspec.MsgspecError:
        described = _Described()
    version = described.format_version
    for column, kind in _columns(described.schemas):
        if not is_type(kind):
            return unsupported_type(described.location or location, column, kind)
    newer = f"; it has Iceberg format {version}, which is known here in part"
    return CorruptRecord(
        f"{location} is not table metadata: {_why(error)}{newer if version > FORMAT_VERSION else ''}"
    )


class _Described(msgspec.Struct, rename="kebab"):
    format_version: int = 0
    location: str = ""
    schemas: list[Any] = []


def _columns(schemas: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The columns of schemas that may be invalid, and their primitive types."""
    waiting: list[tuple[str, Any]] = [("", schema) for schema in schemas]
    while waiting:
        path, kind = waiting.pop()
        if isinstance(kind, str):
            yield path.removeprefix("."), kind
        elif isinstance(kind, dict):
            named = {part: kind[part] for part in ("element", "key", "value") if part in kind}
            fields = kind.get("fields")
            for field in fields if isinstance(fields, list) else ():
                if isinstance(field, dict):
                    named[str(field.get("name"))] = field.get("type")
            waiting += [(f"{path}.{name}", inner) for name, inner in named.items()]


def read_view_metadata(io: FileIO, location: str) -> ViewMetadata:
    """A view's metadata. Raises as :func:`read_metadata`, also for more than :data:`MAX_VIEW_BYTES`."""
    text = metadata_text(io, location)
    try:
        if len(text) > MAX_VIEW_BYTES or text.count(b",") > MAX_PARTS:
            raise CorruptRecord(f"{location} is larger than the metadata of a view may be")
        return ViewMetadata.model_validate_json(text)
    except (PydanticError, UnicodeDecodeError, *UNCHECKED) as error:
        raise CorruptRecord(f"{location} is not view metadata: {_why(error)}") from error


class _Snapshot(msgspec.Struct, rename="kebab"):
    snapshot_id: int
    timestamp_ms: int
    manifest_list: str | None = None
    summary: dict[str, str] | None = None


class _Present(msgspec.Struct, rename="kebab"):
    timestamp_ms: int
    snapshot_id: int


class _Earlier(msgspec.Struct, rename="kebab"):
    timestamp_ms: int
    metadata_file: str


_LONG = {"snapshots": _Snapshot, "snapshot-log": _Present, "metadata-log": _Earlier}
"""The parts that grow with the history of a table."""


def _check_parts(text: bytes) -> None:
    """Limit the parts: pydantic reports every mistake, and millions would take much time and memory."""
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    for name, kind in _LONG.items():
        from_json(fields.pop(name, None) or b"null", list[kind] | None)  # type: ignore[valid-type, arg-type]
    if sum(bytes(raw).count(b",") for raw in fields.values()) > MAX_PARTS:
        raise msgspec.ValidationError(f"it has more than {MAX_PARTS:,} parts apart from its history")


def _why(error: Exception) -> str:
    """The error without the file's content, which may be another caller's."""
    inner = error.args[0] if error.args and isinstance(error.args[0], PydanticError) else error
    if isinstance(inner, msgspec.MsgspecError):
        return str(inner)
    if not isinstance(inner, PydanticError) or inner.error_count() > MAX_MISTAKES:
        return type(inner).__name__
    first = inner.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:500].removeprefix(": ")
