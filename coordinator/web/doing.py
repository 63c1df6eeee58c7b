"""What is done from the page: asked back first, then sent as a call of the API."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from starlette.requests import Request

from distop.coordinator.access.callers import caller
from distop.coordinator.access.gate import check
from distop.coordinator.access.rights import claims
from distop.coordinator.api.calls import ApiCalls
from distop.coordinator.views.messages import state_of
from distop.coordinator.web.actions import (
    BY,
    VERBS,
    Action,
    of_batch,
    of_gate,
    of_operation,
    of_schedule,
    of_snapshot,
    of_table,
)
from distop.coordinator.web.forms import Forms
from distop.coordinator.web.pages import url
from distop.coordinator.web.reads import AskContext
from distop.coordinator.web.requests import PageAccess, Query, check_same_place, errors_of, holder_of
from distop.coordinator.work.work import Work
from distop.errors import DistopError, InvalidArgument, NotFound, PreconditionFailed
from distop.metastore.records.names import OperationId
from distop.proto import distop_pb2 as pb

ACTION_S = 30.0
"""Deadline of an action, in seconds: what it starts is planned first."""

PLACES = {
    "operation": "/operation",
    "table": "/table",
    "snapshot": "/table/snapshots",
    "gate": "/table/batches",
    "batch": "/table/batches",
    "schedule": "/table/schedules",
}
"""Where each kind of object is seen."""


class Doing:
    """The actions of one page."""

    def __init__(self, calls: ApiCalls, access: PageAccess, work: Work, wall: Any, forms: Forms) -> None:
        self._calls, self._access, self._registry, self._wall = calls, access, work.registry, wall
        self._forms = forms

    def offered(self, actions: Iterable[Action], running: Iterable[str] = ()) -> list[Action]:
        """Those that the present caller may do, beside these running operations."""
        types = {OperationId.parse(name).type for name in running}
        return [action for action in actions if self._is_possible(action, types)]

    def _is_possible(self, action: Action, running: Iterable[str]) -> bool:
        request = action.request
        try:
            check(caller(), f"/distop.v1.{action.method}", request, self._registry)
            if isinstance(request, pb.StartOperationRequest):
                kind = self._registry.get(request.type)
                return all(self._registry.compatible(kind, other) for other in running)
            return not isinstance(request, pb.EnqueueBatchRequest) or (
                self._registry.get(request.type).can_replace
            )
        except DistopError:
            return False

    async def ask(self, request: Request) -> tuple[dict[str, Any], str]:
        """What the form of an action shows, and what its sender must hold."""
        query = Query(request.query_params)
        async with errors_of("/action"):
            action = await self._find(request, query.needed("do"), query.needed("name"), query.text("item"))
            who = await self._access.enter_call(request, action.method, action.request)
        holder, call_id = holder_of(request) or secrets.token_urlsafe(32), str(uuid.uuid4())
        fields = {
            "do": action.do,
            "name": action.name,
            "item": action.item,
            "state": action.state,
            "incarnation": action.incarnation,
            "call_id": call_id,
            "form": await self._forms.sign(call_id, f"{holder}\n{who.subject}"),
        }
        has_reason = "reason" in action.request.DESCRIPTOR.fields_by_name
        shown = {"action": action, "fields": fields, "has_reason": has_reason}
        return shown | {"back": place_of(action.do, action.name)}, holder

    async def act(self, request: Request, fields: dict[str, str]) -> str:
        """Do what a form says, once; the address at which one sees the effect."""
        check_same_place(request)
        who = await self._access.caller(request)
        call_id = fields.get("call_id", "")

        async def act() -> str:
            async with errors_of("/action", ACTION_S):
                return await self._act(request, fields, call_id)

        holder = f"{holder_of(request)}\n{who.subject}"
        token = fields.get("form", "")
        return await self._forms.once(token, call_id, holder, act, subject=who.subject)

    async def _act(self, request: Request, fields: dict[str, str], call_id: str) -> str:
        given = {name: fields.get(name, "") for name in ("do", "name", "item", "state", "incarnation")}
        action = await self._find(request, given["do"], given["name"], given["item"])
        if given["incarnation"] != action.incarnation:
            raise PreconditionFailed(
                f"{action.object} is another one by now: the one that you decided about is gone",
                hint="look at it again",
            )
        if given["state"] != action.state:
            raise PreconditionFailed(
                f"{action.object} has changed since you decided: it was {given['state'][:200]}, "
                f"and is {action.state}",
                hint="look at it again",
            )
        if action.verb.typed and fields.get("typed", "") != action.object:
            raise InvalidArgument(f"to confirm, type the name {action.object!r}", details={"field": "typed"})
        message: Any = action.request
        known = message.DESCRIPTOR.fields_by_name
        for name in claims(message):
            setattr(message, name, BY)
        for name, value in {
            "run": call_id,
            "call_id": call_id,
            "reason": fields.get("reason", ""),
        }.items():
            if name in known:
                setattr(message, name, value)
        reply = await self._call(request, action.method, message)
        if isinstance(reply, pb.Operation):
            return url("/operation", name=reply.name, done=action.do)
        return f"{place_of(action.do, action.name)}&done={action.do}"

    async def _find(self, request: Request, do: str, name: str, item: str) -> Action:
        """The action, if the present state allows it."""
        if (verb := VERBS.get(do)) is None:
            raise InvalidArgument(f"{do[:50]!r} is no action of this page", details={"field": "do"})
        actions, state = await self._of(request, verb.of, name, item)
        for action in actions:
            if action.do == do:
                return action
        raise PreconditionFailed(
            f"{verb.label.lower()} is not possible now: {item or name} is {state}",
            hint="look at it again",
        )

    async def _of(self, request: Request, of: str, name: str, item: str) -> tuple[Iterator[Action], str]:
        """What can be done with an object, and its state in words. The caller must be allowed to see it."""
        if of == "operation":
            operation = await self._call(
                request, "OperationService/GetOperation", pb.GetOperationRequest(name=name)
            )
            return of_operation(operation), state_of(operation)
        if of in ("table", "snapshot"):
            table = await self._call(request, "TableService/GetTable", pb.GetTableRequest(name=name))
            state = "paused" if table.HasField("pause") else f"at snapshot {table.snapshot_id}"
            return of_table(table) if of == "table" else of_snapshot(table, item), state
        if of == "gate":
            table = await self._call(request, "TableService/GetTable", pb.GetTableRequest(name=name))
            return of_gate(table), table.ordering.gate or "open"
        if of == "batch":
            listed = await self._call(
                request, "BacklogService/ListBacklog", pb.ListBacklogRequest(table=name, batch=item)
            )
            batches = [batch for batch in listed.batches if batch.name == item]
            state = " and ".join(batch.state for batch in batches) or "not known any more"
            return (action for batch in batches for action in of_batch(batch, listed.ordering)), state
        listed = await self._call(
            request, "ScheduleService/ListSchedules", pb.ListSchedulesRequest(table=name)
        )
        for schedule in listed.schedules:
            if schedule.name == item:
                return of_schedule(schedule, self._wall()), "paused" if schedule.HasField("pause") else "on"
        raise NotFound(f"table {name!r} has no schedule {item!r}", details={"table": name})

    async def _call(self, request: Request, method: str, message: Any) -> Any:
        proof = await self._access.proof(request)
        return await self._calls.call(method, message, proof, AskContext(ACTION_S))


def place_of(do: str, name: str) -> str:
    """Where one sees what an action is about; empty: there is no such action."""
    return url(PLACES[VERBS[do].of], name=name) if do in VERBS and name else ""
