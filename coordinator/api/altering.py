"""Alters a table: one transaction over its record and its head, with an entry in the audit trail.

The record changes with every alteration, and a start compares it: so an operation is planned either before,
and is then among the running ones checked here, or after.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from distop.errors import ArgumentTooLarge, DistopError, OutcomeUnknown, TableNotFound
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import MAX_REQUEST_BYTES, Get, Op, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.operations.runs import active_operations
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head, TableRecord, decode_run_ops
from distop.metastore.tables.audit import audit_put
from distop.operations.registry import Registry
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import from_json

if TYPE_CHECKING:
    from distop.lake.altering import Altered
    from distop.lake.layout.changes import Change

T = TypeVar("T")

REMEMBERED = 16
"""Request ids of the last alterations, or of the creation, kept in the table's record."""
MAX_TOLD = 1000
"""Characters of the changes in an entry of the audit trail."""


@dataclass(frozen=True)
class Altering:
    """Alters tables.

    Parameters
    ----------
    in_thread:
        Runs code that reads and writes files, given the table and a description.
    """

    client: EtcdClient
    in_thread: Callable[..., Awaitable[Any]]
    registry: Registry

    async def alter(self, keys: TableKeys, request: pb.AlterTableRequest) -> bool:
        """Make the changes; return whether this call made them, and not an earlier copy of it.

        Raises
        ------
        InvalidArgument, PreconditionFailed
            A change is invalid, or not supported for tables of this format.
        IncompatibleOperation
            A running operation would fail because of it.
        """
        from distop.lake.layout.changes import parse_changes

        changes = parse_changes([from_json(text, "changes") for text in request.changes_json])
        request_id = request.request_id or uuid.uuid4().hex
        written: list[Altered] = []

        async def discard() -> None:
            while written:
                await self._blocking(keys.name, written.pop().discard)

        async def decide(read: TxnResult) -> tuple[Txn | None, bool]:
            table, head, run_ops = (read.one(index, get.key) for index, get in enumerate(reads))
            if not table.exists:
                raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
            record = decode(table.value, TableRecord, table.key)
            if request_id in record.altered:
                return None, False  # the table may now consist of what was written
            await discard()
            running = await self._running(keys, run_ops.value)
            standing = decode(head.value, Head, head.key) if head.exists else None
            made = await self._blocking(keys.name, self._made, record, standing, changes, running)
            written.append(made)
            new = msgspec.structs.replace(made.record, altered=[*record.altered, request_id][-REMEMBERED:])
            summary = "; ".join(change.summary for change in changes)[:MAX_TOLD]
            audit = audit_put(
                keys,
                "alter-table",
                by=request.requested_by,
                target=keys.name,
                reason=f"{request.reason}: {summary}" if request.reason else summary,
                at=time.time(),
                request_id=request_id,
            )
            puts: tuple[Op, ...] = (Put(keys.table, encode(new)), audit)
            if made.head is not None:
                puts += (Put(keys.head, encode(made.head)),)
            txn = Txn((unchanged(table), unchanged(head), unchanged(run_ops)), puts)
            if txn.size() > MAX_REQUEST_BYTES:
                raise ArgumentTooLarge(
                    f"the table's record would take {txn.size():,} bytes, etcd holds {MAX_REQUEST_BYTES:,}",
                    details={"field": "changes"},
                )
            reached("table.alter.before")
            return txn, True

        reads = (Get(keys.table), Get(keys.head), Get(keys.run_ops))
        subject, replied = f"table {keys.name!r}", lambda: reached("table.alter.after")
        try:
            first, _ = await update(self.client, reads, decide, subject=subject, replied=replied)
        except OutcomeUnknown:
            raise  # in doubt nothing is removed
        except DistopError:
            await discard()
            raise
        return first

    async def _running(self, keys: TableKeys, run_ops: bytes) -> list[OperationArg]:
        names = {
            OperationId.from_slot(keys.name, kind, slot)
            for kind, slots in decode_run_ops(run_ops).items()
            for slot in slots
        }
        active = await active_operations(self.client, keys) if names else []
        return [arg for arg in active if arg.id in names]

    def _made(
        self, record: TableRecord, head: Head | None, changes: list[Change], running: list[OperationArg]
    ) -> Altered:
        from distop.lake.altering import altered, check_running

        check_running(record, changes, running)
        made = altered(record, head, changes)
        try:
            if "checks" in made.record.options and "ingest" in self.registry.names():
                self.registry.get("ingest").check_table(made.record, made.schema)
        except BaseException:
            made.discard()
            raise
        return made

    async def _blocking(self, table: str, call: Callable[..., T], *args: object) -> T:
        made: T = await self.in_thread(table, "altering", call, *args)
        return made
