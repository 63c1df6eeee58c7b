"""The operation that the finish of another one starts (checklist O23).

It is planned on the table as that finish will leave it, and is then part of that transaction: it starts once,
exactly when the first one succeeds. If it cannot start, the first one still finishes, and its facts say why.
"""

from __future__ import annotations

import logging
from typing import Any

from distop.coordinator.completion.attempts import text_of
from distop.coordinator.completion.publication import Base
from distop.coordinator.starting.body import check_scope, operation_arg
from distop.coordinator.starting.planner import Planner
from distop.coordinator.starting.services import Services
from distop.errors import OF_THE_WORLD, ArgumentTooLarge, IncompatibleOperation, RunReused
from distop.metastore.etcd.txn import MAX_REQUEST_BYTES, Get, KeyValue, Put, Txn
from distop.metastore.operations import starting
from distop.metastore.operations.runs import active_operations
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import FollowUpArg, OperationArg
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head, IndexRecord, TableRecord
from distop.metastore.records.watermarks import Chunks, Marks, decode_recent
from distop.operations.api import Plan, PlanRequest

log = logging.getLogger(__name__)

ROOM_BYTES = 100_000
"""Part of a transaction reserved for the history and ``runOps``."""


class FollowUps:
    """Prepares follow-ups for the finishes of one coordinator."""

    def __init__(self, services: Services) -> None:
        self._client, self._wall = services.client, services.wall
        # A completion waits for the plan of its follow-up, so this runs where completions do.
        self._planner = Planner(services.publishing)
        self._registry = services.registry

    async def prepare(
        self, keys: TableKeys, first: OperationArg, base: Base, publication: Txn
    ) -> tuple[starting.FollowUpStart | None, dict[str, Any]]:
        """The operation that the finish of ``first`` starts, and the facts about it.

        Parameters
        ----------
        base:
            The table as read for this finish.
        publication:
            What the commit steps will write.
        """
        wanted = first.then
        if wanted is None:
            return None, {}
        try:
            start = await self._prepare(keys, first, wanted, base, publication)
        except OF_THE_WORLD:
            raise  # it says nothing about the follow-up: the finish is retried
        except Exception as error:
            log.warning(
                "follow_up_refused",
                extra={"operation": str(first.id), "type": wanted.type, "error": str(error)},
            )
            return None, {"followUpError": text_of(error)}
        return start, {"followUp": str(start.arg.id)}

    async def _prepare(
        self, keys: TableKeys, first: OperationArg, wanted: FollowUpArg, base: Base, publication: Txn
    ) -> starting.FollowUpStart:
        kind = self._registry.get(wanted.type)
        check_scope(kind, wanted.object)
        request = starting.StartRequest(
            table=keys.name,
            type=wanted.type,
            object=wanted.object,
            run=f"then-{first.uuid}",
            call=f"then-{first.uuid}",
            digest=starting.digest_of(wanted),
        )
        others = starting.slots_without(base.run_ops, first.id) or b""
        other = starting.operation_in_the_way(
            others, request, lambda running: self._registry.compatible(kind, running)
        )
        if other is not None:
            raise IncompatibleOperation(f"{wanted.type} cannot start while {other} is running")
        counter = keys.next_instance(wanted.type)
        index_key = keys.index(wanted.object)
        wants = [Get(counter), Get(keys.request(request.run)), Get(index_key)]
        read = await self._client.read_at_once(wants)
        if read.got(1):
            raise RunReused(f"run {request.run!r} was used before")
        next_instance, index = read.single(0, counter), read.single(2, index_key)
        table = base.record
        if table is None:
            raise AssertionError("a table is not dropped while an operation is running")
        arg = operation_arg(
            kind,
            await self._plan(keys, wanted, table, base, index, publication),
            table,
            wanted,
            instance=int(next_instance.value or b"1"),
            request=request,
            started_at=self._wall(),
            started_by=first.started_by,
            follows=str(first.id),
        )
        start = starting.FollowUpStart(
            arg=arg,
            request=request,
            next_instance_kv=next_instance,
            planned_on=(base.table, base.head, base.watermarks, *([index] if kind.builds_index else [])),
        )
        size = start.txn(keys).size() + publication.size()
        if size > MAX_REQUEST_BYTES - ROOM_BYTES:
            raise ArgumentTooLarge(f"with it, the finishing transaction takes {size:,} bytes")
        return start

    async def _plan(
        self,
        keys: TableKeys,
        wanted: FollowUpArg,
        table: TableRecord,
        base: Base,
        index: KeyValue,
        publication: Txn,
    ) -> Plan:
        kind = self._registry.get(wanted.type)
        written = {op.key: op.value for op in publication.then if isinstance(op, Put)}
        head = written.get(keys.head, base.head.value)
        watermarks = written.get(keys.watermarks, base.watermarks.value)
        published = written.get(index.key, index.value) if kind.builds_index else b""
        request = PlanRequest(
            table=table,
            head=decode(head, Head, keys.head) if head else None,
            watermarks=Marks(decode_recent(watermarks), Chunks(base.chunks)),
            argument=wanted.argument,
            partitions=wanted.partitions or None,
            options=wanted.options,
            active=await active_operations(self._client, keys) if kind.sees_active else (),
            object=wanted.object,
            index=decode(published, IndexRecord, index.key) if published else None,
        )
        return await self._planner.plan(kind, request)
