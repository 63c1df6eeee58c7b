"""The plan and the jobs of a validation: which rows of a snapshot are checked by which job, and the check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pyiceberg.table.metadata import TableMetadata

from distop.errors import ArgumentTooLarge, PreconditionFailed
from distop.lake.iceberg.branches import branch_snapshot
from distop.lake.layout.staging import RULES
from distop.lake.rules.model import MAX_SAMPLES, Rule, RuleSet
from distop.lake.rules.parsing import distinguishable, parse_rules, shown_columns
from distop.lake.storage.storage import storage_of
from distop.operations import JobContext, Plan, PlanRequest, convert
from distop.operations.arguments import invalid
from distop.spark_jobs.maintenance.arguments import ValidateArgument, snapshot_id, time_of
from distop.spark_jobs.rules.gate import RowChecks, table_io, write_findings
from distop.spark_jobs.tables import SnapshotGroups, TableSnapshot, open_snapshot, recorded

MAX_PLAN_BYTES = 1_000_000


def plan_validation(request: PlanRequest, argument: ValidateArgument) -> Plan:
    """The plan of :class:`.validate.Validate`: its rules, and which files each job reads."""
    if not 0 <= argument.samples <= MAX_SAMPLES:
        raise invalid("samples", f"--samples must lie between 0 and {MAX_SAMPLES}")
    if argument.group_bytes < 1:
        raise invalid("group_bytes", "--group-bytes must be at least 1")
    if request.options.max_failed_partitions:
        raise invalid("max_failed_partitions", "a failed job has not checked its rows")
    snapshot = _snapshot(request, argument)
    metadata = snapshot.metadata
    sources = [term.source_id for spec in metadata.partition_specs for term in spec.fields]
    parsed_rules = parse_rules(argument.rules, snapshot.schema)
    rules = distinguishable(
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
        names = SnapshotGroups.of(snapshot, group_bytes).chosen(request.partitions)
    size = len(msgspec.json.encode([frozen, names]))
    if size > MAX_PLAN_BYTES:
        raise ArgumentTooLarge(
            f"the plan of {len(names):,} jobs takes {size:,} bytes, the limit is {MAX_PLAN_BYTES:,}",
            hint="name some of the partitions",
            details={"field": "partitions"},
        )
    return Plan(argument=frozen, partitions=names)


def run_job(job: JobContext) -> dict[str, Any]:
    """Check the rows of one job. Returns facts and what violates a rule."""
    operation = job.operation
    rules = convert(operation.argument[RULES], RuleSet)
    snapshot = SnapshotGroups.of_operation(operation)
    files = snapshot.group(job.partition)
    with RowChecks(rules, job.scratch_path, job.raise_if_cancelled) as checks:
        for file, rows in snapshot.rows(files, rules.columns):
            job.raise_if_cancelled()
            checks.check(rows, file.path.removeprefix(operation.location).lstrip("/"))
        job.raise_if_cancelled()
        findings = checks.finish()
        result = {"rows": checks.rows, "checkedFiles": len(files)}
    return result | write_findings(job, table_io(operation), findings)


def publication(
    request: PlanRequest,
    branch: str | None,
    on_conflict: str,
    rules: RuleSet,
) -> dict[str, Any]:
    """The argument of the step with which a validation publishes what it has checked.

    Raises :class:`~distop.errors.InvalidArgument` if that is impossible.
    """
    if branch is None:
        raise invalid("publish", "only a branch can be published: name it")
    if request.partitions is not None:
        raise invalid("publish", "to publish it, the whole branch must be checked")
    if rules.report_only:
        raise invalid("publish", "a published branch must keep the rules; --report-only allows violations")
    if on_conflict == "rebase" and rules.has_unique:
        raise invalid("on_conflict", "concurrently written rows may duplicate those of the branch", "refuse")
    return {
        "branch": branch,
        "snapshotId": str(branch_snapshot(request, branch).snapshot_id),
        "onConflict": on_conflict,
    }


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
    if request.head is None:
        raise PreconditionFailed(f"nothing has been published to table {request.table.name!r}")
    return open_snapshot(
        request.head.metadata_location,
        storage_of(request.table),
        snapshot_id=snapshot_id(argument.snapshot),
        as_of_ms=None if argument.as_of is None else int(time_of("as_of", argument.as_of) * 1000),
        branch=argument.branch,
    )
