"""What an ingest reports beyond what it published: the rows that it could not read."""

from __future__ import annotations

from typing import Any

from distop.commit.staging import format_of, quarantine_folder
from distop.commit.step import Contribution, FinishContext, TransactionalStep
from distop.operations.job import staging_folder
from distop.spark_jobs.ingest_job import QUARANTINE


class IngestReport(TransactionalStep):
    """Adds to the facts of an operation how many rows were bad, and in which folder its quarantine files are.

    Changes nothing; facts become visible with everything else in the transaction that finishes the operation.
    """

    def prepare(self, context: FinishContext) -> Contribution:
        operation = context.view.arg
        results = [job.result for job in context.view.jobs.values() if job.state == "success"]
        bad = sum(int(result.get("badRows", 0)) for result in results)
        facts: dict[str, Any] = {"badRows": bad}
        # With mode "ignore" nobody can say here whether the files are kept.
        if bad and operation.argument.get("mode") != "ignore":
            folder = staging_folder(operation, quarantine_folder(format_of(operation)))
            facts[QUARANTINE] = folder.removeprefix(operation.location).lstrip("/")
        return Contribution(facts=facts)
