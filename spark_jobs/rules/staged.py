"""Rules on rows before they are published: write, check, publish.

Each job checks the rows that it stages, while it writes them. All findings together decide at the end of the
operation, before anything is published: a broken rule leaves the table and the watermarks unchanged, and the
staged files are swept.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa
from pyiceberg.schema import Schema

from distop.errors import InvalidArgument, PreconditionFailed
from distop.lake.layout.model import Layout
from distop.lake.rows import new_layout
from distop.metastore.records.record import convert
from distop.metastore.records.table import TableRecord
from distop.operations.arguments import invalid
from distop.operations.job import JobContext
from distop.spark_jobs.rules.model import MAX_SAMPLES, ChecksArgument, RuleSet

if TYPE_CHECKING:
    from distop.spark_jobs.rules.checks import RowChecks

OPTION = "checks"
"""Option of a table, and field of an argument."""


def rules_of(
    table_options: Mapping[str, Any], argument: ChecksArgument | None, layout: Layout
) -> RuleSet | None:
    """The rules for an operation: those of its table, which always apply, and its own.

    Raises :class:`~distop.errors.InvalidArgument` if they do not fit the table's columns.
    """
    given = [one for one in (_of_table(table_options), argument) if one is not None]
    if not given:
        return None
    from distop.spark_jobs.rules.parsing import parse_rules, shown_columns, told_apart

    field = f"{OPTION}.rules"
    parsed = parse_rules([rule for one in given for rule in _listed(one.rules)], layout.schema, field)
    for rule in parsed:
        if rule.kind == "unique":
            raise invalid(
                field,
                f"rule {rule.name!r} compares rows of several jobs, and no job sees all of them",
                "ingest into a branch, and validate that before it is published: see docs/validation.md",
            )
    samples = max(one.samples for one in given)
    if not 0 <= samples <= MAX_SAMPLES:
        raise invalid(f"{OPTION}.samples", f"samples must lie between 0 and {MAX_SAMPLES}")
    asked = [name for one in given for name in one.show or ()]
    sources = [term.source_id for term in layout.spec.fields]
    rules = RuleSet(
        rules=parsed,
        shown=shown_columns(asked or None, layout.schema, sources, field=f"{OPTION}.show"),
        samples=samples,
        report_only=all(one.report_only for one in given),
    )
    return told_apart(rules, field)


def check_option(table: TableRecord, schema: Schema | None) -> None:
    """Refuse rules of a table that are invalid, or do not fit its columns if those are known.

    Raises :class:`~distop.errors.InvalidArgument`.
    """
    _of_table(table.options)
    if schema is not None:
        rules_of(table.options, None, new_layout(table, schema))


def refuse_unchecked(table: str, options: Mapping[str, Any]) -> None:
    """Refuse a kind of write that checks no rules, if the table has some.

    Raises :class:`~distop.errors.PreconditionFailed`.
    """
    rules = _of_table(options)
    if rules is not None and not rules.report_only:
        raise PreconditionFailed(
            f"rows of table {table!r} must keep rules, which this kind of write does not check",
            hint="ingest them: files with ingest, a DataFrame with ingest_dataframe",
        )


def _of_table(options: Mapping[str, Any]) -> ChecksArgument | None:
    raw = options.get(OPTION)
    if raw is None:
        return None
    try:
        return convert(raw, ChecksArgument)
    except msgspec.ValidationError as error:
        raise InvalidArgument(
            f"the table's option {OPTION}: {error}", details={"field": f"options.{OPTION}"}
        ) from None


def _listed(rules: Any) -> list[Any]:
    return list(rules) if isinstance(rules, list) else [rules]


class JobChecks:
    """Checks the rows that one job stages; without rules it does nothing."""

    def __init__(self, rules: RuleSet | None, job: JobContext) -> None:
        self._job = job
        self._checks: RowChecks | None = None
        if rules is not None:
            from distop.spark_jobs.rules.checks import RowChecks

            self._checks = RowChecks(rules, job.scratch_path, job.raise_if_cancelled)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._checks is not None:
            self._checks.__exit__(kind, error, trace)

    def check(self, rows: pa.Table, source: str = "") -> None:
        """Check rows as they are staged. Raises as :meth:`RowChecks.check`."""
        if self._checks is not None:
            self._checks.check(rows, source)

    def finish(self) -> dict[str, Any]:
        """The findings in the job's result; rows that break rules are written to a file."""
        if self._checks is None:
            return {}
        from distop.spark_jobs.rules.findings import table_io, write_findings

        return write_findings(self._job, table_io(self._job.operation), self._checks.finish())
