"""Whether a table's files match etcd. Loads pyiceberg, so the doctor imports it where it looks at files.

The checks are pure: listings and records in, findings out. Listings and etcd are read at different moments:
folders first, so that every file belongs to an operation that etcd knew by then, as running or as ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from distop.catalog.pointers import FOREIGN
from distop.coordinator.doctor.findings import DOCTOR, Finding, RemoveFiles, RepairTxn, needs_no_files
from distop.coordinator.doctor.reading import ObservedTable, read_ends
from distop.coordinator.work.work import LIMIT_S
from distop.errors import Busy, CorruptRecord, DistopError, PreconditionFailed, UnsupportedType
from distop.lake.cleanup.inspection import TableView, staged_files, staged_folders, view_table
from distop.lake.iceberg.provenance import done_by, rewound
from distop.lake.iceberg.takeover import is_spared
from distop.lake.iceberg.watermarks import is_after
from distop.lake.index.lookup import FOLDER as INDEX
from distop.lake.layout.staging import PRIVATE
from distop.lake.storage.storage import Entry, storage_of
from distop.metastore.backlog.batches import AppliedRecord, ordering_of
from distop.metastore.backlog.undoing import Done, RollbackDifference, UndoneRecord, batch_keys, rollback_txn
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import KeyValue, Txn, unchanged
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord, RequestRecord
from distop.metastore.records.record import decode, readable
from distop.metastore.records.table import Head, TableRecord, Watermarks
from distop.metastore.records.watermarks import Chunks, Fetch, Marks, decode_recent, position
from distop.metastore.tables.watermarks import ChunkReader

STAGED_GRACE_S = 600.0
"""Minimum age of a staged file for removal by ``--fix``."""

SETTLES_S = 5.0
"""How long attempts that did not count may take to remove their files."""

MAX_NAMED = 5
"""Most files named in a sentence."""

CLOCKS_S = 60.0
"""Tolerated clock skew in seconds between coordinators and other writers of a table."""


def histories(table: ObservedTable) -> dict[OperationId, HistoryRecord]:
    """The readable history of a table."""
    records = ((operation, readable(kv.value, HistoryRecord)) for operation, kv in table.history.items())
    return {operation: record for operation, record in records if record is not None}


def unowned_folders(table: ObservedTable, folders: Iterable[str]) -> dict[str, OperationId | None]:
    """Staging folders of operations that ended without publishing; ``None``: the operation is unknown."""
    args = (active.tracked.arg for active in table.operations.values() if active.tracked is not None)
    live = {f"{arg.type}-{arg.uuid}" for arg in args}
    ended = {
        f"{operation.type}-{record.uuid}": (operation, needs_no_files(record))
        for operation, record in histories(table).items()
        if record.uuid
    }
    unowned: dict[str, OperationId | None] = {}
    if any(active.tracked is None and active.keys_count for active in table.operations.values()):
        return unowned  # the folders of an unreadable operation are unknown
    for folder in folders:
        name = folder.rpartition("/")[2]
        if name in live:
            continue
        operation, needless = ended.get(name, (None, False))
        if operation is None and folder.startswith(f"{INDEX}/"):
            continue  # no snapshot refers to parts of an index, and they may be older than the history
        if operation is None:
            unowned[folder] = None
        elif needless or passing(folder):
            unowned[folder] = operation
    return unowned


def passing(folder: str) -> bool:
    """Whether none of the files is needed after the operation's end, whatever its outcome."""
    return folder.startswith(f"{PRIVATE}/")


def check_staged(
    observed: ObservedTable,
    table: TableRecord,
    unowned: Mapping[str, OperationId | None],
    files: Mapping[str, Sequence[Entry]],
    view: TableView | None,
    now: float,
) -> list[Finding]:
    """Staged files of operations that no process will publish or remove.

    Parameters
    ----------
    files:
        Of each folder of ``unowned``.
    view:
        Folders of unknown operations are reported only after a deep look: their operations may be older than
        the history.
    now:
        Seconds since the Unix epoch.
    """
    findings = []
    for folder, operation in sorted(unowned.items()):
        here = list(files.get(folder, ()))
        if operation is None:
            if view is None or view.referred is None or is_spared(folder.rpartition("/")[2], now):
                continue
            here = [file for file in here if file.name not in (view.referred or ())]
        if not here:
            continue
        old = tuple(file.name for file in here if now - file.modified_at > STAGED_GRACE_S)
        where = f"{table.location}/{folder}"
        fix = None
        if operation is not None and old:
            does = f"removed {len(old)} files from {where}"
            storage = storage_of(table)
            fix = RemoveFiles(does, operation, where, old, storage, passing(folder))
        if operation is None:
            sentence = f"{len(here)} files in {where} belong to no operation, and no snapshot refers to them"
            remedy = "were they written by another program? if not, remove them"
        else:
            sentence = f"{operation} has ended and does not need them: {len(here)} files are left in {where}"
            remedy = (
                f"distop cluster doctor --fix removes those older than {STAGED_GRACE_S / 60:.0f} minutes"
                if old
                else f"once they are {STAGED_GRACE_S / 60:.0f} minutes old: distop cluster doctor --fix"
            )
        findings.append(
            observed.finding(
                "STAGED_FILES_WITHOUT_OWNER",
                operation=str(operation or ""),
                subject=folder,
                persists_s=SETTLES_S,
                sentence=sentence,
                remedy=remedy,
                fix=fix,
            )
        )
    return findings


def head_unreadable(table: ObservedTable, head: Head, why: str, *, missing: bool) -> Finding:
    """The metadata file cannot be read."""
    return table.finding(
        "HEAD_METADATA_MISSING" if missing else "HEAD_UNREADABLE",
        subject=head.metadata_location,
        persists_s=1.0,
        sentence=f"the head of table {table.name!r} cannot be read: {why}",
        remedy="put the file back from a backup, or set the head to an earlier metadata file of the table"
        if missing
        else "give this coordinator access to the table's location",
    )


def not_supported(table: ObservedTable, head: Head, error: UnsupportedType) -> Finding:
    """The table is whole, but has a column that distop does not read."""
    return table.finding(
        "UNSUPPORTED_TYPE",
        subject=head.metadata_location,
        persists_s=1.0,
        sentence=f"table {table.name!r} is refused: {error.message}",
        remedy=error.hint,
    )


def check_head(
    table: ObservedTable, head: Head, view: TableView, chunks: Fetch | None = None
) -> list[Finding]:
    """Head, history and watermarks must agree (they move in one transaction). Blocks.

    Parameters
    ----------
    chunks:
        Reads the watermarks that were not written recently.
    """
    findings = []
    if head.snapshot_id is not None and head.snapshot_id not in view.snapshots:
        findings.append(
            _of_head(
                table,
                "HEAD_SNAPSHOT_UNKNOWN",
                f"the head names snapshot {head.snapshot_id}, which {head.metadata_location} does not have",
                "the head was written by hand; set it to a metadata file that has this snapshot",
            )
        )
    if view.goes_back:
        findings.append(
            _of_head(
                table,
                "METADATA_TIMES_GO_BACK",
                f"times in the metadata of table {table.name!r} go back by more than a minute: a program "
                "with a wrong clock has written it, and Iceberg's Java library (Spark, Trino, "
                "Flink) refuses it",
                f"any change of the table puts them in order, such as: distop table alter {table.name} "
                "--property user.note=repaired",
            )
        )
    findings += _unpublished(table, head, view)
    try:
        marks = Marks(decode_recent(table.watermarks.value), Chunks(chunks))
        findings += _watermarks(table, marks, view.watermarks)
        findings += _watermarks_of_gone(table, marks, view)
    except CorruptRecord:
        return findings
    if view.missing:
        findings.append(
            _of_head(
                table,
                "TABLE_FILES_MISSING",
                f"files that table {table.name!r} refers to do not exist: {_named(view.missing)}",
                "put them back from a backup, or roll the table back to a snapshot that is whole",
            )
        )
    return findings


def gone_from_history(view: TableView) -> Done:
    """The batches and requests that snapshots have applied which a rollback has taken out of the table's
    history, and no snapshot in it has, each with its operation."""
    if not view.gone:
        return Done()
    gone, live = done_by(view.gone), done_by(view.live)
    return Done(
        batches={name: value for name, value in gone.batches.items() if name not in live.batches},
        unordered={name: value for name, value in gone.unordered.items() if name not in live.unordered},
        requests={name: value for name, value in gone.requests.items() if name not in live.requests},
    )


def counted_as_applied(table: ObservedTable, gone: Done, ends: Mapping[bytes, KeyValue], now: float) -> Done:
    """Those of the batches and requests that count as applied, and do not wait to be applied again.

    Parameters
    ----------
    gone:
        See :func:`gone_from_history`.
    ends:
        Their records by key, at the table's revision, and what rollbacks have taken out.
    now:
        Seconds since the Unix epoch: requests are remembered for a time.

    Raises
    ------
    CorruptRecord
        One of the records cannot be read.
    """
    ordering = ordering_of(table.ordering)

    def is_applied(name: str, operation: str, *, ordered: bool) -> bool:
        end, *waiting = (ends.get(key) for key in batch_keys(table.keys, name, ordered=ordered))
        if end is None or not end.exists or any(kv is not None and kv.exists for kv in waiting):
            return False
        record = decode(end.value, AppliedRecord, end.key)
        is_returning = name in (ordering.returning if ordered else ordering.returning_unordered)
        return (record.outcome, record.operation) == ("applied", operation) and not is_returning

    undone = ends[table.keys.undone]
    known = decode(undone.value, UndoneRecord, undone.key).requests if undone.exists else {}

    def is_done(name: str, operation: str) -> bool:
        kv = ends.get(table.keys.request(name))
        if kv is None or not kv.exists:
            return False
        record, taken = decode(kv.value, RequestRecord, kv.key), known.get(name)
        is_undone = taken is not None and taken.operation in ("", record.done_by)
        if not record.done_by or is_undone or record.forget_at <= now:
            return False
        return operation in ("", record.done_by)

    return Done(
        batches={name: by for name, by in gone.batches.items() if is_applied(name, by, ordered=True)},
        unordered={name: by for name, by in gone.unordered.items() if is_applied(name, by, ordered=False)},
        requests={name: value for name, value in gone.requests.items() if is_done(name, value[0])},
    )


def not_in_history(table: ObservedTable, applied: Done, fix: RepairTxn | None) -> Iterator[Finding]:
    """What is gone from the table's history must not count as applied: a rollback takes it back in its
    transaction, but those of older releases, and a head that was set by hand, did not."""
    batches = [f"batch {name} ({by})" for name, by in {**applied.batches, **applied.unordered}.items()]
    names = [*batches, *(f"request {name} ({by})" for name, (by, _) in applied.requests.items())]
    if names:
        yield table.finding(
            "APPLIED_NOT_IN_HISTORY",
            sentence=f"table {table.name!r} was set back to a snapshot before what still counts as applied: "
            f"{_named(names)}",
            remedy=f"{DOCTOR} takes it back, as a rollback does: batches wait again, held until "
            f"distop backlog open {table.name}, and requests are refused (ROLLED_BACK) without --again"
            if fix is not None
            else f"repeat it later: {DOCTOR}",
            fix=fix,
        )


def check_values(table: ObservedTable, view: TableView) -> list[Finding]:
    """Files must be listed under the values of their rows, or filters pass over them."""
    if not view.rounded:
        return []
    return [
        _of_head(
            table,
            "PARTITION_VALUES_ROUNDED",
            f"table {table.name!r} lists {len(view.rounded)} files under partition values that were rounded "
            f"to 32 bits, where filters by the right ones do not find them: {_named(view.rounded)}",
            f"distop table compact {table.name} rewrites them, whatever their size",
        )
    ]


def _named(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else ""
    return ", ".join(paths[:MAX_NAMED]) + more


def _unpublished(table: ObservedTable, head: Head, view: TableView) -> Iterator[Finding]:
    """The newest published operation must be in the table, unless something newer has replaced it."""
    revisions = {str(operation): kv.mod_revision for operation, kv in table.history.items()}
    published = [
        (revisions[str(operation)], operation, record)
        for operation, record in histories(table).items()
        if record.outcome == "success" and record.facts.get("snapshotId")
    ]
    if not published:
        return
    revision, operation, record = max(published, key=lambda item: item[0])
    snapshot = str(record.facts["snapshotId"])
    if snapshot in {str(known) for known in view.snapshots}:
        return
    if head.operation in revisions:
        older = revisions[head.operation] < revision
    else:
        # Another program has moved the head; expired snapshots from before are not checked.
        older = view.current_at < record.finished_at - CLOCKS_S
    if older:
        yield _of_head(
            table,
            "PUBLISHED_SNAPSHOT_MISSING",
            f"{operation} has published snapshot {snapshot}, which table {table.name!r} does not contain: "
            "its watermarks are ahead of its rows",
            "was the head set back by hand, or the table restored? set the head to the newest metadata file",
            str(operation),
        )


def _watermarks(table: ObservedTable, marks: Marks, expected: Watermarks) -> Iterator[Finding]:
    marks.chunks.know(position(source, name) for source, names in expected.items() for name in names)
    behind = [
        f"{source} {partition} at {marks.value(source, partition) or 'nothing'}, rows up to {value}"
        for source, partitions in sorted(expected.items())
        for partition, value in sorted(partitions.items())
        if (current := marks.value(source, partition)) is None or is_after(value, current)
    ]
    if behind:
        named = "; ".join(behind[:MAX_NAMED])
        more = f"; {len(behind) - MAX_NAMED} more" if len(behind) > MAX_NAMED else ""
        yield _of_head(
            table,
            "WATERMARKS_BEHIND_HEAD",
            f"watermarks of table {table.name!r} are behind its rows: {named}{more}",
            "do not ingest these sources before the watermarks are put back: their rows would be duplicated",
        )


def _watermarks_of_gone(table: ObservedTable, marks: Marks, view: TableView) -> Iterator[Finding]:
    """Sources count as ingested up to where snapshots went that a rollback has taken out. It may have been
    asked to keep them."""
    if not view.gone:
        return
    try:
        before = rewound(view.live, view.gone, marks)
    except PreconditionFailed:
        return  # it is unknown what they moved
    ahead = [
        f"{source} {partition} at {present}"
        for source, partition in sorted(
            {
                (source, partition)
                for marked in (marks, before)
                for source, partitions in marked.recent.items()
                for partition in partitions
            }
        )
        if (present := marks.value(source, partition)) not in (None, before.value(source, partition))
    ]
    if ahead:
        yield _of_head(
            table,
            "WATERMARKS_OF_ROLLED_BACK",
            f"watermarks of table {table.name!r} are those of rows that were rolled back: {_named(ahead)}",
            f"nothing, unless these rows should be ingested again: distop watermark rewind {table.name}",
        )


def _of_head(table: ObservedTable, code: str, sentence: str, remedy: str, operation: str = "") -> Finding:
    return table.finding(code, operation=operation, persists_s=1.0, sentence=sentence, remedy=remedy)


class FileLooks:
    """Looks at the files of tables, for one doctor.

    Parameters
    ----------
    blocking:
        Runs code that lists and reads files, given the table.
    wall:
        Seconds since the Unix epoch.
    """

    def __init__(
        self, client: EtcdClient, blocking: Callable[..., Awaitable[Any]], wall: Callable[[], float]
    ) -> None:
        self._client = client
        self._blocking = blocking
        self._wall = wall

    async def folders_of(self, table: TableRecord) -> list[str] | Exception:
        """The staging folders of a table, or the error of its storage."""
        try:
            folders: list[str] = await self._blocking(table.name, staged_folders, table)
            return folders
        except Exception as error:  # reported among the findings about files
            return error

    async def look(
        self, observed: ObservedTable, table: TableRecord, folders: list[str] | Exception, *, deep: bool
    ) -> list[Finding]:
        """What is wrong with the files of a table. Raises the error of its storage."""
        findings: list[Finding] = []
        view, head = None, _head_of(observed) if table.format == "iceberg" else None
        if head is not None:
            view, failed = await self._view(observed, table, head, deep=deep)
            findings += [failed] if failed is not None else []
            if view is not None:
                chunks = ChunkReader(self._client, table, observed.revision)
                findings += await self._blocking(observed.name, check_head, observed, head, view, chunks)
                findings += check_values(observed, view)
                if view.gone:
                    findings += await self._not_in_history(observed, view)
        if isinstance(folders, Exception):
            if findings:
                return findings  # such as a head that cannot be read, either
            raise folders
        unowned = unowned_folders(observed, folders)
        files: dict[str, list[Entry]] = {}
        for folder, operation in unowned.items():
            if operation is not None or deep:
                files[folder] = await self._blocking(observed.name, staged_files, table, folder)
        return findings + check_staged(observed, table, unowned, files, view, self._wall())

    async def _not_in_history(self, observed: ObservedTable, view: TableView) -> list[Finding]:
        """What counts as applied, and was taken out of the table's history."""
        gone = gone_from_history(view)
        try:
            ends = await read_ends(self._client, observed, gone)
            applied = counted_as_applied(observed, gone, ends, self._wall())
        except CorruptRecord:
            return []  # a deep look reports it
        if not any((applied.batches, applied.unordered, applied.requests)):
            return []
        undoes = RollbackDifference(gone=applied, back=Done(), left=done_by(view.live))
        fix, by = None, str(OperationId(observed.name, FOREIGN, 0))
        with suppress(Busy, PreconditionFailed):  # others are put back at present, or these are too many
            txn = await rollback_txn(self._client, observed.keys, undoes, by=by, now=self._wall())
            fix = RepairTxn("took it back", Txn((unchanged(observed.head),)) + txn)
        return list(not_in_history(observed, applied, fix))

    async def _view(
        self, observed: ObservedTable, table: TableRecord, head: Head, *, deep: bool
    ) -> tuple[TableView | None, Finding | None]:
        def view() -> TableView:
            return view_table(head.metadata_location, deep=deep, storage=storage_of(table))

        try:
            limit = {"limit_s": LIMIT_S} if deep else {}
            return await self._blocking(observed.name, view, **limit), None
        except UnsupportedType as error:
            return None, not_supported(observed, head, error)
        except CorruptRecord as error:
            return None, head_unreadable(observed, head, error.message, missing=True)
        except DistopError as error:
            return None, head_unreadable(observed, head, error.message, missing=False)
        except Exception as error:  # any error of a file system
            why = f"{type(error).__name__}: {error}"
            return None, head_unreadable(observed, head, why, missing=False)


def _head_of(observed: ObservedTable) -> Head | None:
    return readable(observed.head.value, Head)  # what cannot be read is reported among the records
