"""``ScheduleService``: schedules of tables. Any coordinator answers, the leader starts."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import msgspec

from distop import errors
from distop.coordinator.access.callers import caller
from distop.coordinator.api.calls import Context, audited, call_id
from distop.coordinator.api.operations import OperationService
from distop.coordinator.schedules import due
from distop.coordinator.schedules.ticking import tick_body, tick_id
from distop.coordinator.schedules.times import check_cron, next_tick, past_tick, rendered, zone_of
from distop.coordinator.starting.body import StartBody
from distop.coordinator.starting.services import Services
from distop.coordinator.views.messages import pause_of
from distop.lake.storage.storage import without_secrets
from distop.metastore.operations.starting import digest_of
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import check_name, check_table_name, unreadable
from distop.metastore.records.operation import PauseRecord
from distop.metastore.records.table import TableRecord
from distop.metastore.tables import schedules
from distop.metastore.tables.audit import acting, prune_softly
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from distop.proto.json_text import to_json
from distop.proto.messages import message_of
from distop.proto.templates import has_templates

log = logging.getLogger(__name__)

MAX_NAME_LENGTH = 100
"""Limits of a schedule, in characters."""


class ScheduleService(distop_pb2_grpc.ScheduleServiceServicer):
    """The handlers; stateless."""

    def __init__(self, services: Services, operations: OperationService) -> None:
        self._client, self._operations = services.client, operations
        self._work, self._registry = services.planning, services.registry

    async def AddSchedule(self, request: pb.AddScheduleRequest, context: Context) -> pb.Schedule:
        now, name = time.time(), _name(request.name)
        # All that can be checked about a start without planning it.
        start = pb.StartOperationRequest(
            table=request.table,
            type=request.type,
            object=request.object,
            argument_json=request.argument_json,
            options=request.options,
        )
        body = await StartBody.of(start, self._work)
        if self._registry.get(body.type).hosted:
            raise errors.InvalidArgument(
                f"{body.type} is run by the program that starts it: a schedule cannot start it",
                details={"field": "type"},
            )
        condition = due.parse_condition(request.when) if request.when else due.Condition()
        if bool(request.cron) == bool(request.when) and condition.after is None:
            raise errors.InvalidArgument(
                "a schedule has either a cron expression or a condition, or both if the condition is on a "
                "watermark",
                details={"field": "cron"},
            )
        zone_of(request.timezone)
        # An invalid template is refused here, not at each tick.
        rendered(body.argument, now, request.timezone)
        if condition.after is not None:
            due.after_at(condition.after, now, request.timezone)
            await self._check_seen(condition.after.table)
        call = call_id(request)
        is_new = request.timezone or condition.after is not None or has_templates(body.argument)
        record = schedules.ScheduleRecord(
            version=2 if is_new else 1,
            type=body.type,
            object=body.object,
            argument=body.argument,
            options=body.options,
            cron=check_cron(request.cron, now, request.timezone) if request.cron else "",
            timezone=request.timezone,
            measure=condition.measure,
            above=condition.above,
            after=condition.after,
            added_by=acting.get().subject or request.requested_by,
            added_at=now,
            # Another request with the same id is not a repetition: it must not be reported as done.
            request=digest_of([call, "add", name, body.digest, request.cron, request.when, request.timezone]),
            tick=now,
        )

        def check(table: TableRecord) -> None:
            if condition.measure:
                due.check_measured(table)

        keys = self._keys(body.table)
        audit = audited(keys, "add-schedule", request, name, at=now, call=call)
        record = await schedules.add_schedule(self._client, keys, name, record, check=check, also=(audit,))
        log.info("schedule_added", extra={"table": keys.name, "schedule": name})
        await prune_softly(self._client, keys.audit_prefix)
        return schedule_message(keys.name, name, record)

    async def ListSchedules(
        self, request: pb.ListSchedulesRequest, context: Context
    ) -> pb.ListSchedulesResponse:
        keys = self._keys(request.table)
        records, revision = await schedules.read_schedules(self._client, keys)
        messages = [_listed(keys.name, name, record) for name, record in records.items()]
        return pb.ListSchedulesResponse(schedules=messages, revision=revision)

    async def ControlSchedule(self, request: pb.ControlScheduleRequest, context: Context) -> pb.Schedule:
        keys, name, now = self._keys(request.table), _name(request.name), time.time()
        call = call_id(request)
        action = f"{request.action}-schedule"
        who = acting.get().subject or request.requested_by
        audit = audited(keys, action, request, name, at=now, call=call)
        once: dict[str, Any] = {"request": digest_of([call, action, name]), "also": (audit,)}
        pause = PauseRecord(by=who, reason=request.reason, at=now)

        def paused(record: schedules.ScheduleRecord) -> schedules.ScheduleRecord | None:
            return msgspec.structs.replace(record, pause=pause) if record.pause is None else None

        def resumed(record: schedules.ScheduleRecord) -> schedules.ScheduleRecord | None:
            # From now on: also if a wrong clock has already decided future ticks.
            return msgspec.structs.replace(record, pause=None, tick=now) if record.pause is not None else None

        changed: schedules.ScheduleRecord | None
        match request.action:
            case "pause":
                changed = await schedules.change_schedule(self._client, keys, name, paused, **once)
            case "resume":
                changed = await schedules.change_schedule(self._client, keys, name, resumed, **once)
            case "remove":
                changed = await schedules.remove_schedule(self._client, keys, name, **once)
            case other:
                raise errors.InvalidArgument(
                    f"{other!r} is not an action on a schedule",
                    hint="choose pause, resume or remove",
                    details={"field": "action"},
                )
        log.info("schedule_controlled", extra={"table": keys.name, "schedule": name, "action": action})
        await prune_softly(self._client, keys.audit_prefix)
        if changed is None:
            return pb.Schedule(table=keys.name, name=name)
        return schedule_message(keys.name, name, changed)

    async def RunSchedule(self, request: pb.RunScheduleRequest, context: Context) -> pb.Operation:
        keys, name = self._keys(request.table), _name(request.name)
        record = await schedules.read_schedule(self._client, keys, name)
        due.check_times(record)
        if not record.cron:
            raise errors.PreconditionFailed(
                f"schedule {name!r} has no times, but a condition",
                hint="start the operation yourself: distop operation start",
                details={"table": keys.name, "schedule": name},
            )
        at = past_tick(record.cron, request.tick, time.time(), record.timezone)
        run, call = tick_id(name, record, at), call_id(request)
        body = tick_body(keys.name, self._registry.get(record.type), record, at, run)
        try:
            return await self._operations.start_tick(name, body, run, call, request.requested_by, context)
        except errors.RolledBack as error:
            # The run is that of the tick: no caller can choose another one.
            error.hint = f"to write it again, start it: distop operation start {keys.name} {body.type}"
            if operation := error.details.get("operation"):
                error.hint += f", with the arguments that distop operation show {operation} lists"
            raise

    async def _check_seen(self, table: str) -> None:
        """Raise :class:`~distop.errors.TableNotFound` unless the caller may look at this table."""
        if not caller().sees(table) or not (await self._client.get(self._keys(table).table)).exists:
            raise errors.TableNotFound(
                f"table {table!r} does not exist", details={"table": table, "field": "when"}
            )

    def _keys(self, table: str) -> TableKeys:
        return self._client.keyspace.table(check_table_name(table))


def _name(name: str) -> str:
    check_name(name, "name")
    why = unreadable(name) or (f"is longer than {MAX_NAME_LENGTH}" if len(name) > MAX_NAME_LENGTH else "")
    if why:
        raise errors.InvalidName(
            f"the schedule's name {name[:MAX_NAME_LENGTH]!r} {why}", details={"field": "name"}
        )
    return name


def _listed(table: str, name: str, record: schedules.ScheduleRecord | errors.CorruptRecord) -> pb.Schedule:
    if isinstance(record, errors.CorruptRecord):
        why = pb.OperationError(code=record.code, message=record.message)
        return pb.Schedule(table=table, name=name, skip=why)
    return schedule_message(table, name, record)


def schedule_message(table: str, name: str, record: schedules.ScheduleRecord) -> pb.Schedule:
    """A schedule in the form of the API."""
    next_at, skip = math.inf, record.skip
    try:
        due.check_times(record)
        if record.cron and record.pause is None:
            next_at = next_tick(record.cron, record.tick, record.timezone)
    except errors.CorruptRecord as error:
        skip = schedules.Skip(code=error.code, message=error.message)
    return message_of(
        pb.Schedule,
        record,
        table=table,
        name=name,
        argument_json=to_json(without_secrets(record.argument), "argument"),
        when=str(due.condition_of(record)),
        pause=pause_of(record.pause, "schedule") if record.pause is not None else None,
        next_at=next_at if next_at < math.inf else None,
        last_at=record.last,
        skip=pb.OperationError(code=skip.code, message=skip.message) if skip is not None else None,
        skipped_at=skip.at if skip is not None else None,
    )
