"""Streams what is published to a table, for Structured Streaming.

An offset is a position in the table's history: a snapshot, and how many of its files were read. Spark stores
offsets in the query's checkpoint and requests the same range again after a crash; snapshots and their files
never change, so it gets the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from distop.client import Client
from distop.errors import Conflict, CorruptRecord, PreconditionFailed
from distop.lake.iceberg.content import named
from distop.lake.layout.model import file_io, load_metadata
from distop.spark.options import ReadOptions
from distop.spark.read import FileSplit, read_files, splits_of
from distop.spark.target import connect, find_table, storage_options
from distop.spark_jobs.tables.snapshot import PlannedFile, TableSnapshot, snapshot_of

ALL = -1
"""In an offset: all files of its snapshot were read."""
MAX_REMEMBERED = 64
"""Snapshots whose files a query caches."""


@dataclass(frozen=True, kw_only=True)
class Offset:
    """How far a query has read."""

    snapshot: int | None = None
    """``None``: nothing yet."""
    files: int = ALL
    """How many of its files were read, in the order of their paths."""
    whole: bool = False
    """Whether these are all files of the snapshot; otherwise those that it has added."""

    def to_json(self) -> dict[str, Any]:
        # A string: not every JSON reader supports 64-bit numbers.
        snapshot = "" if self.snapshot is None else str(self.snapshot)
        return {"snapshot": snapshot, "files": self.files, "whole": self.whole}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Offset:
        snapshot = str(value["snapshot"])
        return cls(
            snapshot=int(snapshot) if snapshot else None,
            files=int(value["files"]),
            whole=bool(value["whole"]),
        )


@dataclass
class StreamSplit(FileSplit):
    """The part of a batch that one task reads."""

    table: TableSnapshot


class History:
    """The snapshots of a table, from one metadata file."""

    def __init__(self, metadata: TableMetadata, storage: dict[str, Any], *, ignore_overwrites: bool) -> None:
        self.metadata = metadata
        self._storage = storage
        self._ignore_overwrites = ignore_overwrites
        self._files: dict[Offset, list[PlannedFile]] = {}

    def between(self, start: int | None, end: int | None) -> list[Snapshot]:
        """The snapshots after ``start`` up to ``end``, oldest first.

        Raises :class:`~distop.errors.PreconditionFailed` if ``start`` is not an ancestor of ``end``, or if
        there may have been others between them.
        """
        found: list[Snapshot] = []
        at = end
        while at is not None and at != start:
            snapshot = self.metadata.snapshot_by_id(at)
            if snapshot is None:
                break
            found.append(snapshot)
            at = snapshot.parent_snapshot_id
        if at != start or (at is None and found and not self._is_first(found[-1])):
            raise PreconditionFailed(
                f"what was published to {self.metadata.location} since {named(start)} is unknown: "
                "the table was rolled back, or snapshots have expired",
                hint="start a new query, with a new checkpoint",
                details={"snapshot": str(start)},
            )
        return found[::-1]

    def _is_first(self, snapshot: Snapshot) -> bool:
        """Whether the table held nothing before it.

        A snapshot whose parent has expired has none, as the first one. But each snapshot takes the next
        sequence number (specification, "Sequence Numbers"): those before it must all be of snapshots that are
        known, and never were the table's. Snapshots of format 1 have none, and those of a later format are
        numbered from 1: it is the files of others that say what was there before.
        """
        if not snapshot.sequence_number:
            return self._is_first_by_log(snapshot)
        published = {entry.snapshot_id for entry in self.metadata.snapshot_log}
        others = (one for one in self.metadata.snapshots if one.snapshot_id not in published)
        aside = {one.sequence_number for one in others}
        if not all(number in aside for number in range(1, snapshot.sequence_number)):
            return False
        return all(
            one.added_snapshot_id == snapshot.snapshot_id
            and not (one.existing_files_count or one.deleted_files_count)
            for one in snapshot.manifests(file_io(self.metadata.location, self._storage))
        )

    def _is_first_by_log(self, snapshot: Snapshot) -> bool:
        """Whether the metadata files since the table was created say that a snapshot was the first.

        Programs keep some of the last metadata files (100, by default): if those from the beginning are
        gone, there is no proof.
        """
        try:
            for number, at in enumerate(self._versions()):
                if number == 0 and at.metadata_log:
                    return False
                if at.current_snapshot_id is not None:
                    lineage = ancestors_of(at.current_snapshot(), at)
                    return [one.snapshot_id for one in lineage][-1:] == [snapshot.snapshot_id]
        except CorruptRecord:  # missing, or it has what is not known here
            pass
        return False

    def _versions(self) -> Iterator[TableMetadata]:
        """The table's metadata since the earliest file that its log names."""
        for entry in self.metadata.metadata_log:
            yield load_metadata(entry.metadata_file, storage=self._storage)
        yield self.metadata

    def files(self, place: Offset) -> list[PlannedFile]:
        """The files of an offset's snapshot, read or not."""
        key = replace(place, files=ALL)
        if key not in self._files:
            while len(self._files) >= MAX_REMEMBERED:
                del self._files[next(iter(self._files))]
            self._files[key] = self._planned(key)
        return self._files[key]

    def _planned(self, place: Offset) -> list[PlannedFile]:
        if place.snapshot is None:
            return []
        snapshot = self.metadata.snapshot_by_id(place.snapshot)
        if snapshot is None:
            raise PreconditionFailed(
                f"snapshot {place.snapshot} of {self.metadata.location} has expired before it was read",
                hint="start a new query, with a new checkpoint",
                details={"snapshot": str(place.snapshot)},
            )
        table = snapshot_of(self.metadata, snapshot, self._storage)
        if place.whole:
            return table.plan_files()
        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation is Operation.APPEND:
            return table.plan_added()
        if operation is Operation.REPLACE or self._ignore_overwrites:
            return []
        raise Conflict(
            f"snapshot {place.snapshot} of {self.metadata.location} has changed or removed rows that were "
            "there before: a stream cannot show that",
            hint='option("ignoreOverwrites", "true") skips such snapshots',
            details={"snapshot": str(place.snapshot)},
        )

    def advance(self, start: Offset, end: int | None, most: int | None) -> Offset:
        """The offset after the next files, at most this many, up to a snapshot."""
        place, left = start, most
        for following in [None, *self.between(start.snapshot, end)]:
            if following is not None:
                place = Offset(snapshot=following.snapshot_id, files=0)
            if place.files == ALL:
                continue
            unread = len(self.files(place)) - place.files
            if left is not None and unread > left:
                return replace(place, files=place.files + left)
            place = replace(place, files=ALL)
            left = None if left is None else left - unread
        return place

    def range(self, start: Offset, end: Offset) -> Iterator[PlannedFile]:
        """The files after one offset up to another."""
        for place in self._places(start, end):
            first = place.files if place == start else 0
            if first == ALL:
                continue
            last = end.files if (place.snapshot, place.whole) == (end.snapshot, end.whole) else ALL
            yield from self.files(place)[first : None if last == ALL else last]

    def _places(self, start: Offset, end: Offset) -> Iterator[Offset]:
        yield start
        for snapshot in self.between(start.snapshot, end.snapshot):
            yield Offset(snapshot=snapshot.snapshot_id, files=0)


class SnapshotStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One ``spark.readStream``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for name, given in (("snapshotId", options.snapshot_id), ("asOf", options.as_of)):
            if given:
                raise PreconditionFailed(
                    f"{name} names one snapshot, but a stream reads later ones",
                    hint='name the start: option("startingSnapshot", ID)',
                    details={"field": name},
                )
        self._options, self._schema = options, schema
        self._forget()

    def _forget(self) -> None:
        self._client: Client | None = None
        self._read: tuple[str, History | None] = ("", None)
        self._storage: dict[str, Any] = {}
        self._until: tuple[int | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # -- where it stands -------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See :meth:`DataSourceStreamReader.initialOffset`."""
        present, starting = self._present(), self._options.starting_snapshot
        if starting == "present":
            return Offset(snapshot=present, files=0, whole=True).to_json()
        return Offset(snapshot=present if starting == "latest" else int(starting)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """See :meth:`DataSourceStreamReader.getDefaultReadLimit`."""
        return ReadMaxFiles(self._options.files_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """See :meth:`DataSourceStreamReader.latestOffset`."""
        present = self._present()
        history = self._read[1]
        if history is None:
            return start
        end = present if self._until is None else self._until[0]
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        return history.advance(Offset.from_json(start), end, most).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """See :class:`SupportsTriggerAvailableNow`."""
        self._until = (self._present(),)

    def _present(self) -> int | None:
        """The table's present snapshot; reads its metadata if it has changed."""
        if self._client is None:
            self._client = connect(self._options)
        table = find_table(self._client, self._options)
        if table.metadata_location and table.metadata_location != self._read[0]:
            self._storage = storage_options(table, self._options)
            metadata = load_metadata(table.metadata_location, storage=self._storage)
            history = History(metadata, self._storage, ignore_overwrites=self._options.ignore_overwrites)
            self._read = (table.metadata_location, history)
        return table.snapshot_id

    # -- rows ------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """See :meth:`DataSourceStreamReader.partitions`."""
        self._present()
        history = self._read[1]
        if history is None:
            return []
        metadata = history.metadata
        snapshot = metadata.current_snapshot()
        if snapshot is None:
            return []
        table = snapshot_of(metadata, snapshot, self._storage)
        files = list(history.range(Offset.from_json(start), Offset.from_json(end)))
        return [StreamSplit(split.files, table) for split in splits_of(files, self._options.split_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See :meth:`DataSourceStreamReader.read`."""
        if not isinstance(partition, StreamSplit):
            raise TypeError(f"{partition!r} is not a split of this reader")
        return read_files(partition.table, partition.files, self._schema, self._options.filter)

    def commit(self, end: dict[str, Any]) -> None:
        """See :meth:`DataSourceStreamReader.commit`: the checkpoint has everything."""

    def stop(self) -> None:
        """See :meth:`DataSourceStreamReader.stop`."""
        if self._client is not None:
            self._client.close()
            self._client = None
