"""The Python SDK: :class:`Client`, or :class:`AsyncClient` where there is an event loop."""

from distop.client.aio import AsyncClient
from distop.client.backlog import Batch, Block, Enqueued, Ordering
from distop.client.blocking import Client
from distop.client.cluster import Leader, Member
from distop.client.connection import DEFAULT_ADDRESS
from distop.client.control import AuditEntry, Pause
from distop.client.diagnosis import Diagnosis, Finding, Severity
from distop.client.follow_up import FollowUp
from distop.client.indexes import FoundFile, Index, LookUp
from distop.client.operation import (
    Completion,
    JobCounts,
    JobUpdate,
    Operation,
    OperationError,
    OperationFailed,
    OperationState,
    OperationUpdate,
)
from distop.client.table import Explanation, Table, Watermarks

__all__ = [
    "DEFAULT_ADDRESS",
    "AsyncClient",
    "AuditEntry",
    "Batch",
    "Block",
    "Client",
    "Completion",
    "Diagnosis",
    "Enqueued",
    "Explanation",
    "Finding",
    "FollowUp",
    "FoundFile",
    "Index",
    "JobCounts",
    "JobUpdate",
    "Leader",
    "LookUp",
    "Member",
    "Operation",
    "OperationError",
    "OperationFailed",
    "OperationState",
    "OperationUpdate",
    "Ordering",
    "Pause",
    "Severity",
    "Table",
    "Watermarks",
]
