"""Locations of tables in the catalog, and their folders."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar
from uuid import uuid4

from pyiceberg.catalog import LOCATION, WAREHOUSE_LOCATION

from distop.errors import DistopError, LocationInUse
from distop.lake.cleanup.orphans import Files
from distop.lake.layout.staging import give_folder_up, is_free, mark_folder, take_folder
from distop.lake.storage.storage import StorageOptions, remove_files, storage_from, storage_of
from distop.metastore.records.table import DropRecord, TableRecord
from distop.metastore.tables.locations import canonical

log = logging.getLogger(__name__)

T = TypeVar("T")


def new_location(
    given: str | None,
    namespace: str,
    table: str,
    properties: Mapping[str, str],
    properties_of: Callable[[str], Mapping[str, str]],
) -> str:
    """The location of a new table: as requested; else a folder that is named after the table, and that
    no table has had before.

    Parameters
    ----------
    properties:
        The properties of the catalog.
    properties_of:
        Returns the properties of a namespace.
    """
    if given:
        spelled = canonical(given)
        return spelled.removeprefix("file://") if given.startswith("/") else spelled
    base = place_of_namespace(namespace, properties, properties_of(namespace))
    if not base:
        raise ValueError("No default path is set, please specify a location when creating a table")
    return new_location(
        f"{base.rstrip('/')}/{_in_path(table)}-{uuid4().hex}", namespace, table, properties, properties_of
    )


def place_of_namespace(namespace: str, properties: Mapping[str, str], own: Mapping[str, str]) -> str:
    """The folder in which tables of a namespace are made: its own ``location``, else one below the warehouse
    of the catalog; empty if there is none."""
    base, warehouse = own.get(LOCATION, ""), properties.get(WAREHOUSE_LOCATION)
    return base or (f"{warehouse.rstrip('/')}/{_in_path(namespace)}" if warehouse else "")


def _in_path(name: str) -> str:
    """A name as a part of a path, without characters that programs misread."""
    return re.sub(r"[^\w.-]", "_", name) if name.strip(".") else "_"


class Folder:
    """The folder of a table, with the storage options of the catalog. Without its owner file nothing in it is
    ever removed, so that an owner file which cannot be written is no reason to fail."""

    def __init__(self, record: TableRecord, properties: Mapping[str, str]) -> None:
        self._record = record
        self._storage: StorageOptions = storage_of(record) or storage_from(properties)

    def is_free(self) -> bool:
        """Whether the table can own it, as far as this process can see.

        Raises :class:`~distop.errors.LocationInUse` if it is another table's.
        """
        return bool(self._softly(is_free))

    def mark(self) -> None:
        """Write the owner file, after :meth:`is_free` has returned true."""
        self._softly(mark_folder)

    def take(self) -> None:
        """Write the owner file, if the folder was empty and the creator of the table died before writing
        it."""
        if self._record.found_empty:
            self._softly(partial(take_folder, found_empty=True))

    def is_own(self) -> bool:
        """Whether it is certain that all files in it are the table's."""
        try:
            return bool(self._softly(partial(take_folder, found_empty=self._record.found_empty)))
        except LocationInUse:
            return False

    async def leave(self, record: DropRecord) -> None:
        """Remove the owner file of a dropped table."""
        await asyncio.to_thread(self._softly, give_folder_up)

    def remove(self, files: Files) -> None:
        """Remove the given files that are in it."""
        remove_files(files.below(self._record.location).all(), self._storage)

    def _softly(self, call: Callable[[str, str, StorageOptions], T]) -> T | None:
        try:
            return call(self._record.location, self._record.uuid, self._storage)
        except DistopError:
            raise
        except Exception as error:
            log.warning("owner_file", extra={"location": self._record.location, "error": str(error)})
            return None
