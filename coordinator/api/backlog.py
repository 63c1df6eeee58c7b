"""``BacklogService``: queue batches, list them, and decide what a table waits for."""

from __future__ import annotations

import logging
import time
from typing import Any

from distop.coordinator.api.calls import Context, audited, call_id
from distop.coordinator.starting.body import check_scope, options_of
from distop.coordinator.views.listing import PageToken, check_table, continued_listing, fitting, page_of
from distop.coordinator.views.messages import batch_message, ordering_message
from distop.errors import ArgumentTooLarge, InvalidArgument, TableNotFound
from distop.lake.layout.staging import ICEBERG
from distop.metastore.backlog.batches import (
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    BatchRecord,
    check_batch,
    ordering_of,
)
from distop.metastore.backlog.queue import approve, enqueue, open_gate, set_ordering, take_back, unblock
from distop.metastore.etcd.client import EtcdClient, first_of
from distop.metastore.etcd.txn import Get
from distop.metastore.operations.starting import digest_of
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import check_table_name, check_type, prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.audit import prune_softly
from distop.operations.registry import Registry
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from distop.proto.json_text import from_json, to_json

log = logging.getLogger(__name__)

MAX_BATCH_BYTES = 500_000
"""Largest record of a batch: several may be started by one transaction."""

_SETTINGS = ("gate", "validation", "before", "late", "together", "max_attempts", "remember")


class BacklogService(distop_pb2_grpc.BacklogServiceServicer):
    """The handlers; stateless."""

    def __init__(self, client: EtcdClient, registry: Registry) -> None:
        self._client = client
        self._registry = registry

    async def EnqueueBatch(
        self, request: pb.EnqueueBatchRequest, context: Context
    ) -> pb.EnqueueBatchResponse:
        keys = self._keys(request.table)
        kind = self._registry.get(check_type(request.type))
        if not request.unordered:
            check_scope(kind, "")
        if request.replace and not kind.can_replace:
            raise InvalidArgument(
                f"{kind.type} cannot take the rows of a batch out again", details={"field": "replace"}
            )
        argument, options = from_json(request.argument_json, "argument"), options_of(request.options)
        now = time.time()
        record = BatchRecord(
            type=kind.type,
            argument=argument,
            options=options,
            digest=digest_of([kind.type, argument, options]),
            uid=call_id(request),
            queued_by=request.requested_by,
            queued_at=now,
        )
        if (size := len(encode(record))) > MAX_BATCH_BYTES:
            raise ArgumentTooLarge(
                f"the batch takes {size:,} bytes, at most {MAX_BATCH_BYTES:,} are allowed",
                details={"field": "argument"},
            )
        audit = audited(keys, "enqueue", request, request.batch, at=now, call=record.uid)
        answer = await enqueue(
            self._client,
            keys,
            request.batch,
            record,
            ordered=not request.unordered,
            republish=request.republish,
            replace=request.replace,
            rewritten_since=request.rewritten_since,
            also=(audit,),
        )
        fields = {"table": keys.name, "batch": request.batch, "became": answer.became.value}
        log.info("batch_queued", extra=fields)
        if request.republish or request.replace or answer.again:
            # New batches are few for each operation, whose end prunes; this one may never come to one.
            await prune_softly(self._client, keys.audit_prefix)
        return pb.EnqueueBatchResponse(
            became=answer.became.value,
            operation=answer.operation,
            late=answer.late,
            markers_json=to_json(answer.markers, "markers"),
        )

    async def ListBacklog(self, request: pb.ListBacklogRequest, context: Context) -> pb.ListBacklogResponse:
        keys = self._keys(request.table)
        if request.batch:
            return await self._batch(keys, check_batch(request.batch))
        size, token = await page_of(self._client, request)
        prefix, begin, end = _range_of(keys, request)
        start = prefix + token.after.encode() + b"\0" if token.after else begin
        with continued_listing():
            await check_table(self._client, keys.name, token.revision)
            ordering = await self._client.get(keys.ordering, revision=token.revision)
            if end == prefix_end(prefix):
                page = await first_of(self._client, start, end, revision=token.revision, limit=size)
            else:
                page = await self._client.get_range(start, end, revision=token.revision, limit=size)
        named = [(kv.key[len(prefix) :].decode(errors="backslashreplace"), kv) for kv in page.kvs]
        if request.unordered and not request.applied:
            places = [(*name.partition(".")[::2], kv) for name, kv in named]
        else:
            places = [(DONE if request.applied else "", name, kv) for name, kv in named]
        batches = fitting([batch_message(name, state, kv) for state, name, kv in places])
        response = pb.ListBacklogResponse(
            batches=batches, ordering=ordering_message(keys.name, ordering_of(ordering), token.revision)
        )
        if page.more or len(batches) < len(page.kvs):
            last = page.kvs[len(batches) - 1].key[len(prefix) :].decode()
            response.next_page_token = PageToken(token.revision, last).encode()
        return response

    async def _batch(self, keys: TableKeys, batch: str) -> pb.ListBacklogResponse:
        """One batch, wherever it is; first where it waits, is being applied or has failed."""
        states = (WAITING, RUNNING, FAILED, DONE)
        places = [("", keys.backlog(batch)), *((state, keys.unordered(state, batch)) for state in states)]
        places.append((DONE, keys.applied(batch)))
        gets = [Get(keys.table), Get(keys.ordering), *(Get(key) for _, key in places)]
        read = await self._client.read_at_once(gets)
        if not read.got(0):
            raise TableNotFound.named(keys.name)
        kvs = ((state, read.single(2 + index, key)) for index, (state, key) in enumerate(places))
        batches = [batch_message(batch, state, kv) for state, kv in kvs if kv.exists]
        ordering = ordering_of(read.single(1, keys.ordering))
        return pb.ListBacklogResponse(
            batches=fitting(batches), ordering=ordering_message(keys.name, ordering, read.revision)
        )

    async def SetOrdering(self, request: pb.SetOrderingRequest, context: Context) -> pb.Ordering:
        keys = self._keys(request.table)
        given = {name: getattr(request, name) for name in _SETTINGS if request.HasField(name)}
        if given.get("before"):
            await self._check_branches(keys)
        summary = ", ".join(f"{name}={value}" for name, value in given.items())
        call = call_id(request)
        audit = audited(keys, "set-ordering", request, summary or keys.name, at=time.time(), call=call)
        record = await set_ordering(self._client, keys, given, request=call, also=(audit,))
        await prune_softly(self._client, keys.audit_prefix)
        return ordering_message(keys.name, record)

    async def ControlBacklog(self, request: pb.ControlBacklogRequest, context: Context) -> pb.Ordering:
        keys, now = self._keys(request.table), time.time()
        batch = check_batch(request.batch) if request.batch else ""
        call = call_id(request)
        audit = audited(keys, f"backlog-{request.action}", request, batch or keys.name, at=now, call=call)
        once: dict[str, Any] = {"request": call, "also": (audit,)}
        match request.action:
            case "open":
                signal, closed_by = request.signal, request.closed_by
                record = await open_gate(self._client, keys, signal=signal, closed_by=closed_by, **once)
            case "approve":
                by = request.requested_by
                record = await approve(self._client, keys, batch, branch=request.branch, by=by, **once)
            case "retry" | "skip":
                skip = request.action == "skip"
                by = request.requested_by
                record = await unblock(self._client, keys, batch, skip=skip, now=now, by=by, **once)
            case "remove":
                record = await take_back(self._client, keys, batch, **once)
            case other:
                raise InvalidArgument(
                    f"{other!r} is not an action on a backlog",
                    hint="choose open, approve, retry, skip or remove",
                    details={"field": "action"},
                )
        log.info("backlog_controlled", extra={"table": keys.name, "action": request.action, "batch": batch})
        await prune_softly(self._client, keys.audit_prefix)
        return ordering_message(keys.name, record)

    async def _check_branches(self, keys: TableKeys) -> None:
        """Raise :class:`~distop.errors.InvalidArgument` unless the table has branches."""
        kv = await self._client.get(keys.table)
        record = decode(kv.value, TableRecord, kv.key) if kv.exists else None
        if record is not None and record.format != ICEBERG:
            raise InvalidArgument(
                f"tables of the format {record.format} have no branches: no batch of {keys.name!r} can wait "
                "on one before it is published",
                hint="use --validation after",
                details={"field": "before"},
            )

    def _keys(self, table: str) -> TableKeys:
        return self._client.keyspace.table(check_table_name(table))


def _range_of(keys: TableKeys, request: pb.ListBacklogRequest) -> tuple[bytes, bytes, bytes]:
    """The key prefix of the listed batches, the first key, and the end."""
    if not request.unordered:
        prefix = keys.applied_prefix if request.applied else keys.backlog_prefix
        end = prefix + request.last.encode() + b"\0" if request.last else prefix_end(prefix)
        return prefix, prefix + request.first.encode(), end
    if request.first or request.last:
        raise InvalidArgument("unordered batches are listed without a range", details={"field": "first"})
    if request.applied:
        return keys.unordered(DONE), keys.unordered(DONE), prefix_end(keys.unordered(DONE))
    # Alphabetically "done" comes first, the others after it.
    return keys.unordered_prefix, prefix_end(keys.unordered(DONE)), prefix_end(keys.unordered_prefix)
