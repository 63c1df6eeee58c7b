"""The right that each call of the API needs: one line for every method, and a test that none is missing.

A right is a role on a table, or on everything. :func:`required` says which, of one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from distop.errors import DistopError
from distop.metastore.records.names import check_type
from distop.operations.api import Role
from distop.operations.registry import Registry


class RightScope(Enum):
    """What the role is needed on."""

    TABLE = "table"
    OPERATION = "operation"
    """The table of an operation."""
    NEW_TABLE = "new table"
    """A table that need not exist: a caller who may not make it learns that it does not exist."""
    VISIBLE = "visible"
    """On any table at all: the answer has only what the caller may see."""
    EVERYTHING = "everything"
    """On every table, whatever its name."""
    CALLER = "caller"
    """None: whoever is known may."""


@dataclass(frozen=True, slots=True)
class Right:
    """What calls of one method need."""

    role: Role
    scope: RightScope
    field: str = ""
    """The field of the request that names the table or operation."""
    otherwise: RightScope | None = None
    """The scope where that field is empty, if it may be."""
    raised: Callable[[Any, Registry], Role] | None = None
    """What a request needs that asks for more than others of its method."""


@dataclass(frozen=True, slots=True)
class Required:
    """What one request needs."""

    role: Role
    scope: RightScope
    name: str = ""
    """Of the table or operation, as the caller has written it."""


def _of_types(request: Any, registry: Registry) -> Role:
    """Of a start, and of all that is to follow it. A type that is unknown here is refused later."""
    role = Role.OPERATOR
    with suppress(DistopError):
        role = registry.get(check_type(request.type)).role
    if "then" in request.DESCRIPTOR.fields_by_name and request.HasField("then"):
        return max(role, _of_types(request.then, registry))
    return role


def _of_backlog(request: Any, registry: Registry) -> Role:
    return Role.ADMIN if request.action in ("skip", "remove") else Role.OPERATOR


def _of_fix(request: Any, registry: Registry) -> Role:
    return Role.ADMIN if request.fix else Role.READER


READER, OPERATOR, WRITER, ADMIN = Role
TABLE, OPERATION, NEW_TABLE, VISIBLE, EVERYTHING, CALLER = RightScope

RIGHTS = {
    f"/distop.v1.{method}": right
    for method, right in {
        "OperationService/StartOperation": Right(OPERATOR, TABLE, "table", raised=_of_types),
        "OperationService/PreviewOperation": Right(OPERATOR, TABLE, "table", raised=_of_types),
        "OperationService/GetOperation": Right(READER, OPERATION, "name"),
        "OperationService/ListOperations": Right(READER, TABLE, "table", VISIBLE),
        "OperationService/WatchOperation": Right(READER, OPERATION, "name"),
        "OperationService/CancelOperation": Right(OPERATOR, OPERATION, "name"),
        "OperationService/ResolveOperation": Right(ADMIN, OPERATION, "name"),
        "OperationService/PauseOperation": Right(OPERATOR, OPERATION, "name"),
        "OperationService/ResumeOperation": Right(OPERATOR, OPERATION, "name"),
        "OperationService/ListTraces": Right(READER, OPERATION, "name"),
        "OperationService/ListQuarantinedRows": Right(READER, OPERATION, "name"),
        "TableService/CreateTable": Right(WRITER, NEW_TABLE, "name"),
        "TableService/GetTable": Right(READER, TABLE, "name"),
        "TableService/ListTables": Right(READER, VISIBLE),
        "TableService/ExplainTable": Right(READER, TABLE, "name"),
        "TableService/DescribeTable": Right(READER, TABLE, "name"),
        "TableService/ListSnapshots": Right(READER, TABLE, "table"),
        "TableService/GetWatermarks": Right(READER, TABLE, "table"),
        "TableService/ChangeWatermarks": Right(WRITER, TABLE, "table"),
        "TableService/PauseTable": Right(OPERATOR, TABLE, "name"),
        "TableService/ResumeTable": Right(OPERATOR, TABLE, "name"),
        "TableService/AlterTable": Right(WRITER, TABLE, "name"),
        "TableService/DropTable": Right(ADMIN, TABLE, "name"),
        "ClusterService/ListMembers": Right(READER, VISIBLE),
        "ClusterService/ListLeaders": Right(READER, VISIBLE),
        "ClusterService/Diagnose": Right(READER, TABLE, "table", EVERYTHING, raised=_of_fix),
        "ClusterService/RemoveKey": Right(ADMIN, EVERYTHING),
        "ClusterService/DrainCoordinator": Right(ADMIN, EVERYTHING),
        "ClusterService/ListAudit": Right(READER, TABLE, "table", EVERYTHING),
        "AccessService/ListGrants": Right(READER, CALLER),
        "AccessService/ChangeGrants": Right(ADMIN, EVERYTHING),
        "IndexService/ListIndexes": Right(READER, TABLE, "table"),
        "ScheduleService/AddSchedule": Right(OPERATOR, TABLE, "table", raised=_of_types),
        "ScheduleService/ListSchedules": Right(READER, TABLE, "table"),
        "ScheduleService/ControlSchedule": Right(OPERATOR, TABLE, "table"),
        "ScheduleService/RunSchedule": Right(OPERATOR, TABLE, "table"),
        "BacklogService/EnqueueBatch": Right(OPERATOR, TABLE, "table", raised=_of_types),
        "BacklogService/ListBacklog": Right(READER, TABLE, "table"),
        "BacklogService/SetOrdering": Right(OPERATOR, TABLE, "table"),
        "BacklogService/ControlBacklog": Right(OPERATOR, TABLE, "table", raised=_of_backlog),
    }.items()
}
"""By the full name of the method. The page asks by the same names."""

OPEN = ("/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/")
"""What the names of methods begin with that need none: they tell whether the service is up, and its API."""


def required(method: str, request: Any, registry: Registry) -> Required:
    """What this request needs, also for the operation types that it names.

    Raises :class:`KeyError` for a method that is not in the table.
    """
    right = RIGHTS[method]
    name = getattr(request, right.field) if right.field else ""
    scope = right.scope if name or right.otherwise is None else right.otherwise
    role = max(right.role, right.raised(request, registry)) if right.raised is not None else right.role
    return Required(role, scope, name if scope is right.scope else "")


def claims(request: Any) -> Iterator[str]:
    """The fields in which a request says who makes it."""
    known = request.DESCRIPTOR.fields_by_name
    return (name for name in ("started_by", "created_by", "requested_by") if name in known)
