"""``validate``: reads the rows of a snapshot, and reports which rules they break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from distop.errors import ArgumentTooLarge, PreconditionFailed
from distop.lake.layout.staging import RULES
from distop.metastore.records.operation import Effect, OperationArg, StepRecord
from distop.metastore.records.record import convert
from distop.operations.api import DistributedOperation, Plan, PlanRequest
from distop.operations.arguments import invalid
from distop.operations.job import JobContext
from distop.spark_jobs.rules.model import MAX_SAMPLES, RawRules, Rule, RuleSet

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from distop.spark_jobs.tables import SnapshotGroups, TableSnapshot

GROUP_BYTES = 1 << 30
"""A larger partition, in bytes, is read by several jobs, unless a uniqueness rule needs all of it."""
MAX_PLAN_BYTES = 1_000_000


class ValidateArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which rows to check, and with which rules."""

    rules: RawRules
    """See :class:`~distop.spark_jobs.rules.model.RuleArgument`; text is a ``check``."""
    branch: str | None = None
    """Check this branch (or tag). Without ``branch``, ``snapshot`` or ``as_of``: the table's present snapshot
    at the start."""
    snapshot: str | int | None = None
    """Id of a snapshot; in JSON a string, since numbers lose their last digits there."""
    as_of: str | None = None
    """The snapshot that was present at this time, such as ``2024-05-01T08:00:00Z``."""
    publish: bool = False
    """Publish the branch if no rule is broken: exactly the checked snapshot."""
    on_conflict: Literal["refuse", "rebase"] = "refuse"
    """With ``publish``: what to do if others have written to the table since the branch began."""
    report_only: bool = False
    """Succeed also if rules are broken, and report them."""
    samples: int = 5
    """Sample rows for each rule and job."""
    show: list[str] | None = None
    """Columns of these rows, in addition to those of the rule. Default: those that identify a row or its
    partition, if the table defines them."""
    group_bytes: int = GROUP_BYTES
    """About how many bytes one job reads at most. Uniqueness rules need a whole partition."""


class Validate(DistributedOperation):
    """Checks rules on the rows of one snapshot, a job for each partition. Does not change the table."""

    type = "validate"
    effect = Effect.READS
    stages_files = True

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        InvalidArgument
            A rule is invalid, does not parse, or names unknown columns.
        PreconditionFailed
            There is no such snapshot, or the table is not an Iceberg table.
        """
        from distop.spark_jobs.maintenance.branches import publication
        from distop.spark_jobs.maintenance.snapshots import parsed
        from distop.spark_jobs.rules.parsing import parse_rules, shown_columns, told_apart
        from distop.spark_jobs.tables import SnapshotGroups, recorded

        argument = parsed(request, self.type, ValidateArgument, partitions=True)
        if not 0 <= argument.samples <= MAX_SAMPLES:
            raise invalid("samples", f"--arg samples must lie between 0 and {MAX_SAMPLES}")
        if argument.group_bytes < 1:
            raise invalid("group_bytes", "--arg group_bytes must be at least 1")
        if request.options.max_failed_partitions:
            raise invalid("max_failed_partitions", "a failed job has not checked its rows")
        snapshot = _snapshot(request, argument)
        metadata = snapshot.metadata
        sources = [term.source_id for spec in metadata.partition_specs for term in spec.fields]
        parsed_rules = parse_rules(argument.rules, snapshot.schema)
        rules = told_apart(
            RuleSet(
                rules=parsed_rules,
                shown=shown_columns(argument.show, snapshot.schema, sources),
                samples=argument.samples,
                report_only=argument.report_only,
                warnings=_within_partitions(parsed_rules, metadata),
            )
        )
        frozen: dict[str, Any] = {
            "layout": {"properties": dict(metadata.properties)},
            RULES: msgspec.to_builtins(rules),
        }
        if argument.publish:
            frozen["publish"] = publication(request, argument.branch, argument.on_conflict, rules)
        names: list[str] = []
        if snapshot.snapshot is not None:
            group_bytes = 0 if rules.has_unique else argument.group_bytes
            frozen |= recorded(snapshot, group_bytes)
            names = _chosen(SnapshotGroups.of(snapshot, group_bytes), request.partitions)
        size = len(msgspec.json.encode([frozen, names]))
        if size > MAX_PLAN_BYTES:
            raise ArgumentTooLarge(
                f"the plan of {len(names):,} jobs takes {size:,} bytes, the limit is {MAX_PLAN_BYTES:,}",
                hint="name some of the partitions",
                details={"field": "partitions"},
            )
        return Plan(argument=frozen, partitions=names)

    def plan_holds(self, plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
        """A snapshot never changes; only if it is to be published must it be the present one of its
        branch."""
        return request.head is not None and "publish" not in plan.argument

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """The check of all findings; then the publication of the branch, if requested."""
        steps = [StepRecord(step="rules.gate")]
        if "publish" in operation.argument:
            publish = operation.argument["publish"]
            steps.append(StepRecord(step="iceberg.publish_branch", argument=publish))
        return steps

    def start_or_resume_job(self, job: JobContext) -> Mapping[str, Any]:
        """Check one partition, or some files of it.

        Returns
        -------
        ``rows`` and ``files``; if rules are broken ``violated``, see :mod:`distop.spark_jobs.rules.gate`.

        Raises
        ------
        JobFailed
            A data file is missing, or a rule cannot be evaluated for some row.
        """
        from distop.spark_jobs.rules.checks import RowChecks
        from distop.spark_jobs.rules.gate import table_io, write_findings
        from distop.spark_jobs.tables import SnapshotGroups

        operation = job.operation
        rules = convert(operation.argument[RULES], RuleSet)
        snapshot = SnapshotGroups.of_operation(operation)
        files = snapshot.group(job.partition)
        with RowChecks(rules, job.scratch_path, job.raise_if_cancelled) as checks:
            for file, rows in snapshot.rows(files, rules.columns):
                job.raise_if_cancelled()
                checks.check(rows, file.path.removeprefix(operation.location).lstrip("/"))
            job.raise_if_cancelled()
            found = checks.finish()
            result = {"rows": checks.rows, "checkedFiles": len(files)}
        return result | write_findings(job, table_io(operation), found)

    def cancel_job_and_cleanup(self, job: JobContext) -> None:
        """Remove the attempt's report."""
        from distop.spark_jobs.rules.gate import remove_findings

        remove_findings(job)


def _within_partitions(rules: Sequence[Rule], metadata: TableMetadata) -> list[str]:
    """Warnings of uniqueness rules that rows of different partitions may break unseen: rows with the same
    values are in one partition only if these determine it."""
    sources = {term.source_id for spec in metadata.partition_specs for term in spec.fields}
    names = {metadata.schema().find_column_name(source) for source in sources}
    several = len(metadata.partition_specs) > 1
    return [
        f"{rule.name} was checked within each partition: rows of different ones may have the same values"
        for rule in rules
        if rule.kind == "unique" and sources and (several or not names <= set(rule.columns))
    ]


def _snapshot(request: PlanRequest, argument: ValidateArgument) -> TableSnapshot:
    from distop.lake.storage.storage import storage_of
    from distop.spark_jobs.maintenance.snapshots import snapshot_id, time_of
    from distop.spark_jobs.tables import open_snapshot

    if request.head is None:
        raise PreconditionFailed(f"nothing has been published to table {request.table.name!r}")
    return open_snapshot(
        request.head.metadata_location,
        storage_of(request.table),
        snapshot_id=snapshot_id(argument.snapshot),
        as_of_ms=None if argument.as_of is None else int(time_of("as_of", argument.as_of) * 1000),
        branch=argument.branch,
    )


def _chosen(snapshot: SnapshotGroups, wanted: Sequence[str] | None) -> list[str]:
    """The names of the groups of these partitions, or of all."""
    if wanted is None:
        return list(snapshot.groups)
    names = list(snapshot.partitions)
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        raise invalid(
            "partitions",
            f"the snapshot has no partition {unknown[0]!r}",
            f"it has {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}",
        )
    return [group for name in dict.fromkeys(wanted) for group in snapshot.partitions[name]]
