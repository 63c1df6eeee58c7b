"""The Python SDK: :class:`Client`, or :class:`AsyncClient` where there is an event loop."""

import distop.errors.forks  # noqa: F401  # before gRPC is imported
from distop.client.aio import AsyncClient
from distop.client.blocking import Client
from distop.client.models.access import Grant, Grants
from distop.client.models.backfill import Backfill, batch_range
from distop.client.models.backlog import Batch, Block, Enqueued, Ordering
from distop.client.models.cluster import AuditEntry, Leader, Member, Pause
from distop.client.models.content import Column, Snapshot, TableContent
from distop.client.models.diagnosis import Diagnosis, Finding, Severity
from distop.client.models.follow_up import FollowUp
from distop.client.models.indexes import Index
from distop.client.models.operation import (
    Completion,
    Event,
    JobCounts,
    JobUpdate,
    Operation,
    OperationError,
    OperationFailed,
    OperationParked,
    OperationState,
    OperationUpdate,
    Trace,
)
from distop.client.models.quarantine import Quarantine, QuarantinedRow
from distop.client.models.schedules import Schedule
from distop.client.models.table import Explanation, Table, Watermarks
from distop.client.transport.connection import DEFAULT_ADDRESS, default_address
from distop.client.transport.credentials import Credentials

__all__ = [
    "DEFAULT_ADDRESS",
    "AsyncClient",
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
    "JobCounts",
    "JobUpdate",
    "Leader",
    "Member",
    "Operation",
    "OperationError",
    "OperationFailed",
    "OperationParked",
    "OperationState",
    "OperationUpdate",
    "Ordering",
    "Pause",
    "Quarantine",
    "QuarantinedRow",
    "Schedule",
    "Severity",
    "Snapshot",
    "Table",
    "TableContent",
    "Trace",
    "Watermarks",
    "batch_range",
    "default_address",
]
