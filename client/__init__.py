"""The Python SDK: :class:`Client`, or :class:`AsyncClient` where there is an event loop."""

import distop.process.forks  # noqa: F401  # before gRPC is imported
from distop.client.access import Grant, Grants
from distop.client.aio import AsyncClient, AsyncTableHandle
from distop.client.backfill import Backfill, batch_range
from distop.client.backlog import Batch, Block, Enqueued, Ordering, Staged
from distop.client.blocking import Client, OperationHandle, TableHandle
from distop.client.cluster import AuditEntry, Diagnosis, Finding, Leader, Member, Severity
from distop.client.connection import DEFAULT_ADDRESS, default_address
from distop.client.credentials import Credentials
from distop.client.handles import AsyncOperationHandle
from distop.client.operations import (
    Completion,
    Event,
    FollowUp,
    JobCounts,
    JobUpdate,
    Operation,
    OperationError,
    OperationFailed,
    OperationParked,
    OperationState,
    OperationUpdate,
    Pause,
    RunOptions,
    StartOptions,
    Trace,
)
from distop.client.quarantine import Quarantine, QuarantinedRow
from distop.client.schedules import Schedule
from distop.client.starting import IngestOptions, ingest_argument
from distop.client.tables import (
    Column,
    Explanation,
    Index,
    Snapshot,
    Table,
    TableChange,
    TableContent,
    TableOptions,
    Watermarks,
)

__all__ = [
    "DEFAULT_ADDRESS",
    "AsyncClient",
    "AsyncOperationHandle",
    "AsyncTableHandle",
    "AuditEntry",
    "Backfill",
    "Batch",
    "Block",
    "Client",
    "Column",
    "Completion",
    "Credentials",
    "Diagnosis",
    "Enqueued",
    "Event",
    "Explanation",
    "Finding",
    "FollowUp",
    "Grant",
    "Grants",
    "Index",
    "IngestOptions",
    "JobCounts",
    "JobUpdate",
    "Leader",
    "Member",
    "Operation",
    "OperationError",
    "OperationFailed",
    "OperationHandle",
    "OperationParked",
    "OperationState",
    "OperationUpdate",
    "Ordering",
    "Pause",
    "Quarantine",
    "QuarantinedRow",
    "RunOptions",
    "Schedule",
    "Severity",
    "Snapshot",
    "Staged",
    "StartOptions",
    "Table",
    "TableChange",
    "TableContent",
    "TableHandle",
    "TableOptions",
    "Trace",
    "Watermarks",
    "batch_range",
    "default_address",
    "ingest_argument",
]
