"""``Export``: what types have in common that send the partitions of a table somewhere else."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow

from distop.errors import PreconditionFailed
from distop.lake.storage.storage import storage_of
from distop.operations import DistributedOperation, Effect, JobContext, Plan, PlanRequest
from distop.operations.api import argument_record, extended
from distop.operations.arguments import invalid
from distop.operations.plans import A
from distop.spark_jobs.tables import SnapshotGroups, open_snapshot, recorded


class Export(DistributedOperation[A]):
    """Sends each partition of an Iceberg table somewhere else, such as to a warehouse, an API or into files.

    A subclass has ``type`` and :meth:`export`. There is a job for each partition of one snapshot; callers may
    select some by name, such as ``kind=a/day=2013-02-01``. The table may be written meanwhile.
    """

    effect = Effect.READS

    @abstractmethod
    def export(self, job: JobContext[A], batches: pa.RecordBatchReader) -> Mapping[str, Any] | None:
        """Send the rows of one partition, ``job.partition``; return a small JSON result.

        Called as :meth:`run_job`, so more than once for a partition, and perhaps at the same time. Either
        write under a name with ``job.attempt``, and let :meth:`before_publish` publish what counts
        (``operation.attempts``); or replace what an earlier attempt has sent, unless that has a larger
        ``job.run_token``.

        Parameters
        ----------
        batches:
            The rows, with the columns of the table: read once, in bounded memory.
        """

    def snapshot_id(self, request: PlanRequest[A]) -> int | None:
        """The snapshot to export; ``None``: the present one."""
        return None

    def plan(self, request: PlanRequest[A]) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        InvalidArgument
            There is no such partition.
        PreconditionFailed
            There is no such snapshot, nothing was published, or the table is not an Iceberg table.
        """
        table = request.table
        if table.format != "iceberg":
            raise PreconditionFailed(f"table {table.name!r} has format {table.format}: it has no snapshots")
        if request.head is None:
            raise PreconditionFailed(f"nothing has been published to table {table.name!r}")
        location = request.head.metadata_location
        snapshot = open_snapshot(location, storage_of(table), snapshot_id=self.snapshot_id(request))
        if snapshot.snapshot is None:
            if request.partitions:
                raise invalid(
                    "partitions",
                    f"table {table.name!r} has no partition {request.partitions[0]!r}: it is empty",
                )
            return Plan(partition_count=0)
        argument = extended(argument_record(self, request.argument), recorded(snapshot))
        names = SnapshotGroups.of(snapshot, 0).chosen(request.partitions)
        return Plan(argument=argument, partitions=names)

    def plan_holds(self, plan: Plan, made_on: PlanRequest[A], request: PlanRequest[A]) -> bool:
        """A snapshot never changes."""
        return request.head is not None

    def run_job(self, job: JobContext[A]) -> Mapping[str, Any]:
        """Export one partition.

        Returns
        -------
        What :meth:`export` returns, and ``rows``: how many it has read.

        Raises
        ------
        JobFailed
            A data file is missing.
        """
        groups = SnapshotGroups.of_operation(job.operation)
        schema = schema_to_pyarrow(groups.snapshot.schema, include_field_ids=False)
        rows = 0

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for _, block in groups.rows(groups.group(job.partition), schema.names):
                for batch in block.cast(schema).to_batches():
                    job.raise_if_cancelled()
                    rows += batch.num_rows
                    yield batch

        sent = self.export(job, pa.RecordBatchReader.from_batches(schema, batches()))
        return {"rows": rows, **(sent or {})}
