"""What an ingest reports apart from what it published, and whether too many of its rows were bad."""

from __future__ import annotations

from typing import Any

from distop.commit.layout.model import file_io
from distop.commit.layout.staging import ICEBERG, format_of, quarantine_folder
from distop.commit.steps.contract import Contribution, FinishContext, TransactionalStep
from distop.errors import TooManyBadRows
from distop.metastore.records.operation import OperationArg
from distop.operations.job import staging_folder
from distop.spark_jobs.formats.bad_rows import first_of
from distop.spark_jobs.formats.files import check_markers
from distop.spark_jobs.ingest.job import QUARANTINE
from distop.spark_jobs.ingest.modes import NOTHING, REPORTED


class IngestReport(TransactionalStep):
    """Adds to the facts of an operation the number of bad rows and the folder of its quarantine files; for a
    topic also the number of records without a value and of missing offsets; for files signs that they were
    misinterpreted.

    Changes nothing; facts become visible in the transaction that finishes the operation. Precedes the steps
    that publish.
    """

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`TransactionalStep`.

        Raises
        ------
        TooManyBadRows
        SourceIncomplete
            The source was written again since its rows were read, or is being written. Only checked where
            all steps belong to the transaction: others may have been executed already.
        """
        operation = context.view.arg
        results = [job.result for job in context.view.jobs.values() if job.state == "success"]

        def total(name: str) -> int:
            return sum(int(result.get(name, 0)) for result in results)

        bad = total("badRows")
        if excess := _excess(operation, bad, total("rowsRead")):
            first = next((str(result[QUARANTINE]) for result in results if QUARANTINE in result), "")
            shown = first_of(file_io(operation.location, operation.storage), f"{operation.location}/{first}")
            raise TooManyBadRows(f"{excess}; the first: {shown}" if shown else excess, facts={"badRows": bad})
        if format_of(operation) == ICEBERG:
            check_markers(operation.argument.get("markers", {}))
        facts: dict[str, Any] = {
            name: operation.argument[name] for name in REPORTED if name in operation.argument
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


def _excess(operation: OperationArg, bad: int, good: int) -> str:
    """Why there are too many bad rows; empty: there are not."""
    most, share = operation.argument.get("maxBadRows"), operation.argument.get("maxBadShare")
    found = f"{bad:,} of {bad + good:,} rows are bad"
    if most is not None and bad > most:
        return f"{found}, at most {most:,} may be"
    if share is not None and bad > share * (bad + good):
        return f"{found}, at most {share:.4%} may be"
    return f"{found}: all of them" if share is None and bad and not good else ""
