"""Requests to start an operation: checked, and converted to the operation's record."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import duration_pb2

from distop.coordinator.work.processes import Surroundings
from distop.coordinator.work.work import Work
from distop.errors import ArgumentTooLarge, InvalidArgument, UnknownOperationType
from distop.lake.storage.storage import without_secrets
from distop.metastore.etcd.txn import MAX_REQUEST_BYTES
from distop.metastore.operations.starting import REMEMBER_S, StartRequest, digest_of
from distop.metastore.records import operation as records
from distop.metastore.records.names import (
    check_name,
    check_object,
    check_partition,
    check_table_name,
    check_type,
)
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.audit import acting
from distop.operations.api import DistributedOperation, Plan, Scope, is_swept
from distop.process.tracing import callers_span
from distop.proto import distop_pb2 as pb
from distop.proto.identity import own_version
from distop.proto.json_text import from_json, to_json

MAX_ASKED_BYTES = 2048
"""Limits of an argument in the record."""


BATCHES = "batches"
"""The series of operations that apply batches in their order."""


@dataclass(frozen=True, kw_only=True)
class StartBody:
    """A checked description of an operation: the body of a start request, or of a batch."""

    table: str
    type: str
    object: str = ""
    argument: dict[str, Any]
    partitions: list[str] = field(default_factory=list)
    options: records.OperationOptions
    then: records.FollowUpArg | None = None
    digest: str

    def request(
        self,
        run: str,
        kind: DistributedOperation,
        *,
        call: str = "",
        again_of: str = "",
        keep_s: float = REMEMBER_S,
    ) -> StartRequest:
        """The request with an id: the same id and the same body start one operation.

        Raises :class:`~distop.errors.InvalidArgument` if the type cannot run in place of an earlier run.
        """
        check_can_replace(kind, again_of)
        return StartRequest(
            table=self.table,
            type=self.type,
            object=self.object,
            run=run,
            digest=self.digest,
            call=call,
            again_of=again_of,
            keep_s=keep_s,
            index=self.object if kind.builds_index else "",
            sees_active=kind.sees_active,
        )

    @classmethod
    async def of(cls, request: pb.StartOperationRequest, work: Work) -> StartBody:
        """Raises :class:`~distop.errors.InvalidArgument` with the field's name."""
        if request.ByteSize() > MAX_REQUEST_BYTES:
            raise ArgumentTooLarge(
                f"the request takes {request.ByteSize():,} bytes, at most {MAX_REQUEST_BYTES:,} are allowed",
                details={"field": "argument"},
            )
        if request.run:
            check_name(request.run, "run")
        options, argument = options_of(request.options), from_json(request.argument_json, "argument")
        table = check_table_name(request.table)
        then = await _follow_up(table, request.then, work) if request.HasField("then") else None
        parts = [table, request.type, request.object, argument, list(request.partitions), options]
        kind = work.registry.get(check_type(request.type))
        body = cls(
            table=table,
            type=request.type,
            object=await _object(work, kind, table, request.object, argument),
            argument=argument,
            partitions=_partitions(request.partitions),
            options=options,
            then=then,
            # Requests without a follow-up keep the digest that they had before follow-ups existed.
            digest=digest_of(parts if then is None else [*parts, then]),
        )
        check_scope(kind, body.object)
        return body


def seconds(duration: duration_pb2.Duration) -> float:
    """A duration in seconds. On the wire it may exceed the range of protobuf's own helpers."""
    return float(duration.seconds) + duration.nanos / 1e9


def options_of(given: pb.OperationOptions) -> records.OperationOptions:
    """The options of an operation; unset ones get their default."""
    return records.OperationOptions(
        deadline_s=seconds(given.deadline) if given.HasField("deadline") else None,
        max_job_attempts=given.max_job_attempts or None,
        job_backoff_s=seconds(given.job_backoff) if given.HasField("job_backoff") else None,
        attempt_timeout_s=seconds(given.attempt_timeout) if given.HasField("attempt_timeout") else None,
        max_failed_partitions=given.max_failed_partitions,
        retry_for_s=seconds(given.retry_for) if given.HasField("retry_for") else None,
    )


async def _object(
    work: Work, kind: DistributedOperation, table: str, given: str, argument: dict[str, Any]
) -> str:
    """The object of the operation: as named, or derived from the argument."""
    named = given
    if not given and kind.scope is Scope.PER_OBJECT:
        named = await work.asked(kind, table, "object_of", functools.partial(_named, kind.type, argument))
    return check_object(named) if named else ""


def _named(name: str, argument: dict[str, Any], surroundings: Surroundings) -> str:
    return surroundings.registry.get(name).object_of(argument)


def _partitions(names: Sequence[str]) -> list[str]:
    return [check_partition(name) for name in names]


async def _follow_up(table: str, given: pb.FollowUp, work: Work, depth: int = 1) -> records.FollowUpArg:
    """Checks a follow-up in advance: everything but its argument, which is planned later."""
    if depth > records.MAX_FOLLOW_UPS:
        raise InvalidArgument(
            f"follow-ups are nested more than {records.MAX_FOLLOW_UPS} deep", details={"field": "then"}
        )
    argument = from_json(given.argument_json, "then.argument")
    try:
        kind = work.registry.get(check_type(given.type))
        obj = await _object(work, kind, table, given.object, argument)
        check_scope(kind, obj)
    except UnknownOperationType as error:
        raise UnknownOperationType(error.message, details={"field": "then.type"}) from None
    return records.FollowUpArg(
        type=given.type,
        object=obj,
        argument=argument,
        partitions=_partitions(given.partitions),
        options=options_of(given.options),
        then=await _follow_up(table, given.then, work, depth + 1) if given.HasField("then") else None,
    )


def check_can_replace(kind: DistributedOperation, earlier: str) -> None:
    """Raises :class:`~distop.errors.InvalidArgument` if an operation is replaced by one that cannot do it."""
    if earlier and not kind.can_replace:
        raise InvalidArgument(
            f"{kind.type} cannot run again in place of {earlier}",
            hint="name another run: --run",
            details={"field": "again_of"},
        )


def check_scope(kind: DistributedOperation, obj: str) -> None:
    """Raises :class:`~distop.errors.InvalidArgument` when an object is missing or invalid."""
    if kind.scope is Scope.PER_OBJECT and not obj:
        raise InvalidArgument(f"{kind.type} runs once per object: name one", details={"field": "object"})
    if kind.scope is Scope.SINGLE and obj:
        raise InvalidArgument(f"{kind.type} takes no object", details={"field": "object"})


def operation_arg(
    kind: DistributedOperation,
    plan: Plan,
    table: TableRecord,
    wanted: StartBody | records.FollowUpArg,
    *,
    instance: int,
    request: StartRequest,
    started_at: float,
    started_by: str,
    before: records.RequestRecord | None = None,
    follows: str = "",
    batches: Sequence[str] = (),
    unordered: str = "",
    schedule: str = "",
) -> records.OperationArg:
    """The record of a new operation.

    Parameters
    ----------
    before:
        The earlier record of its request.

    Raises :class:`~distop.errors.InvalidArgument` if the options do not allow it.
    """
    if plan.dynamic and wanted.options.max_failed_partitions:
        raise InvalidArgument(
            "jobs of a DataFrame may not fail: which rows are in a partition is not fixed, "
            "so it would be unknown which ones are missing",
            details={"field": "options.max_failed_partitions"},
        )
    return records.OperationArg(
        # Older versions must not read it as an operation without jobs, or without a part of its argument.
        version=max(plan.layout, 2 if plan.dynamic else 1),
        dynamic=plan.dynamic,
        table=table.name,
        type=kind.type,
        instance=instance,
        object=wanted.object,
        uuid=plan.uuid,
        argument=plan.argument,
        asked=for_people(wanted.argument),
        partition_count=len(plan.partitions) if plan.partitions is not None else plan.partition_count,
        partitions=plan.partitions,
        watermarks=plan.watermarks,
        options=wanted.options,
        run=request.run,
        request_note=request.note(started_at, before),
        retry_of=before.operation if before is not None and before.outcome != records.SUCCESS else "",
        started_at=started_at,
        started_by=started_by,
        claimed_by=acting.get().claimed if acting.get().subject else "",
        address=acting.get().address,
        location=table.location,
        storage=dict(table.options.get("storage", {})),
        exclusive=kind.exclusive,
        stages_files=is_swept(kind, plan),
        builds_index=kind.builds_index,
        effect=kind.effect,
        distop=own_version(),
        then=wanted.then,
        traceparent=callers_span.get(),
        follows=follows,
        batches=list(batches),
        unordered=unordered,
        schedule=schedule,
        series=plan.series or (BATCHES if batches else ""),
    )


def for_people(argument: Mapping[str, Any]) -> str:
    """An argument for display and for the record: JSON in its order, bounded, and without secrets."""
    for items, letters in ((20, 400), (5, 200), (2, 50)):
        text = to_json(_cut(without_secrets(argument), items, letters), "argument")
        if len(text.encode()) <= MAX_ASKED_BYTES:
            return text
    return to_json({"…": f"{len(to_json(argument, 'argument')):,} characters of JSON"}, "argument")


def _cut(value: Any, items: int, letters: int) -> Any:
    match value:
        case str() if len(value) > letters:
            return f"{value[:letters]}…"
        case Mapping():
            kept = {key: _cut(item, items, letters) for key, item in list(value.items())[: 2 * items]}
            return kept | ({"…": f"and {len(value) - len(kept):,} more"} if len(value) > len(kept) else {})
        case list() | tuple():
            shown = [_cut(item, items, letters) for item in value[:items]]
            return [*shown, *([f"… and {len(value) - items:,} more"] if len(value) > items else [])]
    return value
