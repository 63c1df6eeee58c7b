"""One job of an ingest in mode ``merge``: all rows of the source, merged with some of the table's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from distop.lake.outputs import output_of
from distop.lake.predicates.binding import ALL, Always, Predicate, predicate_of
from distop.lake.predicates.rows import truth
from distop.operations.job import JobContext
from distop.sources.formats.bad_rows import Fail
from distop.spark_jobs.ingest.job import bounded, split_of
from distop.spark_jobs.ingest.plan import IngestPlan
from distop.spark_jobs.ingest.rows import Conversion, Converted, GoodRows
from distop.spark_jobs.merge.batch import DELETE, INSERT, UPDATE, Batch
from distop.spark_jobs.merge.job import Merging
from distop.spark_jobs.merge.plan import MergePlan
from distop.spark_jobs.rules.staged import JobChecks


def run_merge(job: JobContext) -> dict[str, Any]:
    """Do one job; see ``start_or_resume_job`` for its result."""
    plan = IngestPlan.of(job.operation)
    assert plan.merge is not None
    conversion = _Marked.for_merge(plan, plan.merge)
    facts: Counter[str] = Counter()
    rows = _rows(plan, conversion, job, facts)
    batch = Batch(rows, conversion.schema, plan.merge.keys, plan.merge.order_by)
    with (
        output_of(plan.output).writer(plan.table_layout, job) as writer,
        JobChecks(plan.rules, job) as checks,
    ):
        check = partial(checks.check, source=plan.folder if plan.kafka is None else plan.kafka.url)
        merging = Merging(job, plan.merge, plan.table_layout, batch, writer, check, facts)
        counts = merging.run(int(job.partition))
        found = checks.finish()
        return bounded(writer.finish() | found | counts)


def _rows(
    plan: IngestPlan, conversion: Conversion, job: JobContext, facts: Counter[str]
) -> Iterator[pa.Table]:
    """All rows of the source; adds up the facts about it."""
    rows = GoodRows(conversion, Fail(), job.raise_if_cancelled)
    for number in range(len(plan.cuts) - 1):
        split = split_of(plan, str(number), rows, job)
        with closing(split.rows()) as blocks:
            for block in blocks:
                yield block.table
        facts.update(split.facts)


@dataclass(frozen=True, slots=True)
class _Marked(Conversion):
    """Rows of the table, each with its possible effects: see :class:`Batch`."""

    marks: Mapping[str, Predicate] = field(default_factory=dict)

    @classmethod
    def for_merge(cls, plan: IngestPlan, merge: MergePlan) -> _Marked:
        columns = Schema.model_validate(plan.columns)

        def condition(where: str, otherwise: Predicate) -> Predicate:
            return predicate_of(where, columns) if where else otherwise

        plain = Conversion.to_table(plan)
        marks = {
            DELETE: condition(merge.delete_where, Predicate(Always(False))),
            UPDATE: condition(merge.update_where, ALL),
            INSERT: condition(merge.insert_where, ALL),
        }
        schema = pa.schema([*plain.schema, *(pa.field(name, pa.bool_()) for name in marks)])
        return cls(schema, plain.targets, plain.filter, epoch_units=plain.epoch_units, marks=marks)

    def of(self, source: pa.Table) -> Converted:
        """See :class:`Conversion`."""
        kept = self.kept(source)
        rows = self.written(kept, pa.schema(list(self.schema)[: -len(self.marks)]))
        for name, condition in self.marks.items():
            rows = rows.append_column(name, pc.fill_null(truth(condition, kept), False))
        return Converted(source.num_rows, rows)
