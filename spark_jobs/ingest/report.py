"""What an ingest reports apart from what it published: unparsable rows, and suspicions."""

from __future__ import annotations

from typing import Any

from distop.commit.layout.staging import format_of, quarantine_folder
from distop.commit.steps.contract import Contribution, FinishContext, TransactionalStep
from distop.operations.job import staging_folder
from distop.spark_jobs.ingest.job import QUARANTINE
from distop.spark_jobs.ingest.modes import NOTHING, TOLD


class IngestReport(TransactionalStep):
    """Adds to the facts of an operation the number of bad rows and the folder of its quarantine files; for a
    topic also the number of records without a value and of missing offsets; for files signs that they were
    misinterpreted.

    Changes nothing; facts become visible in the transaction that finishes the operation.
    """

    def prepare(self, context: FinishContext) -> Contribution:
        operation = context.view.arg
        results = [job.result for job in context.view.jobs.values() if job.state == "success"]

        def total(name: str) -> int:
            return sum(int(result.get(name, 0)) for result in results)

        bad = total("badRows")
        facts: dict[str, Any] = {
            name: operation.argument[name] for name in TOLD if name in operation.argument
        }
        if "kafka" in operation.argument or operation.argument.get("onBadRows") == "quarantine":
            facts["badRows"] = bad
        if operation.argument.get(NOTHING):
            facts["rows"] = 0
        if (source := operation.argument.get("kafka")) is not None:
            facts["tombstones"] = total("tombstones")
            facts["offsetsSkipped"] = total("offsetsSkipped") + int(source.get("skipped", 0))
        # With mode "ignore" it is unknown here whether the files are kept.
        if bad and operation.argument.get("mode") != "ignore":
            folder = staging_folder(operation, quarantine_folder(format_of(operation)))
            facts[QUARANTINE] = folder.removeprefix(operation.location).lstrip("/")
        return Contribution(facts=facts)
