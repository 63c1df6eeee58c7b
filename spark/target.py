"""The target table of a write, in its state when the write begins; and the options of ``format("distop")``:
checked before anything is read or written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from distop.client import Client, Table, TableOptions, default_address
from distop.errors import InvalidArgument, PreconditionFailed, TableExists, TableNotFound
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.takeover import folder_of, new_write
from distop.lake.layout.model import DEFAULT_PROPERTIES, Layout, file_io
from distop.lake.layout.schemas import parse_schema
from distop.lake.layout.staging import take_folder
from distop.lake.rules.parsing import refuse_unchecked
from distop.lake.writing.writer import StagedWriter
from distop.sources.formats.reader import check_columns, columns_for
from distop.spark_jobs.spark_types import arrow_schema

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql.types import StructType

Mode = Literal["append", "overwrite", "overwrite_partitions", "error_if_exists", "ignore"]
OnConflict = Literal["rebase", "refuse"]

T = TypeVar("T", bound=str)

_COMMON = {"table", "path", "coordinator", "storage"}
_WRITE = {"mode", "onConflict", "run", "create", "location", "partitionBy", "commitTimeout"}
_READ = {"snapshotId", "asOf", "branch", "columns", "filter", "splitBytes", "useIndexes"}
_STREAM_READ = {"startingSnapshot", "maxFilesPerTrigger", "ignoreOverwrites"}
_SPARKS = {"checkpointLocation", "queryName"}
KNOWN = _COMMON | _WRITE | _READ | _STREAM_READ | _SPARKS

DEFAULT_SPLIT_BYTES = 64 << 20
DEFAULT_FILES_PER_TRIGGER = 1000
DEFAULT_COMMIT_TIMEOUT_S = 300.0
MIN_SPLIT_BYTES = 1 << 10
MAX_ID_DIGITS = 19
"""Most digits of a snapshot's id, which has 63 bits."""


@dataclass(frozen=True, kw_only=True)
class Common:
    """The table to use."""

    table: str
    coordinator: str
    storage: dict[str, Any] = field(default_factory=dict)
    """fsspec options that override those of the table: keys that the table's record does not contain."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions(Common):
    """How to write."""

    mode: Mode
    on_conflict: OnConflict | None = None
    run: str = ""
    create: bool = False
    location: str = ""
    partition_by: tuple[str, ...] = ()
    commit_timeout_s: float = DEFAULT_COMMIT_TIMEOUT_S


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Common):
    """What to read."""

    snapshot_id: int | None = None
    as_of: str = ""
    branch: str | None = None
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    use_indexes: bool = True
    split_bytes: int = DEFAULT_SPLIT_BYTES
    starting_snapshot: str = "present"
    files_per_trigger: int = DEFAULT_FILES_PER_TRIGGER
    ignore_overwrites: bool = False


def write_options(given: Mapping[str, str], *, overwrite: bool) -> WriteOptions:
    """The options of a write.

    Parameters
    ----------
    overwrite:
        Whether Spark has ``mode("overwrite")``, or a streaming query's output mode is ``complete``.

    Raises
    ------
    InvalidArgument
        Names the option.
    """
    options = _Options(given, {**_spelled(_COMMON | _WRITE | _SPARKS)})
    mode: Mode = options.choice("mode", get_args(Mode), "overwrite" if overwrite else "append")
    if overwrite and not mode.startswith("overwrite"):
        raise _invalid("mode", f"Spark has mode overwrite, but the option mode says {mode}")
    on_conflict: OnConflict | None = options.choice("onConflict", get_args(OnConflict), None)
    if on_conflict is not None and mode in ("error_if_exists", "ignore"):
        raise _invalid("onConflict", f"mode {mode} depends only on whether the table holds data")
    return WriteOptions(
        **options.common(),
        mode=mode,
        on_conflict=on_conflict,
        run=options.text("run"),
        create=options.flag("create"),
        location=options.text("location"),
        partition_by=options.terms("partitionBy") or (),
        commit_timeout_s=options.number("commitTimeout", DEFAULT_COMMIT_TIMEOUT_S, least=1.0),
    )


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) <= MAX_ID_DIGITS


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a read; raises as :func:`write_options`."""
    options = _Options(given, _spelled(_COMMON | _READ | _STREAM_READ | _SPARKS))
    snapshot = options.text("snapshotId")
    if snapshot and not _is_id(snapshot):
        raise _invalid("snapshotId", f"{snapshot!r} is not a snapshot id")
    starting = options.text("startingSnapshot") or "present"
    if starting not in ("present", "latest") and not _is_id(starting):
        raise _invalid("startingSnapshot", "it must be present, latest, or the id of a snapshot")
    return ReadOptions(
        **options.common(),
        snapshot_id=int(snapshot) if snapshot else None,
        as_of=options.text("asOf"),
        # Empty ones are refused where they are used: they may be variables that were not set.
        branch=options.text("branch") if options.is_given("branch") else None,
        columns=options.terms("columns"),
        filter=options.text("filter") if options.is_given("filter") else None,
        use_indexes=options.flag("useIndexes", default=True),
        split_bytes=int(options.number("splitBytes", DEFAULT_SPLIT_BYTES, least=MIN_SPLIT_BYTES)),
        starting_snapshot=starting,
        files_per_trigger=int(options.number("maxFilesPerTrigger", DEFAULT_FILES_PER_TRIGGER, least=1)),
        ignore_overwrites=options.flag("ignoreOverwrites"),
    )


def split_terms(text: str) -> tuple[str, ...]:
    """``"month(day), bucket(16, id)"`` to its two terms: commas within parentheses do not separate."""
    terms, depth, term = [], 0, ""
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            terms.append(term.strip())
            term = ""
        else:
            term += letter
    return tuple(term for term in (*terms, term.strip()) if term)


class _Options:
    def __init__(self, given: Mapping[str, str], allowed: Mapping[str, str]) -> None:
        # Spark does not keep the case of an option's name.
        self._given = {name.lower(): value for name, value in given.items()}
        for name in self._given:
            if name not in allowed:
                known = _spelled(KNOWN)
                where = "is not for this" if name in known else "is unknown"
                raise _invalid(
                    known.get(name, name),
                    f"option {known.get(name, name)!r} {where}",
                    sorted(allowed.values()),
                )

    def common(self) -> dict[str, Any]:
        table = self.text("table") or self.text("path")
        if not table:
            raise _invalid("table", 'no table is named: option("table", NAME)')
        storage = self.text("storage")
        try:
            decoded = json.loads(storage) if storage else {}
        except ValueError:
            decoded = None
        if not isinstance(decoded, dict):
            raise _invalid("storage", "storage is not a JSON object")
        address = self.text("coordinator") or default_address()
        return {"table": table, "coordinator": address, "storage": decoded}

    def is_given(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str:
        return self._given.get(name.lower(), "").strip()

    def terms(self, name: str) -> tuple[str, ...] | None:
        return split_terms(self.text(name)) or None

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.text(name).lower() or str(default).lower()
        if value not in ("true", "false"):
            raise _invalid(name, f"{name} must be true or false, not {value!r}")
        return value == "true"

    def number(self, name: str, default: float, *, least: float) -> float:
        text = self.text(name)
        try:
            value = float(text) if text else default
        except ValueError:
            value = float("nan")
        if not least <= value < 2**53:
            raise _invalid(name, f"{name} must be a number of at least {least:g}, not {text!r}")
        return value

    def choice(self, name: str, choices: tuple[T, ...], default: T | None) -> Any:
        text = self.text(name)
        if not text:
            return default
        if text not in choices:
            raise _invalid(name, f"{name} is {text!r}; it can be {', '.join(choices)}")
        return text


def _spelled(names: set[str]) -> dict[str, str]:
    return {name.lower(): name for name in names}


def _invalid(field: str, message: str, allowed: list[str] | None = None) -> InvalidArgument:
    hint = f"there are {', '.join(allowed)}" if allowed else ""
    return InvalidArgument(message, hint=hint, details={"field": field})


ICEBERG = "iceberg"


@dataclass(frozen=True, kw_only=True)
class WriteTarget:
    """Where the tasks of one write put their files. Picklable; needs no coordinator."""

    write: str
    """The name of the write."""
    table: str
    location: str
    layout_json: dict[str, Any]
    base_snapshot: str | None
    storage: dict[str, Any] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return Layout.from_json(self.layout_json)

    def path(self, stem: str, suffix: str, folder: str) -> str:
        """A file of this write: ``folder`` is ``data`` or ``metadata``."""
        return f"{self.location}/{folder}/{folder_of(self.write)}/{stem}{suffix}"

    def writer(self, stem: str) -> StagedWriter:
        """A writer for the rows of one task; ``stem`` is the unique prefix of its files' names."""

        def path_for(suffix: str, folder: str) -> str:
            return self.path(stem, suffix, folder)

        return StagedWriter(self.layout, path_for, storage=self.storage, inline=True)

    def io(self) -> FileIO:
        return file_io(self.location, self.storage)


def connect(options: Common) -> Client:
    """A client of the configured coordinators; the caller must close it."""
    return Client(options.coordinator, timeout_s=30.0, connect_timeout_s=10.0)


def find_table(client: Client, options: Common) -> Table:
    """The table.

    Raises
    ------
    TableNotFound
        It does not exist.
    PreconditionFailed
        It is not an Iceberg table.
    """
    table = client.table(options.table).get()
    if table.format != ICEBERG:
        raise PreconditionFailed(
            f"table {table.name!r} has format {table.format}: Spark reads it directly, at {table.location}; "
            "only Iceberg tables go through format('distop')",
            hint="write to it with ingest",
        )
    return table


def storage_options(table: Table, options: Common) -> dict[str, Any]:
    """How to reach the table's files. Keys in its own options are hidden from clients, and omitted."""
    own = {name: value for name, value in dict(table.options.get("storage") or {}).items() if value != "***"}
    return {**own, **options.storage}


def open_target(client: Client, options: WriteOptions, struct: StructType) -> WriteTarget:
    """The target of a write that begins now.

    Creates the table if requested and missing.

    Raises
    ------
    InvalidArgument
        Rows of the DataFrame cannot be rows of the table; names the column and the reason.
    PreconditionFailed
        The table has rules that its rows must keep.
    """
    frame = arrow_schema(struct)
    table = _table(client, options)
    refuse_unchecked(table.name, table.options)
    storage = storage_options(table, options)
    layout = _layout(table, storage) or Layout.create(
        columns_for(frame),
        table.options.get("partitionBy", ()),
        {**DEFAULT_PROPERTIES, **(table.options.get("properties") or {})},
    )
    check_columns(frame, layout.arrow_schema)
    if not table.metadata_location:
        take_folder(table.location, table.uuid, storage)
    return WriteTarget(
        write=new_write(time.time()),
        table=table.name,
        location=table.location.rstrip("/"),
        layout_json=layout.to_json(),
        base_snapshot=None if table.snapshot_id is None else str(table.snapshot_id),
        storage=storage,
    )


def _table(client: Client, options: WriteOptions) -> Table:
    try:
        return find_table(client, options)
    except TableNotFound as error:
        if not options.create:
            hint = f'{error.hint}, or let this write create it: option("create", "true")'
            raise TableNotFound(error.message, hint=hint, details=error.details) from None
    if not options.location:
        raise InvalidArgument(
            f"table {options.table!r} is to be created, but location is not set",
            details={"field": "location"},
        )
    made: TableOptions = {"partitionBy": list(options.partition_by)} if options.partition_by else {}
    if options.storage:
        made["storage"] = options.storage
    try:
        return client.create_table(options.table, options.location, options=made)
    except TableExists:
        return find_table(client, options)  # another writer was first


def _layout(table: Table, storage: dict[str, Any]) -> Layout | None:
    """The columns of the table, if they are fixed already."""
    if table.metadata_location:
        return Layout.of(TableFile.read(table.metadata_location, storage=storage).metadata)
    schema = table.options.get("schema")
    if schema is None:
        return None
    properties = {**DEFAULT_PROPERTIES, **(table.options.get("properties") or {})}
    return Layout.create(parse_schema(schema), table.options.get("partitionBy", ()), properties)
