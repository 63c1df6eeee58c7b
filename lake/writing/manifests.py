"""Iceberg manifests: how jobs write them, and how a commit adopts them.

A job lists its data files in one manifest. Its entries omit the snapshot id and the sequence numbers, so they
inherit those of the snapshot that lists the manifest (Iceberg specification, "Manifest Entry Inheritance"): a
commit adopts manifests without rewriting an entry.

Many small manifests are merged into few without decoding an entry either: an Avro file is a header and blocks
that end in the file's sync marker (Avro specification, "Object Container Files"), so blocks of files with the
same schema and codec can follow one header.
"""

from __future__ import annotations

import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from typing import Any

import msgspec
from pydantic_core import to_json
from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader, construct_writer
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldStats,
    PartitionFieldSummary,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from distop.errors import CorruptRecord
from distop.lake.layout.model import Layout
from distop.lake.layout.properties import FORMAT_VERSION


class PartitionSummaries:
    """The range of partition values in a manifest, one summary per partition field."""

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        kinds = [field.field_type for field in spec.partition_type(schema).fields]
        self._kinds = [kind for kind in kinds if isinstance(kind, PrimitiveType)]
        self._stats = [PartitionFieldStats(kind) for kind in self._kinds]

    def add(self, values: Iterable[Any]) -> None:
        """Include one file's partition values."""
        for stats, value in zip(self._stats, values, strict=True):
            stats.update(value)

    def merge(self, others: Sequence[PartitionFieldSummary]) -> None:
        """Include another manifest's summaries."""
        for kind, stats, other in zip(self._kinds, self._stats, others, strict=True):
            for bound in (other.lower_bound, other.upper_bound):
                if bound is not None:
                    stats.update(from_bytes(kind, bound))
            if other.contains_null:
                stats.update(None)
            if other.contains_nan:
                stats.update(float("nan"))

    def build(self) -> list[PartitionFieldSummary]:
        return [stats.to_summary() for stats in self._stats]


def summaries_to_json(summaries: Sequence[PartitionFieldSummary]) -> list[list[Any]]:
    """``[[contains null, contains NaN, lower bound, upper bound], ...]``, bounds in base 64 or ``None``."""
    return [
        [bool(s.contains_null), bool(s.contains_nan), _text(s.lower_bound), _text(s.upper_bound)]
        for s in summaries
    ]


def summaries_from_json(value: Sequence[Sequence[Any]]) -> list[PartitionFieldSummary]:
    return [
        PartitionFieldSummary(null, nan, _bytes(lower), _bytes(upper)) for null, nan, lower, upper in value
    ]


def _bytes(bound: str | None) -> bytes | None:
    # An empty string is a bound: the empty text.
    return None if bound is None else b64decode(bound)


def _text(bound: bytes | None) -> str | None:
    return None if bound is None else b64encode(bound).decode()


BLOCK_BYTES = 64 * 1024
"""Entries are compressed together up to this size."""

_SUMMARIES = "distop.partitions"
"""Header key of the partition summaries in a job's manifest."""

_header_writer = construct_writer(META_SCHEMA)
_header_reader = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


# -- writing -----------------------------------------------------------------------------------------


class ManifestBuilder:
    """Collects encoded and compressed manifest entries, and writes them as one manifest.

    Parameters
    ----------
    snapshot_id:
        Snapshot that writes it; ``None`` for a job's manifest, which inherits it.
    """

    def __init__(
        self,
        schema: Schema,
        spec: PartitionSpec,
        *,
        snapshot_id: int | None = None,
        content: ManifestContent = ManifestContent.DATA,
    ) -> None:
        self._schema = schema
        self._spec = spec
        self._snapshot_id = snapshot_id
        self._content = content
        data_file = data_file_with_partition(spec.partition_type(schema), FORMAT_VERSION)
        self._entry_schema = manifest_entry_schema_with_data_file(FORMAT_VERSION, data_file)
        self._writer = construct_writer(self._entry_schema)
        self._blocks: list[tuple[int, bytes]] = []
        self._pending = BytesIO()
        self._pending_entries = 0
        self._summaries = PartitionSummaries(spec, schema)
        self._oldest: int | None = None
        self.files = dict.fromkeys(ManifestEntryStatus, 0)
        self.rows = dict.fromkeys(ManifestEntryStatus, 0)

    @property
    def empty(self) -> bool:
        return not any(self.files.values())

    def summaries(self) -> list[PartitionFieldSummary]:
        return self._summaries.build()

    def add(self, data_file: DataFile) -> None:
        """List a file that the snapshot adds."""
        self._put(ManifestEntryStatus.ADDED, data_file, self._snapshot_id, None, None)

    def remove(self, entry: ManifestEntry) -> None:
        """List a file of an earlier snapshot that this one removes."""
        self._put(
            ManifestEntryStatus.DELETED,
            entry.data_file,
            self._snapshot_id,
            entry.sequence_number,
            entry.file_sequence_number,
        )

    def keep(self, entry: ManifestEntry) -> None:
        """List a file of an earlier snapshot that stays in the table."""
        if entry.sequence_number is not None:
            known = self._oldest
            self._oldest = entry.sequence_number if known is None else min(known, entry.sequence_number)
        self._put(
            ManifestEntryStatus.EXISTING,
            entry.data_file,
            entry.snapshot_id,
            entry.sequence_number,
            entry.file_sequence_number,
        )

    def _put(
        self,
        status: ManifestEntryStatus,
        data_file: DataFile,
        snapshot_id: int | None,
        sequence_number: int | None,
        file_sequence_number: int | None,
    ) -> None:
        entry = ManifestEntry(status, snapshot_id, sequence_number, file_sequence_number, data_file)
        self._writer.write(BinaryEncoder(self._pending), entry)
        self._pending_entries += 1
        self._summaries.add(data_file.partition[i] for i in range(len(self._spec.fields)))
        self.files[status] += 1
        self.rows[status] += data_file.record_count
        if self._pending.tell() >= BLOCK_BYTES:
            self._close_block()

    def _close_block(self) -> None:
        if self._pending_entries:
            self._blocks.append((self._pending_entries, _deflate(self._pending.getvalue())))
            self._pending, self._pending_entries = BytesIO(), 0

    def write(self, io: FileIO, path: str) -> ManifestFile:
        """Write the manifest; return its entry for a manifest list."""
        self._close_block()
        summaries = self.summaries()
        meta = {
            **self._header(),
            _SUMMARIES: msgspec.json.encode(summaries_to_json(summaries)).decode(),
        }
        length = _write_container(io, path, meta, self._blocks)

        def counted(status: ManifestEntryStatus) -> tuple[int, int]:
            return self.files[status], self.rows[status]

        return _manifest_file(
            path,
            length,
            self._spec.spec_id,
            self._snapshot_id or 0,
            added=counted(ManifestEntryStatus.ADDED),
            existing=counted(ManifestEntryStatus.EXISTING),
            deleted=counted(ManifestEntryStatus.DELETED),
            oldest=self._oldest,
            summaries=summaries,
            content=self._content,
        )

    def _header(self) -> dict[str, str]:
        """The header of the file, without the parts that depend on its content."""
        return {
            "schema": self._schema.model_dump_json(),
            "schema-id": str(self._schema.schema_id),
            "partition-spec": to_json(self._spec.fields).decode(),
            "partition-spec-id": str(self._spec.spec_id),
            "format-version": str(FORMAT_VERSION),
            "content": self._content.name.lower(),
            "avro.schema": msgspec.json.encode(
                AvroSchemaConversion().iceberg_to_avro(self._entry_schema, schema_name="manifest_entry")
            ).decode(),
            AVRO_CODEC_KEY: "deflate",
        }

    def header_digest(self) -> str:
        """Equal for manifests with the same entry encoding: 8 hexadecimal digits."""
        return f"{zlib.crc32(msgspec.json.encode(self._header(), order='deterministic')):08x}"

    def packed_entries(self, limit: int) -> bytes | None:
        """All entries, encoded and compressed, up to this many bytes; ``None`` if there are more."""
        if self._blocks:
            return None
        packed = _deflate(self._pending.getvalue())
        return packed if len(packed) <= limit else None

    def take(self, inline: InlineManifest) -> None:
        """Adopt packed entries of another builder with the same header."""
        self._pending.write(zlib.decompress(inline.entries, wbits=-15))
        self._pending_entries += inline.files
        self._summaries.merge(inline.summaries)
        self.files[ManifestEntryStatus.ADDED] += inline.files
        self.rows[ManifestEntryStatus.ADDED] += inline.rows
        if self._pending.tell() >= BLOCK_BYTES:
            self._close_block()


def _deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()


def _write_container(io: FileIO, path: str, meta: dict[str, str], blocks: Iterable[tuple[int, bytes]]) -> int:
    """Write an Avro file of finished blocks; return its length in bytes."""
    buffer = BytesIO()
    encoder = BinaryEncoder(buffer)
    sync = os.urandom(SYNC_SIZE)
    _header_writer.write(encoder, AvroFileHeader(MAGIC, meta, sync))
    for count, content in blocks:
        encoder.write_int(count)
        encoder.write_bytes(content)
        encoder.write(sync)
    with io.new_output(path).create(overwrite=True) as stream:
        stream.write(buffer.getvalue())
    return buffer.tell()


def _manifest_file(
    path: str,
    length: int,
    spec_id: int,
    snapshot_id: int,
    *,
    added: tuple[int, int] = (0, 0),
    existing: tuple[int, int] = (0, 0),
    deleted: tuple[int, int] = (0, 0),
    oldest: int | None = None,
    summaries: list[PartitionFieldSummary],
    content: ManifestContent = ManifestContent.DATA,
) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=path,
        manifest_length=length,
        partition_spec_id=spec_id,
        content=content,
        sequence_number=UNASSIGNED_SEQ,
        min_sequence_number=UNASSIGNED_SEQ if oldest is None else oldest,
        added_snapshot_id=snapshot_id,
        added_files_count=added[0],
        existing_files_count=existing[0],
        deleted_files_count=deleted[0],
        added_rows_count=added[1],
        existing_rows_count=existing[1],
        deleted_rows_count=deleted[1],
        partitions=summaries,
        key_metadata=None,
    )


# -- taking over -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TaskManifest:
    """A job's manifest, as the job's result describes it."""

    path: str
    length: int
    files: int
    rows: int
    summaries: list[PartitionFieldSummary] | None = None
    """``None`` if the result had no room for them; the manifest's header has them."""


@dataclass(frozen=True, kw_only=True)
class InlineManifest:
    """The entries of a job, stored in the job's result instead of a manifest."""

    entries: bytes
    """The value of :meth:`ManifestBuilder.packed_entries`."""
    header: str
    """The value of :meth:`ManifestBuilder.header_digest`."""
    files: int
    rows: int
    summaries: list[PartitionFieldSummary]


@dataclass(frozen=True, kw_only=True)
class OpenManifest:
    """A job's manifest, read and verified: header and blocks, no entry decoded."""

    manifest: TaskManifest
    meta: dict[str, str]
    """The header, without the parts that depend on this file."""
    summaries: list[PartitionFieldSummary]
    blocks: list[tuple[int, bytes]]
    """Number of entries and compressed content of each block."""


def open_manifest(io: FileIO, manifest: TaskManifest) -> OpenManifest:
    """Read a job's manifest.

    Raises :class:`~distop.errors.CorruptRecord` if it is missing, truncated, or not what its job reported.
    """
    try:
        with io.new_input(manifest.path).open() as stream:
            content = stream.read()
        return _parse(manifest, content)
    except FileNotFoundError as error:
        raise CorruptRecord(f"the manifest {manifest.path} of a finished job is missing") from error
    except (EOFError, IndexError, KeyError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptRecord(f"{manifest.path} is not the manifest that its job wrote: {error}") from error


def _parse(manifest: TaskManifest, content: bytes) -> OpenManifest:
    if len(content) != manifest.length:
        raise ValueError(f"it has {len(content)} bytes instead of {manifest.length}")
    decoder = new_decoder(content)
    header = _header_reader.read(decoder)
    meta = dict(header.meta)
    summaries = summaries_from_json(msgspec.json.decode(meta.pop(_SUMMARIES)))
    blocks = []
    while decoder.tell() < len(content):
        blocks.append((decoder.read_int(), decoder.read_bytes()))
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block does not end where it should")
    if (files := sum(count for count, _ in blocks)) != manifest.files:
        raise ValueError(f"it lists {files} files instead of {manifest.files}")
    return OpenManifest(manifest=manifest, meta=meta, summaries=summaries, blocks=blocks)


def adopt(io: FileIO, manifest: TaskManifest, spec_id: int, snapshot_id: int) -> ManifestFile:
    """A job's manifest as a manifest of a snapshot, at its present place."""
    summaries = manifest.summaries
    if summaries is None:
        summaries = open_manifest(io, manifest).summaries
    added = (manifest.files, manifest.rows)
    return _manifest_file(
        manifest.path, manifest.length, spec_id, snapshot_id, added=added, summaries=summaries
    )


def join(
    io: FileIO,
    opened: Sequence[OpenManifest],
    layout: Layout,
    snapshot_id: int,
    new_path: Callable[[], str],
) -> list[ManifestFile]:
    """Write jobs' manifests as one; or one per header, if different versions of distop wrote them."""
    groups: dict[bytes, list[OpenManifest]] = {}
    for manifest in opened:
        groups.setdefault(msgspec.json.encode(manifest.meta, order="deterministic"), []).append(manifest)
    joined = []
    for members in groups.values():
        summaries = PartitionSummaries(layout.spec, layout.schema)
        for manifest in members:
            summaries.merge(manifest.summaries)
        path = new_path()
        length = _write_container(io, path, members[0].meta, chain.from_iterable(m.blocks for m in members))
        added = (sum(m.manifest.files for m in members), sum(m.manifest.rows for m in members))
        joined.append(
            _manifest_file(
                path, length, layout.spec.spec_id, snapshot_id, added=added, summaries=summaries.build()
            )
        )
    return joined
