"""The private names of pyiceberg and fsspec that distop uses, but for those that need Arrow
(:mod:`distop.lake.pyiceberg_arrow`): no other module touches one.

Neither library guarantees them. An upgrade that breaks something breaks it here.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any
from uuid import UUID

import fsspec
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import DoubleReader, UUIDReader
from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.transforms import _base64encode, _human_string
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import IcebergType, UUIDType

if TYPE_CHECKING:
    import pyarrow as pa


# Every reader of manifests in this process, pyiceberg's own planning as well, reads partition values by the
# next two functions: this module is imported before any file can be opened (distop.lake.layout.model).


def _read_double(self: DoubleReader, decoder: BinaryDecoder) -> float:
    """pyiceberg's compiled decoder (0.12) rounds to 32 bits: partitions by numbers would not be found, and a
    manifest that is written again would give rows other values, since readers take them from there."""
    number: float = struct.unpack("<d", decoder.read(8))[0]
    return number


def _read_uuid(self: UUIDReader, decoder: BinaryDecoder) -> bytes:
    """Bytes, as in pyiceberg's own literals and bounds: a ``UUID`` equals none of them, and filters would
    exclude its file."""
    return decoder.read(16)


@_human_string.register(bytes)
def _shown(value: bytes, kind: IcebergType) -> str:
    return str(UUID(bytes=value)) if isinstance(kind, UUIDType) else _base64encode(value)


DoubleReader.read = _read_double  # type: ignore[method-assign]
UUIDReader.read = _read_uuid  # type: ignore[method-assign, assignment]


UNCHECKED = (AttributeError, LookupError, TypeError)
"""What pyiceberg's validators may raise, in addition to pydantic's errors, for JSON of a wrong shape, since
they do not check types."""


def open_file_system(protocol: str, url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The file system of a URL and the path within it. The URL itself may hold further options.

    fsspec's public function (``url_to_fs``) would read ``::`` in a name as a chain of file systems.
    """
    kind = fsspec.get_filesystem_class(protocol)
    return fsspec.filesystem(
        protocol, **{**kind._get_kwargs_from_urls(url), **options}
    ), kind._strip_protocol(url)


class StagingCatalog(MetastoreCatalog):
    """A catalog that stages changes of tables as pyiceberg's own catalogs do, under public names."""

    def file_io(self, location: str, properties: Properties = EMPTY_DICT) -> FileIO:
        """Access to the files at and below a location."""
        return super()._load_file_io(properties, location)

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return self.file_io(location or "", properties)

    def location_of_new(self, location: str | None, namespace: str, table: str) -> str:
        """Where a table that is to be created will live."""
        return super()._resolve_table_location(location, namespace, table)

    def _resolve_table_location(self, location: str | None, database_name: str, table_name: str) -> str:
        return self.location_of_new(location, database_name, table_name)

    def stage_new(self, identifier: str | Identifier, *parts: Any) -> StagedTable:
        """A new table, from the arguments of ``create_table``."""
        return self._create_staged_table(identifier, *parts)

    def _create_staged_table(self, identifier: str | Identifier, *parts: Any, **named: Any) -> StagedTable:
        staged = super()._create_staged_table(identifier, *parts, **named)
        # pyiceberg joins the namespaces to one part, which would name another table.
        staged._identifier = self.identifier_to_tuple(identifier)
        return staged

    def stage_update(
        self,
        current: Table | None,
        identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        """The table after the updates. Raises ``CommitFailedException`` if a requirement does not hold, and
        ``ValueError`` for invalid updates."""
        try:
            return self._update_and_stage_table(current, identifier, requirements, updates)
        except (LookupError, StopIteration) as error:  # pyiceberg does not check that named things exist
            raise ValueError(f"an update names what the table does not have: {error}") from error

    def schema_of(self, schema: Schema | pa.Schema) -> Schema:
        """An Iceberg schema; columns of an Arrow schema get ids."""
        return (
            schema
            if isinstance(schema, Schema)
            else assign_fresh_schema_ids(self._convert_schema_if_needed(schema))
        )

    def changed_properties(
        self, properties: Properties, removals: set[str] | None, updates: Properties
    ) -> tuple[PropertiesUpdateSummary, Properties]:
        """Properties of a namespace after a change. Raises ``ValueError`` if one is both removed and set."""
        return self._get_updated_props_and_update_summary(properties, removals, updates)
