"""Publishes commits: the metadata files of the tables are written, then all their heads move at once.

Files that were certainly not published are removed. If the outcome is unknown, they stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io import FileIO
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import StagedTable, Table
from pyiceberg.typedef import Identifier

from distop.catalog.namespaces import already_exists, table_identifier, table_name
from distop.catalog.places import Folder
from distop.catalog.pointer import FOREIGN, Move, Pointer, Swap
from distop.catalog.pointers import Pointers
from distop.errors import DistopError
from distop.lake.layout.metadata import read_metadata
from distop.lake.layout.properties import check_properties
from distop.lake.layout.readable import check_lineage, check_readable
from distop.lake.layout.schemas import check_fields, check_schema
from distop.metastore.etcd.txn import Txn
from distop.metastore.records.locations import canonical
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.tables.locations import Claim


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
            self._pointers.check_free(Claim.of(self._pointers.keyspace, record))
            record.found_empty = self._folder(record).is_free()
        else:
            if record is not None and not current.metadata.metadata_log:
                self._folder(record).take()
            record = None

        def landed(found: Head | None) -> bool | None:
            return self._is_behind(found, staged.metadata_location, current.metadata_location)

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

    def _is_behind(self, found: Head | None, ours: str, base: str) -> bool | None:
        """Whether a head has our metadata among its ancestors, according to its metadata log."""
        if found is None:
            return None
        if found.metadata_location in (ours, base):
            return found.metadata_location == ours
        try:
            metadata = read_metadata(self._file_io(found.metadata_location), found.metadata_location)
        except Exception:
            return None
        ancestors = {entry.metadata_file for entry in metadata.metadata_log}
        if ours in ancestors:
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
