"""Operations of maintenance from plan to sweep, without a coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from distop.commit.contract import Contribution, TransactionalStep
from distop.lake.cleanup.expiry import IcebergExpire
from distop.lake.cleanup.orphans import IcebergRemoveOrphans
from distop.lake.cleanup.staged import sweep
from distop.lake.iceberg.rollback import IcebergRollback
from distop.lake.layout.staging import mark_folder
from distop.lake.rewriting.publish import IcebergDelete
from distop.lake.rewriting.replace_files import IcebergReplace
from distop.metastore.records.operation import JobRecord, OperationArg
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head, TableRecord, decode_watermarks
from distop.operations.api import DistributedOperation, PlanRequest, make_plan
from distop.spark_jobs.rules.gate import Gate
from support.sources.ingesting import LocalJob
from support.tables.publishing import Staged, Table

STEPS: dict[str, type[TransactionalStep]] = {
    "iceberg.delete": IcebergDelete,
    "iceberg.replace": IcebergReplace,
    "iceberg.rollback": IcebergRollback,
    "iceberg.expire": IcebergExpire,
    "iceberg.remove_orphans": IcebergRemoveOrphans,
    "rules.gate": Gate,
}

TABLE_UUID = "of-the-table"


@dataclass
class Run:
    """An operation of maintenance, planned and done up to its commit."""

    table: Table
    kind: DistributedOperation
    staged: Staged
    request: PlanRequest

    @classmethod
    def of(
        cls,
        table: Table,
        kind: DistributedOperation,
        *active: OperationArg,
        partitions: list[str] | None = None,
        jobs: bool = True,
        **argument: Any,
    ) -> Run:
        """Plan it; ``jobs``: and do its jobs."""
        head = decode(table.head.value, Head) if table.head.exists else None
        options = {"storage": table.storage}
        request = PlanRequest(
            table=TableRecord(name=table.name, location=table.location, options=options, uuid=TABLE_UUID),
            head=head,
            watermarks=decode_watermarks(table.watermarks.value),
            argument=argument,
            partitions=partitions,
            active=active,
        )
        mark_folder(table.location, TABLE_UUID, table.storage)
        plan = make_plan(kind, request)
        staged = table.start(plan.partition_count)
        staged.arg.type, staged.arg.argument, staged.arg.version = kind.type, plan.argument, plan.layout
        staged.arg.effect = kind.effect
        if plan.partitions is not None:
            staged.arg.partitions, staged.arg.partition_count = plan.partitions, len(plan.partitions)
        staged.arg.uuid = uuid4().hex[:12]
        # As it comes out of etcd again.
        staged.arg = decode(encode(staged.arg), OperationArg)
        run = cls(table, kind, staged, request)
        if jobs:
            run.run_jobs()
        return run

    def run_jobs(self) -> None:
        for name in self.staged.arg.partition_names():
            job = LocalJob(self.staged.arg, name)
            result = dict(self.kind.run_job(job) or {})
            record = JobRecord(state="success", attempt=job.attempt, result=result)
            self.staged.jobs[name] = decode(encode(record), JobRecord)

    def step(self) -> TransactionalStep:
        (record,) = self.kind.commit_steps(self.staged.arg)
        return STEPS[record.step](record.argument)

    def commit(self) -> Contribution:
        return self.table.publish(self.staged, self.step())

    def sweep(self, facts: dict[str, Any]) -> int:
        return sweep(self.staged.arg, self.staged.history(facts), self.staged.jobs)

    def finish(self) -> dict[str, Any]:
        facts = self.commit().facts
        self.sweep(facts)
        return facts
