"""The steps that publish an operation's files as one snapshot of an Iceberg table.

The pointer to the table's metadata is the head, in etcd. A step writes the next metadata file and contributes
the condition "the head is still my base" and the new head. If the head has moved meanwhile, the step is
prepared again on the new head. No data file is read, copied or renamed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table import snapshots as iceberg_snapshots
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate
from pyiceberg.utils.properties import property_as_bool

from distop.commit import contract
from distop.errors import Conflict, CorruptRecord, HeadConflict, SchemaConflict
from distop.lake.iceberg.branches import check_carried
from distop.lake.iceberg.metadata_files import TableFile, is_live, named, only_replaced, writer_of
from distop.lake.iceberg.provenance import DEPENDENT, provenance
from distop.lake.iceberg.snapshots import Draft, merged, snapshot_id_of
from distop.lake.iceberg.takeover import JobsOutput, manifests_of, output_of_jobs, take_over
from distop.lake.layout.evolution import check_new_names, evolution_of, put_on
from distop.lake.layout.model import Layout, check_format, file_io
from distop.lake.layout.staging import branch_of
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head


def fitted(layout: Layout, file: TableFile, arg: OperationArg) -> list[TableUpdate]:
    """The updates that add or widen columns for the operation's files; mostly none.

    Files may be added if the table still knows the schema and the partition spec of the files, even as
    earlier ones: Iceberg reads older files through the present schema.

    Raises
    ------
    SchemaConflict
        The table does not know the columns, or has changed so that they no longer fit.
    Conflict
        The table does not know the partitioning.
    PreconditionFailed
        distop does not write this table format version.
    """
    base, schema, spec = file.metadata, layout.schema, layout.spec
    check_format(base)
    if spec not in base.partition_specs:
        raise Conflict(
            f"{arg.id} wrote its files with partition spec {spec.spec_id}, which table {arg.table!r} "
            "does not know",
            hint="start the operation again: it will use the table's present partitioning",
        )
    evolution = evolution_of(arg)
    if evolution and file.location is not None:
        return schema_updates(base, put_on(base.schema(), schema, evolution, base.schemas))
    if not any(known.schema_id == schema.schema_id and known == schema for known in base.schemas):
        raise SchemaConflict(
            f"{arg.id} wrote its files with schema {schema.schema_id}, which table {arg.table!r} does "
            f"not know; its present schema is {base.current_schema_id}"
        )
    return []


def schema_updates(base: TableMetadata, schema: Schema) -> list[TableUpdate]:
    """The updates by which a table gets these columns; none if it has them. Raises as
    :func:`~distop.lake.layout.evolution.check_new_names`."""
    if schema == base.schema():
        return []
    check_new_names(schema, base.schema(), base.partition_specs)
    same = next((known.schema_id for known in base.schemas if known == schema), None)
    if same is not None:
        return [SetCurrentSchemaUpdate(schema_id=same)]
    new_id = 1 + max(known.schema_id for known in base.schemas)
    added = schema.model_copy(update={"schema_id": new_id})
    return [AddSchemaUpdate(schema_=added), SetCurrentSchemaUpdate(schema_id=-1)]


MAX_DROPPED = 100
"""Most old metadata files that one commit removes: as many as the log usually has."""

_DELETE_AFTER_COMMIT = TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED


@dataclass(frozen=True, kw_only=True)
class SnapshotContent:
    """The content of a new snapshot."""

    manifests: list[ManifestFile]
    summary: iceberg_snapshots.Summary
    facts: dict[str, Any]
    updates: Sequence[TableUpdate] = ()
    """Updates of the table's metadata, in addition to the snapshot."""


class IcebergStep(contract.TransactionalStep):
    """The common part of append and overwrite.

    Argument: ``expectedSnapshotId`` (optional): the table's current snapshot when the operation began,
    ``None`` if it had none. If given, a table that has moved since is refused (P6).
    """

    dependent: ClassVar[bool] = True
    """Whether what it does depends on what the table holds. Then the publication of a branch puts none of its
    snapshots on other content, not even one that only adds files."""

    def prepare(self, context: contract.FinishContext) -> contract.Contribution:
        """See :class:`TransactionalStep`.

        Raises
        ------
        HeadConflict
            The table was changed since the operation began, and the argument does not allow that.
        Conflict, PreconditionFailed
            The operation's files do not fit the table's schema, partitioning or format.
        CorruptRecord
            A manifest or the table's metadata is missing or damaged.
        """
        arg = context.view.arg
        layout = _layout_of(arg)
        output = output_of_jobs(arg, context.selection)
        file = _file_of(context, layout)
        base = file.metadata
        snapshot_id = snapshot_id_of(f"{arg.id}/{arg.uuid}")
        columns = fitted(layout, file, arg)
        _check_unpublished(file, snapshot_id, arg)
        io = file_io(base.location, arg.storage)
        draft = Draft(io, file, branch_of(arg), columns)
        moves = context.selection.moves
        properties = provenance(arg, moves)
        if draft.branch:
            check_carried(file, draft.branch, context.marks, moves, properties)
        try:
            self.check(draft, layout, output, arg)
            change = self.change(draft, layout, output, snapshot_id)
            if change is None and draft.branch and any(moves.values()):
                change = _without_rows(draft)
            if change is None and file.location is not None and not columns:
                return contract.Contribution(facts=_facts(output))
            if change is None:
                location = draft.write()
            else:
                if self.dependent and change.summary.operation == iceberg_snapshots.Operation.APPEND:
                    properties[DEPENDENT] = "true"
                change.summary.additional_properties.update(properties)
                location = draft.add_snapshot(
                    snapshot_id,
                    change.manifests,
                    change.summary,
                    now=context.now(),
                    updates=change.updates,
                )
        except BaseException:
            draft.discard()
            raise
        head = Head(
            metadata_location=location,
            snapshot_id=snapshot_id if change is not None and not draft.branch else base.current_snapshot_id,
            operation=str(arg.id),
        )
        facts = _facts(output) | ({contract.BRANCH: draft.branch} if draft.branch else {})
        if change is not None:
            facts |= {contract.SNAPSHOT: str(snapshot_id), **change.facts}
        facts |= dropped_metadata(draft)
        return contract.Contribution(
            txn=context.head_moved(head),
            facts=facts,
            discard=draft.discard,
        )

    @abstractmethod
    def change(
        self, draft: Draft, layout: Layout, output: JobsOutput, snapshot_id: int
    ) -> SnapshotContent | None:
        """The content of the snapshot; ``None`` if nothing changes."""

    def check(self, draft: Draft, layout: Layout, output: JobsOutput, arg: OperationArg) -> None:
        """Refuse a table that has moved, if the argument says so."""
        current = draft.base.current_snapshot()
        if self.refuses and not only_replaced(draft.file, current, self.expected):
            raise head_conflict(arg, self.expected, current)

    @property
    def refuses(self) -> bool:
        """Whether a table that others have changed is refused."""
        return "expectedSnapshotId" in self.argument

    @property
    def expected(self) -> int | None:
        """The snapshot that the operation began on."""
        given = self.argument.get("expectedSnapshotId")
        return None if given is None else int(given)


def head_conflict(
    arg: OperationArg, expected: int | None, current: iceberg_snapshots.Snapshot | None
) -> HeadConflict:
    """The error; it names the snapshot in between and its writer."""
    by = writer_of(current)
    found_id = None if current is None else current.snapshot_id
    again = "start the operation again"
    if arg.argument.get("mode") != "merge":
        again += ", or with on_conflict=rebase to build on the changes of others"
    return HeadConflict(
        f"{arg.id} began on {named(expected)} of table {arg.table!r}, which is now at {named(found_id)}"
        + ("" if current is None else f", written by {by}"),
        hint=again,
        details={"expected": str(expected or ""), "snapshot": str(found_id or ""), "by": by},
    )


class IcebergAppend(IcebergStep):
    """Adds the operation's files to the table's present content."""

    dependent: ClassVar[bool] = False

    def change(
        self, draft: Draft, layout: Layout, output: JobsOutput, snapshot_id: int
    ) -> SnapshotContent | None:
        """Adds the files of the jobs."""
        if output.empty:
            return None
        parent = draft.base.current_snapshot()
        kept = [manifest for manifest in manifests_of(parent, draft.io) if is_live(manifest)]
        added = take_over(draft, layout, output, snapshot_id)
        summary = iceberg_snapshots.update_snapshot_summaries(
            iceberg_snapshots.Summary(operation=iceberg_snapshots.Operation.APPEND, **added_counts(output)),
            parent.summary if parent else None,
        )
        manifests = [*added, *merged(draft, kept, snapshot_id)]
        return SnapshotContent(
            manifests=manifests, summary=summary, facts={contract.ADOPTED_FROM: output.adopt_from}
        )


# -- the base ----------------------------------------------------------------------------------------


def _layout_of(arg: OperationArg) -> Layout:
    recorded = arg.argument.get("layout")
    if not isinstance(recorded, dict):
        raise CorruptRecord(f"the argument of {arg.id} records no layout of the table")
    return Layout.from_json(recorded)


def _file_of(context: contract.FinishContext, layout: Layout) -> TableFile:
    """The present table; for a new table, its initial metadata."""
    if not context.head.exists:
        table = context.table
        return TableFile.of(layout.new_metadata(table.location, uuid=table.uuid, now=context.now()))
    location = decode(context.head.value, Head, context.head.key).metadata_location
    return TableFile.read(location, context.view.arg.storage)


def _without_rows(draft: Draft) -> SnapshotContent:
    """A branch snapshot without rows: watermarks of a branch are stored only in its snapshots."""
    parent = draft.base.current_snapshot()
    manifests = [manifest for manifest in manifests_of(parent, draft.io) if is_live(manifest)]
    summary = iceberg_snapshots.update_snapshot_summaries(
        iceberg_snapshots.Summary(operation=iceberg_snapshots.Operation.APPEND),
        parent.summary if parent else None,
    )
    return SnapshotContent(manifests=manifests, summary=summary, facts={})


def _check_unpublished(file: TableFile, snapshot_id: int, arg: OperationArg) -> None:
    # Not a Conflict: that would abort the operation, and its files would be removed although the snapshot
    # uses them.
    if snapshot_id in file.snapshot_ids:
        raise CorruptRecord(
            f"table {arg.table!r} holds snapshot {snapshot_id} of {arg.id}, which etcd says is not published",
            hint="was etcd or the table restored from a backup? roll the table back to an earlier snapshot",
        )


def dropped_metadata(draft: Draft) -> dict[str, Any]:
    """The fact that names metadata files to remove after the commit, if the table wants that."""
    if not draft.dropped or not property_as_bool(draft.base.properties, _DELETE_AFTER_COMMIT, False):
        return {}
    return {contract.DROPPED_METADATA: draft.dropped[:MAX_DROPPED]}


# -- facts -------------------------------------------------------------------------------------------


def added_counts(output: JobsOutput) -> dict[str, str]:
    counts = {
        iceberg_snapshots.ADDED_DATA_FILES: output.files,
        iceberg_snapshots.ADDED_RECORDS: output.rows,
        iceberg_snapshots.ADDED_FILE_SIZE: output.bytes,
    }
    return {name: str(count) for name, count in counts.items() if count}


def _facts(output: JobsOutput) -> dict[str, Any]:
    facts: dict[str, Any] = {"rows": output.rows, "files": output.files, "bytes": output.bytes}
    return facts | ({"withheldPartitions": output.withheld} if output.withheld else {})
