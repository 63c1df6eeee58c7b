"""Publishes commits: the metadata files of the tables are written, then all their heads move at once.

Files that were certainly not published are removed. If the outcome is unknown, they stay.

pyiceberg applies most updates unseen. The Java library checks a metadata file when it reads it: one wrong
part, and its engines neither read the table nor mend it. Parts that were there before are let be.

Programs of Iceberg move watermarks with their commits, so that their rows exist exactly once. They are
properties of the snapshot, ``distop.watermark.<source>.<partition>``, with dots inside of a name
written ``%2E``. They move in the transaction that moves the head, and only forward: a program that
repeats a commit whose reply was lost is refused. A snapshot of a branch carries them
until the branch is published, like a snapshot of an operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER_ID, SortOrder
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.typedef import Identifier
from pyiceberg.types import NestedField, PrimitiveType

from distop.catalog.namespaces import already_exists, table_identifier, table_name
from distop.catalog.places import Folder
from distop.catalog.pointers import FOREIGN, Move, Pointer, Pointers, Swap
from distop.commit.partial import Moves
from distop.errors import AlreadyIngested, DistopError, InvalidArgument
from distop.lake.iceberg.provenance import (
    PRODUCT_PROPERTIES,
    WATERMARKS_BEFORE,
    moves_of,
    watermark_properties,
)
from distop.lake.iceberg.watermarks import is_after, moved
from distop.lake.layout.evolution import check_new_names, may_widen, refuse_partition_names
from distop.lake.layout.metadata import read_metadata
from distop.lake.layout.properties import check_properties
from distop.lake.layout.schemas import check_fields, check_schema, fields_within
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import KeyValue, Put, Txn, unchanged
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import unescape
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.record import encode_plain
from distop.metastore.records.table import Head, TableRecord, Watermarks
from distop.metastore.records.watermarks import Marks, check_room, position
from distop.metastore.tables.locations import LocationClaim, canonical
from distop.metastore.tables.watermarks import make_room, marks_at

PREFIX = "distop.watermark."


def marks_moved(
    etcd: SyncEtcd, record: TableRecord | None, base: TableMetadata | None, updates: Sequence[TableUpdate]
) -> Txn:
    """The watermark moves of a commit: those that its snapshots carry, and those that the snapshots of a
    branch have carried, if the commit makes it part of the main branch.

    The commit's last snapshot then records the moves, so that a rollback can undo them; properties with the
    same names in the snapshot itself are removed. A snapshot of another branch records its future moves, and
    moves nothing: its rows are not visible yet.

    Raises
    ------
    InvalidArgument
        The watermarks are invalid, or the commit creates the table, or no branch holds the snapshots.
    AlreadyIngested
        A watermark would not move forward.
    WatermarkConflict
        A move that a branch carries does not start at the table's present watermark.
    """
    added = [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)]
    for snapshot in added:
        if snapshot.summary is not None:
            for name in PRODUCT_PROPERTIES:
                snapshot.summary.additional_properties.pop(name, None)
    wanted, (branch, goal) = _carried(added), _goal(updates)
    if base is None or record is None:
        if wanted:
            raise InvalidArgument("a commit that makes the table moves no watermarks")
        return Txn()
    if wanted and not branch:
        raise InvalidArgument(
            "watermarks move with the rows of one branch: those of this commit are on none, or on several",
            details={"field": "updates"},
        )
    before = _before(base, added, goal) if wanted or branch == MAIN_BRANCH else []
    carried = [moves for snapshot in reversed(before) if (moves := moves_of(snapshot))]
    if not wanted and (branch != MAIN_BRANCH or not carried):
        return Txn()
    txn, moves = _moving(etcd, etcd.keyspace.table(record.name), record, carried, wanted)
    properties = watermark_properties(moves)
    if branch != MAIN_BRANCH and WATERMARKS_BEFORE not in properties:
        raise InvalidArgument(
            f"a snapshot of branch {branch!r} would have to carry more watermarks than it can",
            details={"field": "updates"},
        )
    for name, value in properties.items():
        assert added[-1].summary is not None
        added[-1].summary[name] = value
    return txn if branch == MAIN_BRANCH else Txn()


def _goal(updates: Iterable[TableUpdate]) -> tuple[str, int | None]:
    """The branch that a commit moves, and its new snapshot; of several, the main one. Without a name: it
    moves none, or several others."""
    goals = {
        update.ref_name: update.snapshot_id
        for update in updates
        if isinstance(update, SetSnapshotRefUpdate) and update.type == SnapshotRefType.BRANCH
    }
    if MAIN_BRANCH in goals:
        return MAIN_BRANCH, goals[MAIN_BRANCH]
    return next(iter(goals.items())) if len(goals) == 1 else ("", None)


def _before(base: TableMetadata, added: Iterable[Snapshot], at: int | None) -> list[Snapshot]:
    """The ancestors of a snapshot that are neither new nor part of the main branch; the newest first."""
    new = {new_one.snapshot_id: new_one for new_one in added}
    known: dict[int, Snapshot] | None = None
    lineage: list[Snapshot] = []
    while at is not None and at != base.current_snapshot_id:
        if (snapshot := new.pop(at, None)) is None:
            if known is None:
                known = {existing.snapshot_id: existing for existing in base.snapshots}
                for live in ancestors_of(base.current_snapshot(), base):
                    known.pop(live.snapshot_id, None)
            if (snapshot := known.pop(at, None)) is None:
                break
            lineage.append(snapshot)
        at = snapshot.parent_snapshot_id
    return lineage


def _carried(added: Iterable[Snapshot]) -> Watermarks:
    """The watermarks of the snapshots of a commit."""
    watermarks: Watermarks = {}
    summaries = [snapshot.summary.additional_properties for snapshot in added if snapshot.summary is not None]
    for name, value in ((name, value) for properties in summaries for name, value in properties.items()):
        if not name.startswith(PREFIX):
            continue
        source, _, partition = name.removeprefix(PREFIX).partition(".")
        if not source or not partition or "." in partition or not value:
            raise InvalidArgument(
                f"{name!r} moves no watermark",
                hint=f"write {PREFIX}SOURCE.PARTITION, with dots in either written %2E, and a value",
                details={"field": name},
            )
        watermarks.setdefault(unescape(source), {})[unescape(partition)] = value
    check_room(watermarks)
    return watermarks


def _moving(
    etcd: SyncEtcd, keys: TableKeys, record: TableRecord, carried: Sequence[Moves], wanted: Watermarks
) -> tuple[Txn, Moves]:
    """The transaction part that moves watermarks of a table, if they are still as read: first to what
    snapshots have carried, then to the requested values; and the moves of the latter."""
    room = [
        wanted,
        *({source: list(moves) for source, moves in of_snapshot.items()} for of_snapshot in carried),
    ]

    async def read(client: EtcdClient) -> tuple[KeyValue, Marks]:
        await make_room(client, keys, len(encode_plain(room)))
        present = await client.get_range(keys.watermarks, b"")
        kv = present.kvs[0] if present.kvs else KeyValue.missing(keys.watermarks)
        return kv, marks_at(client, record, kv, present.revision)

    present, marks = etcd.run(read)
    for moves_of_snapshot in carried:
        marks = moved(marks, moves_of_snapshot)
    marks.chunks.know(position(source, partition) for source, to in wanted.items() for partition in to)
    moves: Moves = {}
    for source, partitions in wanted.items():
        for partition, value in partitions.items():
            at = marks.value(source, partition)
            moves.setdefault(source, {})[partition] = WatermarkMove(before=at, after=value)
            if at is not None and not is_after(value, at):
                raise AlreadyIngested(
                    f"watermark {source!r}/{partition!r} is at {at!r}: {value!r} was committed before",
                    details={"source": source, "partition": partition, "present": at, "after": value},
                )
    return Txn((unchanged(present),), (Put(keys.watermarks, marks.then(wanted).encoded()),)), moves


MAX_INT = (1 << 31) - 1
MAX_AHEAD_S = 86_400
"""How far a snapshot's time may be in the future: no earlier one may follow it."""
NO_SNAPSHOT = -1
"""The id that means none."""


def check_readable(metadata: TableMetadata, base: TableMetadata | None, io: FileIO) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` or pyiceberg's ``ValidationError`` if a program could not
    read the table any more.

    Parameters
    ----------
    base:
        The table before; ``None``: it is created.
    """
    check_lineage(metadata)
    _check_snapshots(metadata, base)
    main = metadata.refs.get(MAIN_BRANCH)
    if main is not None and main.snapshot_ref_type != SnapshotRefType.BRANCH:
        raise _wrong(f"{MAIN_BRANCH} is a branch, and no tag")
    _check_fields(metadata, base)
    if base is not None:
        _check_columns(metadata, base)
        _check_removed(metadata, base, io)


def _wrong(message: str) -> InvalidArgument:
    return InvalidArgument(message, details={"field": "updates"})


# -- snapshots ---------------------------------------------------------------------------------------


def check_lineage(metadata: TableMetadata) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if a snapshot comes before itself: walks over the history
    would never end."""
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    sound = set[int | None]()
    for first in parents:
        at: int | None = first
        path = set[int | None]()
        while at in parents and at not in sound:
            if at in path:
                raise _wrong(f"snapshot {at} comes before itself")
            path.add(at)
            at = parents[at]
        sound |= path


def _check_snapshots(metadata: TableMetadata, base: TableMetadata | None) -> None:
    there = {} if base is None else {snapshot.snapshot_id: snapshot for snapshot in base.snapshots}
    last = 0 if base is None or isinstance(base, TableMetadataV1) else base.last_sequence_number
    for snapshot in (added for added in metadata.snapshots if added.snapshot_id not in there):
        _check_snapshot(snapshot)
        if metadata.format_version > 1:
            least = last + (snapshot.parent_snapshot_id is not None)  # else it replaces the table
            if snapshot.sequence_number is None or snapshot.sequence_number < least:
                raise _wrong(
                    f"snapshot {snapshot.snapshot_id} has the sequence number {snapshot.sequence_number}, "
                    f"it must be at least {least}"
                )
            last = snapshot.sequence_number


def _check_snapshot(snapshot: Snapshot) -> None:
    if snapshot.snapshot_id == NO_SNAPSHOT:
        raise _wrong(f"{NO_SNAPSHOT} is no id of a snapshot: it means that there is none")
    if snapshot.first_row_id is not None or snapshot.added_rows is not None:
        raise _wrong(f"snapshot {snapshot.snapshot_id} has row ids, which tables of format 3 have")
    if snapshot.timestamp_ms > (time.time() + MAX_AHEAD_S) * 1000:
        raise _wrong(
            f"snapshot {snapshot.snapshot_id} is of the future: {snapshot.timestamp_ms} ms since 1970"
        )


# -- partition specs and sort orders -----------------------------------------------------------------


def _check_fields(metadata: TableMetadata, base: TableMetadata | None) -> None:
    schema = metadata.schema()
    specs, orders = ([], []) if base is None else (base.partition_specs, base.sort_orders)
    new = [spec for spec in metadata.partition_specs if spec not in specs]
    refuse_partition_names(schema, Schema(), new)
    check_new_names(schema, Schema() if base is None else base.schema(), metadata.partition_specs)
    for spec in new:
        spec.check_compatible(schema)
        _check_widths(spec)
        names = [field.name for field in spec.fields]
        if len(set(names)) < len(names) or not all(names):
            raise _wrong(f"the fields of partition spec {spec.spec_id} need names, each its own")
    for order in (other for other in metadata.sort_orders if other not in orders):
        order.check_compatible(schema)
        _check_widths(order)
        if order.is_unsorted is not (order.order_id == UNSORTED_SORT_ORDER_ID):
            raise _wrong(f"sort order {UNSORTED_SORT_ORDER_ID}, and no other one, has no fields")


def _check_widths(fields: PartitionSpec | SortOrder) -> None:
    for transform in (field.transform for field in fields.fields):
        match transform:
            case BucketTransform():
                width = transform.num_buckets
            case TruncateTransform():
                width = transform.width
            case _:
                continue
        if not 0 < width <= MAX_INT:
            raise _wrong(f"{transform} is no transform: its number is 1 to {MAX_INT}")


# -- columns -----------------------------------------------------------------------------------------


def _check_columns(metadata: TableMetadata, base: TableMetadata) -> None:
    """Columns of rows that stay in the main branch keep their types, or get wider ones."""
    for schema in (other for other in metadata.schemas if other not in base.schemas):
        schema.check_format_version_compatibility(metadata.format_version)
    present = base.current_snapshot_id
    kept = (ancestor.snapshot_id for ancestor in ancestors_of(metadata.current_snapshot(), metadata))
    if present is not None and metadata.schema() != base.schema() and present in kept:
        before = {
            number: base_field for earlier in base.schemas for number, base_field in _by_id(earlier).items()
        }
        _check_kept(metadata.schema().fields, before | _by_id(base.schema()))


def _by_id(schema: Schema) -> dict[int, NestedField]:
    return {number: schema.find_field(number) for number in schema.field_ids}


def _check_kept(fields: Iterable[NestedField], before: Mapping[int, NestedField]) -> None:
    for field in fields:
        known = before.get(field.field_id)
        if known is None:
            if field.required and field.initial_default is None:
                raise _wrong(f"column {field.name!r} cannot be required: existing rows have no value for it")
            continue
        was, becomes = known.field_type, field.field_type
        if isinstance(was, PrimitiveType) or isinstance(becomes, PrimitiveType):
            fits = was == becomes or may_widen(was, becomes)
        else:
            fits = type(was) is type(becomes)
        if not fits:
            raise _wrong(f"column {field.name!r} is {was} in existing rows, and cannot become {becomes}")
        _check_kept(fields_within(becomes), before)


# -- what is gone ------------------------------------------------------------------------------------


def _check_removed(metadata: TableMetadata, base: TableMetadata, io: FileIO) -> None:
    """What snapshots that stay are read with stays."""
    schemas = {schema.schema_id for schema in base.schemas} - {
        schema.schema_id for schema in metadata.schemas
    }
    specs = base.specs().keys() - metadata.specs().keys()
    if used := [owner.snapshot_id for owner in metadata.snapshots if owner.schema_id in schemas]:
        raise _wrong(f"snapshot {used[0]} is read with a schema that would be removed")
    heads: dict[Any, Snapshot | None] = {name: metadata.snapshot_by_name(name) for name in metadata.refs}
    for snapshot in {
        head.snapshot_id: head for head in heads.values() if specs and head is not None
    }.values():
        if any(manifest.partition_spec_id in specs for manifest in snapshot.manifests(io)):
            raise _wrong(f"snapshot {snapshot.snapshot_id} has files of a spec that would be removed")


@dataclass(frozen=True)
class Step:
    """A commit to one table."""

    identifier: Identifier
    staged: StagedTable
    move: Move
    record: TableRecord | None
    """The folder of a table that is new, or has another location."""
    written: bool = False
    """Whether its metadata file existed before."""
    rebases: bool = False
    """Whether it may be repeated on the result of concurrent commits."""
    discard: Callable[[], None] = lambda: None
    """Removes other files that were written for it."""


class Overtaken(CommitFailedException):
    """The tables changed between reading them and the commit."""

    def __init__(self, message: str, *, repeatable: bool) -> None:
        super().__init__(message)
        self.repeatable = repeatable
        """Whether the commit may be repeated on their present state."""


class Publishing:
    """Creates tables of one installation, and changes their metadata.

    Parameters
    ----------
    properties:
        The properties of the catalog.
    file_io:
        Access to a file of a table.
    """

    def __init__(
        self, pointers: Pointers, properties: Mapping[str, str], file_io: Callable[[str], FileIO]
    ) -> None:
        self._pointers = pointers
        self._properties = properties
        self._file_io = file_io

    def making(
        self,
        identifier: str | Identifier,
        staged: StagedTable,
        *,
        written: bool = False,
        besides: Txn = Txn(),
    ) -> Step:
        """A table to create. Raises ``TableAlreadyExistsError``.

        Parameters
        ----------
        written:
            Its metadata file exists already.
        besides:
            Further writes of the transaction.
        """
        name, metadata = table_name(identifier), staged.metadata
        check_properties(metadata.properties, metadata.location)
        check_schema(metadata.schema())
        check_fields(metadata.spec().fields)
        check_fields(metadata.sort_order().fields)
        if written:
            check_lineage(metadata)
        else:
            check_readable(metadata, None, staged.io)
        record = TableRecord(
            name=name,
            location=canonical(metadata.location),
            created_at=time.time(),
            created_by=FOREIGN,
            # Not the table's uuid: it must distinguish this attempt from another one to register the same
            # files.
            uuid=str(uuid4()),
        )
        if kind := self._pointers.check_new(record):
            raise already_exists(name, kind)
        record.found_empty = self._folder(record).is_free() and not written
        action = "register-table" if written else "create-table"
        move = self._pointers.created(record, _head(staged), action)
        move = replace(move, txn=move.txn + besides)
        return Step(table_identifier(name), staged, move, record, written=written)

    def moving(self, current: Table, pointer: Pointer, staged: StagedTable, besides: Txn) -> Step:
        """A table whose metadata changes. ``besides``: further writes of the transaction."""
        check_readable(staged.metadata, current.metadata, current.io)
        record = pointer.record
        if record is not None and record.location != (moved := canonical(staged.metadata.location)):
            record.location = moved
            self._pointers.check_free(LocationClaim.of(self._pointers.keyspace, record))
            record.found_empty = self._folder(record).is_free()
        else:
            if record is not None and not current.metadata.metadata_log:
                self._folder(record).take()
            record = None

        def landed(head: Head | None) -> bool | None:
            return self._is_behind(head, staged.metadata_location, current.metadata_location)

        move = self._pointers.moved(pointer, _head(staged), landed, record, besides)
        return Step(current.name(), staged, move, record)

    def publish(self, steps: Sequence[Step]) -> None:
        """Publish all of them at once, or nothing.

        Raises
        ------
        CommitFailedException, TableAlreadyExistsError
            A concurrent commit won, nothing has happened.
        CommitStateUnknownException
            The outcome is unknown; no file was removed.
        ArgumentTooLarge
            They do not fit into one transaction.
        """
        names = ", ".join(".".join(step.identifier) for step in steps)
        moves = [step.move for step in steps]
        try:
            self._pointers.check_fits(moves)
            for step in steps:
                if not step.written:
                    staged = step.staged
                    ToOutputFile.table_metadata(
                        staged.metadata, staged.io.new_output(staged.metadata_location)
                    )
        except Exception:
            undo(steps)
            raise
        try:
            outcome = self._pointers.send(moves)
        except DistopError:
            undo(steps)
            raise
        if outcome is Swap.UNKNOWN:
            raise CommitStateUnknownException(f"Whether {names} has the new metadata is not known")
        if outcome is Swap.LOST:
            undo(steps)
            if len(steps) == 1 and steps[0].move.new:
                raise already_exists(table_name(steps[0].identifier))
            repeatable = all(step.rebases for step in steps)
            raise Overtaken(f"Table {names} was updated by another process", repeatable=repeatable)
        for step in steps:
            if step.record is not None and step.record.found_empty:
                self._folder(step.record).mark()

    def _folder(self, record: TableRecord) -> Folder:
        return Folder(record, self._properties)

    def _is_behind(self, head: Head | None, own: str, base: str) -> bool | None:
        """Whether a head has our metadata among its ancestors, according to its metadata log."""
        if head is None:
            return None
        if head.metadata_location in (own, base):
            return head.metadata_location == own
        try:
            metadata = read_metadata(self._file_io(head.metadata_location), head.metadata_location)
        except Exception:
            return None
        ancestors = {entry.metadata_file for entry in metadata.metadata_log}
        if own in ancestors:
            return True
        return False if base in ancestors else None


def undo(steps: Sequence[Step]) -> None:
    """Remove the files of commits that were certainly not published and never will be; best effort."""
    for step in steps:
        if not step.written:
            with suppress(Exception):
                step.staged.io.delete(step.staged.metadata_location)
        step.discard()


def _head(staged: StagedTable) -> Head:
    snapshot, location = staged.metadata.current_snapshot_id, staged.metadata_location
    return Head(metadata_location=location, snapshot_id=snapshot, operation=FOREIGN)
