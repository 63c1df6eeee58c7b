"""The calls that start the built-in types of operations: an ingest, and what looks after a table. Options are
values; what is not given has the type's own default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from os import PathLike, fspath
from typing import Any, Literal, TypedDict, Unpack, cast

from distop.client.calls import Calls, NamedCalls
from distop.client.handles import AsyncOperationHandle, start
from distop.client.operations import StartOptions
from distop.errors import InvalidArgument


class SourceOptions(TypedDict, total=False):
    """What an ingest reads, how, and what becomes of it: docs/ingest.md says what each means."""

    mode: Literal["append", "overwrite", "overwrite_partitions", "error_if_exists", "ignore", "merge"]
    format: Literal["csv", "jsonl", "parquet", "avro"]
    header: bool | Sequence[str]
    delimiter: str
    quote: str
    escape: str
    null_values: Sequence[str]
    encoding: str
    decimal_point: Literal[".", ","]
    thousands: str
    date_format: str
    timestamp_format: str
    timezone: str
    multiline: bool
    schema: Mapping[str, str]
    epoch_units: Mapping[str, Literal["days", "s", "ms", "us", "ns"]]
    columns: Sequence[str]
    partition_columns_from_path: bool
    on_new_columns: Literal["fail", "add", "ignore"]
    on_wider_types: Literal["fail", "widen"]
    on_bad_rows: Literal["fail", "quarantine"]
    on_conflict: Literal["rebase", "refuse"]
    max_bad_rows: int
    max_bad_share: float
    transform: str
    filter: str
    checks: Mapping[str, Any]
    split_bytes: int
    keys: Sequence[str]
    order_by: str
    delete_where: str
    update_where: str
    insert_where: str
    branch: str
    markers: Sequence[str]
    source: str
    watermark: Mapping[str, str]
    new_only: bool
    reingest: bool
    replaces: str
    kafka: Mapping[str, Any]


class IngestOptions(SourceOptions, StartOptions, total=False):
    """The keywords of an ingest."""


Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
"""Files, folders (read recursively) and globs: absolute local paths, as executors see them, or URLs."""


def ingest_argument(paths: Paths = (), **options: Unpack[SourceOptions]) -> dict[str, Any]:
    """The argument of an ingest, as JSON: for a batch, a schedule, a backfill, or a preview."""
    several = [paths] if isinstance(paths, str | PathLike) else paths
    given = {name: value for name, value in options.items() if value is not None}
    return ({"paths": [fspath(path) for path in several]} if several else {}) | given


class IngestCalls(Calls):
    """The call that starts an ingest."""

    async def ingest(
        self, table: str, paths: Paths = (), **options: Unpack[IngestOptions]
    ) -> AsyncOperationHandle:
        """Ingest files into a table, or a topic (``kafka``); return the operation's handle.

        Parameters
        ----------
        options:
            How: :class:`SourceOptions` and :class:`StartOptions`. ``run`` makes it safe to repeat.

        Raises
        ------
        AlreadyIngested
            The files were ingested before, by another run.
        IncompatibleOperation, TablePaused, RunReused
            As of :meth:`~distop.client.handles.OperationCalls.start`.
        """
        how = cast(StartOptions, {name: options[name] for name in _STARTING if name in options})  # type: ignore[literal-required]
        source: Any = {name: value for name, value in options.items() if name not in _STARTING}
        return await start(self._connection, table, "ingest", ingest_argument(paths, **source), how)


_STARTING = tuple(StartOptions.__required_keys__ | StartOptions.__optional_keys__)


class MaintenanceCalls(NamedCalls):
    """The calls that start what looks after a table; each returns the handle of an operation."""

    async def rollback(
        self,
        snapshot: int | str | None = None,
        *,
        as_of: datetime | str | None = None,
        watermarks: Literal["restore", "keep"] | None = None,
        **options: Unpack[StartOptions],
    ) -> AsyncOperationHandle:
        """Make an earlier snapshot current, and restore its watermarks, unless they are to be kept.

        Parameters
        ----------
        snapshot, as_of:
            Its id, or the time whose snapshot it is.
        """
        given = {"snapshot": snapshot, "as_of": as_of, "watermarks": watermarks}
        return await self._started("rollback", given, options)

    async def publish_branch(
        self,
        branch: str,
        *,
        on_conflict: Literal["refuse", "rebase"] | None = None,
        snapshot: int | str | None = None,
        alone: bool | None = None,
        **options: Unpack[StartOptions],
    ) -> AsyncOperationHandle:
        """Make the content of a branch that of the table, watermarks included, and remove the branch.

        Parameters
        ----------
        on_conflict:
            What to do if others have written to the table since the branch began: refuse, or append its rows.
        snapshot:
            Publish it only if it is at this one.
        alone:
            Publish it only if the table lacks no more than one of its snapshots.
        """
        given = {"branch": branch, "on_conflict": on_conflict, "snapshot": snapshot, "alone": alone}
        return await self._started("publish_branch", given, options)

    async def drop_branch(self, branch: str, **options: Unpack[StartOptions]) -> AsyncOperationHandle:
        """Remove a branch. Its files are removed when its snapshots are expired."""
        return await self._started("drop_branch", {"branch": branch}, options)

    async def delete(
        self, where: str, *, branch: str | None = None, **options: Unpack[StartOptions]
    ) -> AsyncOperationHandle:
        """Delete the rows for which an expression is true."""
        return await self._started("delete", {"where": where, "branch": branch}, options)

    async def compact(
        self,
        *,
        filter: str | None = None,
        sort_by: Sequence[str] | None = None,
        min_files: int | None = None,
        target_file_size: int | str | None = None,
        smaller_than: int | str | None = None,
        max_bytes_per_job: int | str | None = None,
        **options: Unpack[StartOptions],
    ) -> AsyncOperationHandle:
        """Rewrite small files into large ones. No row changes.

        Parameters
        ----------
        filter:
            Only files that may hold such rows.
        sort_by:
            Columns; ``"fare desc"`` for descending.
        min_files:
            Skip a partition with fewer small files.
        target_file_size, smaller_than, max_bytes_per_job:
            Of the new files, of files that are not small, and of what one job reads: bytes, or such as
            ``"128m"``.
        """
        given = {
            "filter": filter,
            "sort_by": sort_by,
            "min_files": min_files,
            "target_file_size": target_file_size,
            "smaller_than": smaller_than,
            "max_bytes_per_job": max_bytes_per_job,
        }
        return await self._started("compact", given, options)

    async def expire_snapshots(
        self,
        *,
        older_than: datetime | str | None = None,
        keep_last: int | None = None,
        **options: Unpack[StartOptions],
    ) -> AsyncOperationHandle:
        """Expire old snapshots, and remove the files that only they refer to.

        Parameters
        ----------
        older_than:
            A time, or an age such as ``"30d"``.
        keep_last:
            Keep this many of each branch, however old.
        """
        given = {"older_than": older_than, "keep_last": keep_last}
        return await self._started("expire_snapshots", given, options)

    async def remove_orphans(
        self,
        *,
        older_than: datetime | str | None = None,
        dry_run: bool = True,
        **options: Unpack[StartOptions],
    ) -> AsyncOperationHandle:
        """Find files below the table's location that nothing refers to; remove them, if it is no dry run."""
        given = {"older_than": older_than, "dry_run": dry_run}
        return await self._started("remove_orphans", given, options)

    async def build_index(
        self,
        column: str,
        *,
        full: bool | None = None,
        files_per_job: int | None = None,
        **options: Unpack[StartOptions],
    ) -> AsyncOperationHandle:
        """Build the index of a column, or update it.

        Parameters
        ----------
        full:
            Index all files again.
        files_per_job:
            Most data files that one job indexes, 1 to 1,000.
        """
        given = {"column": column, "full": full, "files_per_job": files_per_job}
        return await self._started("build_index", given, options)

    async def validate(
        self,
        rules: Sequence[str | Mapping[str, Any]],
        *,
        branch: str | None = None,
        snapshot: int | str | None = None,
        as_of: datetime | str | None = None,
        publish: bool | None = None,
        on_conflict: Literal["refuse", "rebase"] | None = None,
        report_only: bool | None = None,
        samples: int | None = None,
        show: Sequence[str] | None = None,
        group_bytes: int | None = None,
        **options: Unpack[StartOptions],
    ) -> AsyncOperationHandle:
        """Check rules on the rows of the table, or of a branch, a snapshot, or a time.

        Parameters
        ----------
        rules:
            SQL conditions, or rules such as ``{"not_null": "id"}``: see ``docs/validation.md``.
        publish:
            Publish the branch if no rule is broken.
        on_conflict:
            As of :meth:`publish_branch`.
        report_only:
            Succeed also if rules are broken, and report them.
        samples, show:
            How many sample rows for each rule and job, and their columns besides those of the rule.
        group_bytes:
            A larger partition, in bytes, is read by several jobs.
        """
        given = {
            "rules": rules,
            "branch": branch,
            "snapshot": snapshot,
            "as_of": as_of,
            "publish": publish,
            "on_conflict": on_conflict,
            "report_only": report_only,
            "samples": samples,
            "show": show,
            "group_bytes": group_bytes,
        }
        return await self._started("validate", given, options)

    async def _started(
        self, type: str, given: Mapping[str, Any], options: StartOptions
    ) -> AsyncOperationHandle:
        argument = {name: _plain(value) for name, value in given.items() if value is not None}
        return await start(self._connection, self.name, type, argument, options)


def _plain(value: Any) -> Any:
    """Times are sent as text, with their distance from UTC."""
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise InvalidArgument(f"the time {value} has no time zone: add one, such as datetime.UTC")
    return value.isoformat()
