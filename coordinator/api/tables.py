"""``TableService``: create, get, list, pause, alter, drop. Published content is in ``published``.

Options of a table that could never work are refused, by field. A table is altered by one transaction over its
record and its head, with an entry in the audit trail. The record changes with every alteration, and a start
compares it: so an operation is planned either before, and is then among the running ones checked here, or
after.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from distop import errors
from distop.coordinator.api.calls import Context, audited, call_id, run_of
from distop.coordinator.api.published import PublishedCalls
from distop.coordinator.views.listing import PageToken, continued_listing, first_tables, fitting, page_of
from distop.coordinator.views.tables import explain, read_table_message, read_table_messages
from distop.lake.cleanup.purge import check_removal, leave_files
from distop.lake.layout.staging import FORMATS
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import MAX_REQUEST_BYTES, Get, Op, Put, Txn, TxnResult, absent, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.operations.pausing import pause_table, resume_table
from distop.metastore.operations.runs import active_operations
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import check_name, check_new_name, check_table_name
from distop.metastore.records.operation import OperationArg, PauseRecord
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import DropRecord, Head, TableRecord, running_operations
from distop.metastore.tables.audit import audit_put, prune_softly
from distop.metastore.tables.locations import LocationClaim, canonical
from distop.metastore.tables.registry import drop_table, finish_drop, table_puts
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import from_json

if TYPE_CHECKING:
    from distop.lake.altering import Altered
    from distop.lake.layout.evolution import Change

log = logging.getLogger(__name__)


T = TypeVar("T")

REMEMBERED = 16
"""Runs of the last alterations, and the call of the creation, kept in the table's record."""
MAX_SUMMARY = 1000
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

    async def alter(self, keys: TableKeys, request: pb.AlterTableRequest) -> bool:
        """Make the changes; return whether this call made them, and not an earlier copy of it.

        Raises
        ------
        InvalidArgument, PreconditionFailed
            A change is invalid, or not supported for tables of this format.
        IncompatibleOperation
            A running operation would fail because of it.
        """
        from distop.lake.layout.evolution import parse_changes

        changes = parse_changes([from_json(text, "changes") for text in request.changes_json])
        run = run_of(request)
        written: list[Altered] = []

        async def discard() -> None:
            while written:
                await self._blocking(keys.name, written.pop().discard)

        async def decide(read: TxnResult) -> tuple[Txn | None, bool]:
            table, head, run_ops = read.each(get.key for get in reads)
            if not table.exists:
                raise errors.TableNotFound.named(keys.name)
            record = decode(table.value, TableRecord, table.key)
            if run in record.altered:
                return None, False  # the table may now consist of what was written
            await discard()
            running = await self._running(keys, run_ops.value)
            current = decode(head.value, Head, head.key) if head.exists else None
            made = await self._blocking(keys.name, _altered, record, current, changes, running)
            written.append(made)
            new = msgspec.structs.replace(made.record, altered=[*record.altered, run][-REMEMBERED:])
            summary = "; ".join(change.summary for change in changes)[:MAX_SUMMARY]
            reason = f"{request.reason}: {summary}" if request.reason else summary
            audit = audited(keys, "alter-table", request, keys.name, at=time.time(), call=run, reason=reason)
            puts: tuple[Op, ...] = (Put(keys.table, encode(new)), audit)
            if made.head is not None:
                puts += (Put(keys.head, encode(made.head)),)
            txn = Txn((unchanged(table), unchanged(head), unchanged(run_ops)), puts)
            if txn.size() > MAX_REQUEST_BYTES:
                raise errors.ArgumentTooLarge(
                    f"the table's record would take {txn.size():,} bytes, etcd holds {MAX_REQUEST_BYTES:,}",
                    details={"field": "changes"},
                )
            reached("table.alter.before")
            return txn, True

        reads = (Get(keys.table), Get(keys.head), Get(keys.run_ops))
        subject, replied = f"table {keys.name!r}", lambda: reached("table.alter.after")
        try:
            first, _ = await update(self.client, reads, decide, subject=subject, replied=replied)
        except errors.OutcomeUnknown:
            raise  # in doubt nothing is removed
        except errors.DistopError:
            await discard()
            raise
        return first

    async def _running(self, keys: TableKeys, run_ops: bytes) -> list[OperationArg]:
        names = set(running_operations(keys.name, run_ops))
        active = await active_operations(self.client, keys) if names else []
        return [arg for arg in active if arg.id in names]

    async def _blocking(self, table: str, call: Callable[..., T], *args: object) -> T:
        made: T = await self.in_thread(table, "altering", call, *args)
        return made


def _altered(
    record: TableRecord, head: Head | None, changes: list[Change], running: list[OperationArg]
) -> Altered:
    from distop.lake.altering import altered_and_checked

    return altered_and_checked(record, head, changes, running)


def _check_options(record: TableRecord) -> None:
    from distop.lake.altering import check_options  # loads pyiceberg, in the thread that calls this

    check_options(record)


class TableService(PublishedCalls):
    """The handlers; stateless."""

    async def CreateTable(self, request: pb.CreateTableRequest, context: Context) -> pb.Table:
        call = check_name(call_id(request), "call_id")
        record = _checked(request, call)
        await self._in_thread(record.name, "checking options", _check_options, record)
        keys = self._client.keyspace.table(record.name)
        by, at = record.created_by, record.created_at
        trails = (keys, keys.keyspace)
        entry = partial(audit_put, action="create-table", target=record.name, run=call)
        audit = [entry(trail, by=by, at=at) for trail in trails]
        puts = (*table_puts(keys, record), *audit)
        tombstone, claim = keys.keyspace.dropped(record.name), LocationClaim.of(keys.keyspace, record)
        # A late copy finds the entry of the first: a table that was dropped since stays so.
        once = audit[-1].key
        free_names = (absent(keys.table), absent(keys.view), absent(tombstone), absent(once))
        txn = Txn((*free_names, *claim.free()), (*puts, claim.put))
        if txn.size() > MAX_REQUEST_BYTES:
            raise errors.ArgumentTooLarge(
                f"the table's record takes {txn.size():,} bytes, etcd allows {MAX_REQUEST_BYTES:,}",
                hint="make the options smaller",
                details={"field": "options"},
            )

        async def decide(read: TxnResult) -> tuple[Txn | None, None]:
            current, dropped = read.single(0, keys.table), read.single(1, tombstone)
            if read.single(2, keys.view).exists:
                raise errors.TableExists(
                    f"{record.name!r} is the name of a view", details={"table": record.name}
                )
            if current.exists:
                if call in decode(current.value, TableRecord, current.key).altered:
                    return None, None
                raise errors.TableExists(
                    f"table {record.name!r} already exists", details={"table": record.name}
                )
            if read.single(3, once).exists:
                return None, None  # it was made, and dropped since
            if dropped.exists:
                # The leftovers of an interrupted drop must not become this table's past.
                before = decode(dropped.value, DropRecord, tombstone)
                await finish_drop(self._client, keys, before, self._leave)
            else:
                claim.check([read.got(index) for index in range(4, len(reads))])
            reached("table.create.before")
            return txn, None

        subject, replied = f"table {record.name!r}", lambda: reached("table.create.after")
        reads = (Get(keys.table), Get(tombstone), Get(keys.view), Get(once), *claim.reads())
        free = TxnResult(True, 0, ([],) * len(reads))  # the name is usually new: nothing is read first
        await update(self._client, reads, decide, subject=subject, first=free, replied=replied)
        await prune_softly(self._client, keys.keyspace.audit_prefix)
        return await read_table_message(self._client, record.name)

    async def GetTable(self, request: pb.GetTableRequest, context: Context) -> pb.Table:
        return await read_table_message(self._client, check_table_name(request.name))

    async def ListTables(self, request: pb.ListTablesRequest, context: Context) -> pb.ListTablesResponse:
        size, token = await page_of(self._client, request)
        response = pb.ListTablesResponse()
        with continued_listing():
            names, last = await first_tables(self._client, size, revision=token.revision, after=token.after)
            tables = await read_table_messages(self._client, names, token.revision)
        response.tables.extend(fitting(tables))
        if len(response.tables) < len(tables):
            last = response.tables[-1].name
        if last:
            response.next_page_token = PageToken(token.revision, last).encode()
        return response

    async def ExplainTable(self, request: pb.GetTableRequest, context: Context) -> pb.Explanation:
        table = await read_table_message(self._client, check_table_name(request.name))
        reason = await explain(self._client, table, now=time.time())
        return pb.Explanation(table=table.name, mood=reason.mood.name.lower(), sentence=reason.sentence)

    async def PauseTable(self, request: pb.PauseTableRequest, context: Context) -> pb.Table:
        return await self._hold(request, "pause")

    async def ResumeTable(self, request: pb.ResumeTableRequest, context: Context) -> pb.Table:
        return await self._hold(request, "resume")

    async def AlterTable(self, request: pb.AlterTableRequest, context: Context) -> pb.Table:
        keys = self._client.keyspace.table(check_table_name(request.name))
        first = await Altering(self._client, self._in_thread).alter(keys, request)
        log.info(
            "table_altered", extra={"table": keys.name, "changes": len(request.changes_json), "first": first}
        )
        await prune_softly(self._client, keys.audit_prefix)
        return await read_table_message(self._client, keys.name)

    async def DropTable(self, request: pb.DropTableRequest, context: Context) -> pb.DropTableResponse:
        keys = self._client.keyspace.table(check_table_name(request.name))
        by, at = request.requested_by, time.time()
        action = "purge-table" if request.purge else "drop-table"
        audit = audited(keys.keyspace, action, request, keys.name, at=at)
        if request.purge:
            await self._check_purge(keys, request.uuid)

        def tombstone(table: TableRecord) -> DropRecord:
            _check_meant(table, request.uuid)
            return DropRecord(
                name=keys.name,
                location=table.location,
                uuid=table.uuid,
                storage=dict(table.options.get("storage", {})),
                purge=request.purge,
                by=by,
                at=at,
            )

        record = await drop_table(self._client, keys, tombstone, audit, self._leave)
        log.info("table_dropped", extra={"table": keys.name, "purged": record.purge})
        await prune_softly(self._client, keys.keyspace.audit_prefix)
        return pb.DropTableResponse(location=record.location, purged=record.purge)

    async def _check_purge(self, keys: TableKeys, meant: str) -> None:
        """Raises an error if the files of a table must not be removed."""
        kv, head_kv = await self._client.get(keys.table), await self._client.get(keys.head)
        if not kv.exists:
            return  # its drop has begun, and the process that finishes it checks again
        table = decode(kv.value, TableRecord, kv.key)
        _check_meant(table, meant)
        claim = LocationClaim.of(keys.keyspace, table)
        current = await self._client.get(claim.key)
        if not claim.is_mine(current):
            claim.check([[current]] if current.exists else [])
            raise errors.LocationNotOwned(
                f"table {table.name!r} has no claim to its location {table.location}",
                hint="run distop cluster doctor, or drop it without --purge",
                details={"table": table.name},
            )
        head = decode(head_kv.value, Head, head_kv.key) if head_kv.exists else None
        await self._in_thread(table.name, "checking a purge", check_removal, table, head)

    async def _leave(self, record: DropRecord) -> None:
        await leave_files(record, partial(self._in_thread, record.name, "leaving files"))

    async def _hold(self, request: pb.PauseTableRequest | pb.ResumeTableRequest, action: str) -> pb.Table:
        keys = self._client.keyspace.table(check_table_name(request.name))
        who: dict[str, Any] = {"by": request.requested_by, "reason": request.reason, "at": time.time()}
        audit = audited(keys, action, request, keys.name, at=who["at"])
        if action == "pause":
            first = await pause_table(self._client, keys, PauseRecord(**who), audit)
        else:
            first = await resume_table(self._client, keys, audit)
        log.info("table_held", extra={"table": keys.name, "how": action, "first": first})
        await prune_softly(self._client, keys.audit_prefix)
        return await read_table_message(self._client, keys.name)


def _check_meant(table: TableRecord, meant: str) -> None:
    """Raises TableNotFound if the table is not the one with this uuid, if one is given."""
    if meant and table.uuid != meant:
        raise errors.TableNotFound(
            f"table {table.name!r} is another one by now: the one that is meant does not exist",
            details={"table": table.name},
        )


def _checked(request: pb.CreateTableRequest, call: str) -> TableRecord:
    """The record of a new table, or an error that names the field."""
    name = check_table_name(check_new_name(request.name, "name"), "name")
    file_format = request.format or "iceberg"
    if file_format not in FORMATS:
        raise errors.InvalidArgument(
            f"format {file_format!r} is not one of {', '.join(FORMATS)}", details={"field": "format"}
        )
    options = from_json(request.options_json, "options")
    return TableRecord(
        name=name,
        location=canonical(request.location),
        format=file_format,
        options=options,
        created_at=time.time(),
        created_by=request.created_by,
        uuid=uuid.uuid4().hex,
        altered=[call],
    )
