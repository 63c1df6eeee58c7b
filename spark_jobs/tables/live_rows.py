"""The rows of data files, without those that their delete files name.

pyiceberg applies position deletes and deletion vectors, and knows no equality deletes (Iceberg specification,
"Equality Delete Files"): a row goes if its values of some columns equal those of a row of the delete file.
NULL equals NULL there, and NaN equals NaN.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from distop.errors import CorruptRecord
from distop.lake.pyiceberg_private import batches_of, scan_of
from distop.lake.rewriting.deletes import equality_fields


class LiveRows:
    """Reads data files of a table.

    Parameters
    ----------
    columns:
        Columns of the table's present schema to read, in this order.
    deleted:
        The equality deletes of the same table.
    groups_of:
        The row groups to read of a Parquet file, by its footer and its columns. ``None``: all.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        columns: Schema,
        deleted: EqualityDeletes,
        groups_of: Callable[[pq.FileMetaData, Schema], Sequence[int]] | None = None,
    ) -> None:
        self._metadata, self._io, self._columns, self._groups_of = metadata, io, columns, groups_of
        self._scan = scan_of(metadata, io, columns)
        self._deleted = deleted

    def of(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """The rows of one file, streamed."""
        equalities = [f for f in task.delete_files if f.content == DataFileContent.EQUALITY_DELETES]
        if not equalities:
            yield from batches_of(self._scan, self._io, task, self._groups_of)
            return
        deleted = self._deleted.keys_of(equalities)
        names = [column.name for column in self._columns.columns]
        compared = {number for fields, _ in deleted for number in fields}
        missing = sorted(compared.difference(one.field_id for one in self._columns.columns))
        more = (self._metadata.schema().find_field(number) for number in missing)
        # A file need not have the columns of its partition.
        optional = (column.model_copy(update={"required": False}) for column in more)
        columns = Schema(*self._columns.columns, *optional)
        scan = scan_of(self._metadata, self._io, columns)
        others = FileScanTask(task.file, set(task.delete_files).difference(equalities))
        for batch in batches_of(scan, self._io, others, self._groups_of):
            for fields, keys in deleted:
                found = keys.hold([batch[columns.find_column_name(number)] for number in fields])
                batch = batch.filter(pc.invert(found))
            if batch.num_rows:
                yield batch.select(names)


class EqualityDeletes:
    """The equality deletes of a table, read once: many data files have the same ones."""

    def __init__(self, metadata: TableMetadata, io: FileIO) -> None:
        self._metadata, self._io = metadata, io
        self._rows: dict[str, pa.Table] = {}
        """By path."""
        self._last = frozenset[str](), list[tuple[list[int], _Keys]]()
        """Paths, and what is deleted by them."""

    def keys_of(self, files: Iterable[DataFile]) -> list[tuple[list[int], _Keys]]:
        """The keys that some delete files name, by the ids of the columns that they are of."""
        by_path = {file.file_path: file for file in files}
        if self._last[0] != by_path.keys():
            self._last = frozenset(by_path), self._keys(by_path.values())
        return self._last[1]

    def _keys(self, files: Iterable[DataFile]) -> list[tuple[list[int], _Keys]]:
        schema = self._metadata.schema()
        by_fields: dict[tuple[int, ...], list[pa.Table]] = defaultdict(list)
        for file in files:
            fields = equality_fields(file, schema)
            if fields is None:  # plans refuse it
                raise CorruptRecord(f"{file.file_path} compares columns that the table does not have")
            if file.file_path not in self._rows:
                self._rows[file.file_path] = self._read(file, fields)
            by_fields[tuple(fields)].append(self._rows[file.file_path])
        return [(list(fields), _Keys(pa.concat_tables(rows))) for fields, rows in by_fields.items()]

    def _read(self, file: DataFile, fields: Iterable[int]) -> pa.Table:
        columns = Schema(*map(self._metadata.schema().find_field, fields))
        return scan_of(self._metadata, self._io, columns).to_table([FileScanTask(file)])


class _Keys:
    """A set of keys of some columns. A key becomes a number, column by column, by its place among those of
    the set."""

    def __init__(self, rows: pa.Table) -> None:
        self._places: list[tuple[pa.Array, pa.Array]] = []
        """Of each column, the values of keys, and what :func:`_paired` makes of them and of those before."""
        known = None
        for column in map(_plain, rows.columns):
            values = pc.unique(column)
            pairs = _paired(known, column, values)
            self._places.append((values, pc.unique(pairs)))
            known = _place(pairs, pc.unique(pairs))

    def hold(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Of each row, whether its key is in the set."""
        known = None
        for column, (values, pairs) in zip(map(_plain, columns), self._places, strict=True):
            known = _place(_paired(known, column.cast(values.type), values), pairs)
        return pc.is_valid(known)


def _paired(known: pa.Array | None, column: pa.Array, values: pa.Array) -> pa.Array:
    """One number for the place of a key so far and that of its next value; NULL if there is none."""
    place = _place(column, values)
    return place if known is None else pc.add(pc.multiply(known, len(values)), place)


def _place(column: pa.Array, values: pa.Array) -> pa.Array:
    return pc.index_in(column, value_set=values).cast(pa.int64())


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole.storage if isinstance(whole, pa.ExtensionArray) else whole
