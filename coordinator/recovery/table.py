"""One table after a restore: what its files show as published, and bringing etcd up to that.

File trees and Delta tables contain no watermarks: ingesting again after a restore might duplicate rows. So
what they show is only reported.

The records of an operation that had published before etcd was restored (its history line, its request, its
batches, the next instance number) are written in one transaction, and the history line proves it: if that
exists there is nothing to do.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, replace

import msgspec

from distop.commit.contract import BRANCH
from distop.coordinator.backlog.applying import share_of
from distop.coordinator.doctor.findings import DOCTOR, Finding, Reported
from distop.errors import Busy, CorruptRecord, DistopError, LeadershipLost, PreconditionFailed
from distop.errors import Restored as RestoredError
from distop.lake.delta.commit import delta_library
from distop.lake.iceberg.ahead import Ahead, AheadSnapshot, Unclear, find_ahead
from distop.lake.iceberg.watermarks import is_after
from distop.lake.plain.publish import visible_files
from distop.lake.storage.storage import delta_options, file_system, modified, storage_of
from distop.metastore.backlog.batches import (
    AppliedRecord,
    BatchRecord,
    ordering_of,
    without_block,
    without_failed,
)
from distop.metastore.backlog.undoing import batch_keys
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.update import settle, update
from distop.metastore.members.lease import Epoch, LeaseSession, campaign
from distop.metastore.operations.ending import Finished, FinishParts, finish, finish_txn
from distop.metastore.operations.pausing import pause_table
from distop.metastore.operations.runs import active_operations
from distop.metastore.operations.starting import done_before
from distop.metastore.records import operation as records
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.names import OperationId, prefix_end
from distop.metastore.records.record import decode, encode, encode_plain
from distop.metastore.records.table import Head, TableRecord, Watermarks
from distop.metastore.records.watermarks import Marks, position
from distop.metastore.tables.audit import audit_put
from distop.metastore.tables.watermarks import make_room, marks_at

ENDING_RACES = 10
"""Attempts at the end of an operation while another process changes its table: none should."""


async def publish_again(
    client: EtcdClient, keys: TableKeys, epoch: Epoch, snapshot: AheadSnapshot, now: float
) -> bool:
    """Make sure that etcd knows a publication; return whether it did not. Idempotent.

    Raises :class:`~distop.errors.LeadershipLost` when another process leads the table.
    """
    # The table may have had another name then.
    operation = replace(OperationId.parse(snapshot.operation), table=keys.name)
    op = keys.operation(operation)
    read = await client.read_at_once(
        [etcd.Get(op.arg), etcd.Get(op.state), etcd.Get(keys.history(operation)), etcd.Get(keys.ordering)]
    )
    if read.got(2) and not _has_staged(read.single(3, keys.ordering), operation):
        return False
    if read.got(0) and read.got(1):
        arg = decode(read.single(0, op.arg).value, records.OperationArg, op.arg)
        if arg.uuid == snapshot.uuid:
            await _finish(client, keys, op, epoch, arg, snapshot, now)
            return True
    await _remember(client, keys, epoch, operation, snapshot)
    return True


async def _finish(
    client: EtcdClient,
    keys: TableKeys,
    op: OperationKeys,
    epoch: Epoch,
    arg: records.OperationArg,
    snapshot: AheadSnapshot,
    now: float,
) -> None:
    """End an operation that runs, according to etcd, as its leader did then."""
    # A cancellation, pause or decision around the backup came too late.
    held = (etcd.DeleteRange(op.waiting), etcd.DeleteRange(op.cancel), etcd.DeleteRange(op.resolve))
    await settle(client, etcd.Txn((epoch.held(),), (etcd.Put(op.state, records.COMMITTING), *held)))
    for _ in range(ENDING_RACES):
        staged = ordering_of(await client.get(keys.ordering)).staged
        line = _history(snapshot, arg)
        if staged is not None and not snapshot.on_main:
            line.facts[BRANCH] = staged.branch
        share = await share_of(client, keys, arg, failure=None, now=now, result=line)
        plan = FinishParts(
            sealed=records.COMMITTING,
            run_ops=await client.get(keys.run_ops),
            history=line,
            arg=arg,
            publication=share,
            leave_keys=True,
        )
        txn = finish_txn(keys, op, epoch, plan)
        if (await finish(client, keys, op, epoch, txn))[0] in (Finished.DONE, Finished.BEFORE):
            return
    raise Busy(f"{arg.id} could not be ended: another process changes its table")


def _history(snapshot: AheadSnapshot, arg: records.OperationArg | None) -> records.HistoryRecord:
    line = records.HistoryRecord(
        outcome=records.SUCCESS,
        uuid=snapshot.uuid,
        run=snapshot.request.id if snapshot.request else "",
        started_by=snapshot.started_by,
        finished_at=snapshot.at,
        facts={"rows": snapshot.rows, "snapshotId": str(snapshot.snapshot_id), "restored": True},
    )
    if arg is None:
        return line
    return msgspec.structs.replace(
        line,
        run=arg.run,
        started_at=arg.started_at,
        started_by=arg.started_by,
        partition_count=arg.partition_count,
        succeeded=arg.partition_count,
        argument=arg.asked,
        batches=arg.applies,
        retry_of=arg.retry_of,
        follows=arg.follows,
    )


async def _remember(
    client: EtcdClient, keys: TableKeys, epoch: Epoch, operation: OperationId, snapshot: AheadSnapshot
) -> None:
    line, number = keys.history(operation), keys.next_instance(operation.type)
    states = batch_keys(keys, snapshot.unordered, ordered=False)
    places = [*states] if snapshot.unordered else []
    places += [key for batch in snapshot.batches for key in (keys.backlog(batch), keys.applied(batch))]
    wanted = [line, number, keys.ordering, epoch.key, *places]

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, None]:
        current = {key: read.single(index, key) for index, key in enumerate(wanted)}
        if current[line].exists and not _has_staged(current[keys.ordering], operation):
            return None, None
        if current[epoch.key].create_revision != epoch.revision:
            raise LeadershipLost(f"table {keys.name!r} is led by another process: is a coordinator running?")
        ops: list[etcd.Op] = (
            [] if current[line].exists else [etcd.Put(line, encode(_history(snapshot, None)))]
        )
        following = max(int(current[number].value or b"1"), operation.instance + 1)
        ops.append(etcd.Put(number, str(following).encode()))
        if snapshot.request is not None:
            ops += done_before(keys, _asked(operation, snapshot))
        ordering = ordering_of(current[keys.ordering])
        changed = ordering
        # One that was only written to a branch, to be looked at, is written to another one.
        batches = snapshot.batches if snapshot.on_main or not ordering.before else ()
        if ordering.staged is not None and ordering.staged.batch in batches:
            changed = ordering.unstaged()
        for batch in batches:
            entry, applied = current[keys.backlog(batch)], current[keys.applied(batch)]
            if not applied.exists:
                changed = changed.done_with(batch)
                ops.append(etcd.Put(applied.key, _applied(operation, entry, snapshot)))
            ops.append(etcd.DeleteRange(entry.key))
        if snapshot.unordered:
            done, *open_ones = (current[key] for key in states)
            queued = next((kv for kv in open_ones if kv.exists), done)
            ops += [etcd.DeleteRange(kv.key) for kv in open_ones]
            if not done.exists:
                ops.append(etcd.Put(done.key, _applied(operation, queued, snapshot)))
            changed = without_failed(changed, snapshot.unordered)
        changed = without_block(changed, *batches)
        if batches or changed != ordering:
            ops += [etcd.Put(keys.ordering, encode(changed)), etcd.Put(keys.backlog_index, b"{}")]
        compares: tuple[etcd.Compare, ...] = (epoch.held(),)
        compares += tuple(etcd.unchanged(kv) for key, kv in current.items() if key != epoch.key)
        return etcd.Txn(compares, tuple(ops)), None

    reads = [etcd.Get(key) for key in wanted]
    await update(client, reads, decide, subject=f"table {keys.name!r}")


def _has_staged(ordering: etcd.KeyValue, operation: OperationId) -> bool:
    """Whether an operation had ended before the backup, and what it had staged was published after it."""
    staged = ordering_of(ordering).staged
    return staged is not None and staged.operation == str(operation)


def _asked(operation: OperationId, snapshot: AheadSnapshot) -> records.OperationArg:
    request = snapshot.request
    assert request is not None
    note = records.RequestNote(digest=request.digest, call=request.call, forget_at=request.forget_at)
    return records.OperationArg(
        table=operation.table,
        type=operation.type,
        object=operation.object,
        instance=operation.instance,
        run=request.id,
        request_note=note,
        started_at=snapshot.at,
    )


def _applied(operation: OperationId, queued: etcd.KeyValue, snapshot: AheadSnapshot) -> bytes:
    """Of a batch; ``queued``: as it was queued before the backup, if it was."""
    record = decode(queued.value, BatchRecord, queued.key) if queued.exists else BatchRecord(type="")
    together = max(1, len(snapshot.batches))
    return encode(AppliedRecord.of(operation, record, snapshot.at, _history(snapshot, None), together))


async def number_beyond(client: EtcdClient, keys: TableKeys, epoch: Epoch, operation: OperationId) -> None:
    """Make sure that no instance number up to an operation's is reused: a Delta table identifies operations
    by it."""
    key = keys.next_instance(operation.type)

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, None]:
        current = read.single(0, key)
        if int(current.value or b"1") > operation.instance:
            return None, None
        put = etcd.Put(key, str(operation.instance + 1).encode())
        return etcd.Txn((etcd.unchanged(current), epoch.held()), (put,)), None

    await update(client, [etcd.Get(key)], decide, subject=f"table {keys.name!r}")


_PART = re.compile(r"part-([0-9a-f]{12})-")
CLOCKS_S = 60.0
"""Tolerated clock skew in seconds."""

COMMITS = 1000
"""Newest commits of a Delta table that are examined."""


def operations_since(table: TableRecord, known: Collection[str], since: float) -> set[str]:
    """Names of the operations that have published since a time (0: any), except the known ones."""
    if table.format == "delta":
        return _of_delta(table, known, since)
    storage = storage_of(table)
    filesystem, root = file_system(table.location, storage)
    short = {uuid[:12] for uuid in known}
    operations: set[str] = set()
    for name in visible_files(table.location, storage):
        match = _PART.match(name.rpartition("/")[2])
        if match is None or match[1] in short or match[1] in operations:
            continue
        at = modified(filesystem.info(f"{root.rstrip('/')}/{name}"))
        if at is None or at.timestamp() > since - CLOCKS_S:
            operations.add(match[1])
    return operations


def _of_delta(table: TableRecord, known: Collection[str], since: float) -> set[str]:
    library = delta_library()
    from deltalake.exceptions import TableNotFoundError

    options = delta_options(table.location, storage_of(table))
    try:
        history = library.DeltaTable(table.location, storage_options=options).history(COMMITS)
    except TableNotFoundError:
        return set()
    operations = set()
    for commit in history:
        token = str(commit.get("distop.token", ""))
        late = float(commit.get("timestamp", 0)) / 1000 > since - CLOCKS_S
        if token and late and token.rpartition("/")[2] not in known:
            operations.add(token.rpartition("/")[0])
    return operations


LOOK_S = 900.0
"""Longest examination of one table's files."""

RACES = 5
MAX_NAMED = 5


@dataclass(frozen=True)
class RestoredTable:
    """The boundary between before and after the restore."""

    revision: int
    """Keys with a lower create revision are from before the restore."""
    backup_at: float
    """Seconds since the Unix epoch; 0: unknown."""


class TableMending:
    """Repairs one table.

    Parameters
    ----------
    now:
        Seconds since the Unix epoch.
    """

    def __init__(
        self, client: EtcdClient, keys: TableKeys, restored: RestoredTable, by: str, now: float
    ) -> None:
        self._client, self._keys, self._restored = client, keys, restored
        self._by, self._now = by, now

    async def read(self) -> TableRecord | None:
        """The table's record; ``None`` if it was dropped meanwhile.

        Raises :class:`~distop.errors.CorruptRecord`.
        """
        kv = await self._client.get(self._keys.table)
        return decode(kv.value, TableRecord, kv.key) if kv.exists else None

    async def mend(
        self, session: LeaseSession | None, published: Collection[str]
    ) -> AsyncGenerator[Reported, None]:
        """The findings; repaired, if there is a session."""
        epoch: Epoch | None = None
        try:
            async with asyncio.timeout(LOOK_S):
                if session is not None:
                    epoch = await self._led(session)
                record, ahead, doubts = await self._look(published, epoch)
            if record is None:
                if doubts:
                    yield await self._paused(doubts, epoch)
                return
            running = await self._running_before()
            if doubts:
                yield await self._paused(doubts, epoch)
            done = set()
            for publication in ahead.publications if ahead is not None else ():
                if publication.operation and epoch is not None:
                    await publish_again(self._client, self._keys, epoch, publication, self._now)
                done.add(publication.uuid)
            if ahead is not None:
                yield await self._moved(record, ahead, epoch)
            for arg in running:
                if arg.uuid not in done and not doubts and record.format == "iceberg":
                    yield await self._given_up(arg, epoch)
        except (DistopError, TimeoutError) as error:
            reason = error.message if isinstance(error, DistopError) else f"it took longer than {LOOK_S:g} s"
            yield Reported(
                self._finding(
                    "RESTORE_UNCLEAR", f"table {self._keys.name!r} could not be repaired: {reason}", ""
                )
            )

    async def _led(self, session: LeaseSession) -> Epoch:
        leader = LeaderRecord(member=f"after-restore-{session.lease_id:x}")
        epoch = await campaign(self._client, self._keys, session, leader)
        if epoch is None:
            raise LeadershipLost(
                f"a coordinator leads table {self._keys.name!r}", hint="end all coordinators, then repeat"
            )
        return epoch

    # -- looking -------------------------------------------------------------------------------------

    async def _look(
        self, published: Collection[str], epoch: Epoch | None
    ) -> tuple[TableRecord | None, Ahead | None, list[str]]:
        """The table, unless it cannot be read or is gone; what was published since; and what is unclear."""
        try:
            record = await self.read()
        except CorruptRecord as error:
            return None, None, [f"what was published to it is unknown: {error.message}"]
        if record is None:
            return None, None, []
        return record, *await self._published_since(record, published, epoch)

    async def _published_since(
        self, record: TableRecord, published: Collection[str], epoch: Epoch | None
    ) -> tuple[Ahead | None, list[str]]:
        if record.format != "iceberg":
            return None, await self._of_another_format(record, epoch)
        kv = await self._client.get(self._keys.head)
        head = decode(kv.value, Head, kv.key) if kv.exists else None
        try:
            ahead = await asyncio.to_thread(
                find_ahead,
                record.location,
                record.uuid,
                head.metadata_location if head else "",
                head.snapshot_id if head else None,
                storage_of(record),
                anew=head is not None and await self._knows_nothing(),
                choose=published,
            )
        except Unclear as error:
            return None, [f"{error.message}; {error.hint}"]
        except DistopError as error:
            return None, [error.message]
        except Exception as error:  # any error of a file system
            return None, [f"its files cannot be read: {type(error).__name__}: {error}"]
        return ahead, list(ahead.doubts) if ahead is not None else []

    async def _of_another_format(self, record: TableRecord, epoch: Epoch | None) -> list[str]:
        prefix = self._keys.history_prefix
        lines = (await self._client.scan(prefix)).kvs
        known = {decode(kv.value, records.HistoryRecord, kv.key).uuid for kv in lines}
        since = await asyncio.to_thread(operations_since, record, known, self._restored.backup_at)
        if not since:
            return []
        if epoch is not None and record.format == "delta":
            for number in map(OperationId.parse, since):
                await number_beyond(self._client, self._keys, epoch, replace(number, table=self._keys.name))
        named = ", ".join(sorted(since)[:MAX_NAMED])
        return [
            f"{len(since)} operations published to it that etcd does not know, nor their watermarks ({named})"
        ]

    async def _knows_nothing(self) -> bool:
        """Whether it was registered just now: no operation and no watermark of it is known."""
        prefix = self._keys.history_prefix
        history = await self._client.get_range(prefix, prefix_end(prefix), limit=1, keys_only=True)
        return not history.kvs and not (await self._client.get(self._keys.watermarks)).exists

    async def _running_before(self) -> list[records.OperationArg]:
        running = []
        for arg in await active_operations(self._client, self._keys):
            op = self._keys.operation(arg.id)
            read = await self._client.read_at_once([etcd.Get(op.arg), etcd.Get(op.state)])
            created = read.single(0, op.arg).create_revision
            if created < self._restored.revision and read.single(1, op.state).value in (
                records.RUNNING,
                records.COMMITTING,
            ):
                running.append(arg)
        return running

    # -- mending -------------------------------------------------------------------------------------

    def _finding(
        self, code: str, sentence: str, remedy: str, operation: str = "", *, mended: bool = False
    ) -> Finding:
        remedy = remedy or f"{DOCTOR} --after-restore --table {self._keys.name}, once that is repaired"
        return Finding(
            code=code,
            table=self._keys.name,
            operation=operation,
            sentence=sentence,
            remedy=remedy,
            mended=mended,
        )

    async def _paused(self, doubts: list[str], epoch: Epoch | None) -> Reported:
        """Pause it: nothing is written to it before an operator has checked it."""
        name = self._keys.name
        finding = self._finding(
            "RESTORE_UNCLEAR",
            f"table {name!r}: {'; '.join(doubts)}",
            f"correct its watermarks (distop watermark set), then: distop table resume {name}",
        )
        if epoch is None:
            return Reported(finding)
        why = records.PauseRecord(by=self._by, reason=f"after a restore: {doubts[0]}"[:1000], at=self._now)
        entry = audit_put(self._keys, "pause", by=self._by, target=name, reason=why.reason, at=self._now)
        await pause_table(self._client, self._keys, why, entry)
        return Reported(finding, outcome="paused the table")

    async def _moved(self, record: TableRecord, ahead: Ahead, epoch: Epoch | None) -> Reported:
        """Move head and watermarks forward to what the files show, in one transaction."""
        name, count = self._keys.name, len(ahead.publications)
        finding = self._finding(
            "HEAD_BEHIND_FILES",
            f"table {name!r} is ahead of its head by {count} snapshots: {ahead.location}",
            f"{DOCTOR} --after-restore moves head and watermarks there",
            mended=True,
        )
        if epoch is None:
            return Reported(finding)
        await make_room(self._client, self._keys, len(encode_plain(ahead.watermarks)))
        wanted = (self._keys.table, self._keys.head, self._keys.watermarks)
        for _ in range(RACES):
            read = await self._client.read_at_once([etcd.Get(key) for key in wanted])
            table, head, recent = read.each(wanted)
            marks = marks_at(self._client, record, recent, read.revision)
            after = await asyncio.to_thread(_forward, marks, ahead.watermarks)
            last = ahead.publications[-1].operation if ahead.publications else ""
            moved = Head(
                metadata_location=ahead.location, snapshot_id=ahead.snapshot_id, operation=last or "foreign"
            )
            entry = audit_put(
                self._keys, "after-restore", by=self._by, target=name, reason=ahead.location, at=self._now
            )
            puts: list[etcd.Put] = [etcd.Put(head.key, encode(moved)), entry]
            if after is not None:
                puts.append(etcd.Put(recent.key, after.encoded()))
            compares = (etcd.unchanged(table), etcd.unchanged(head), etcd.unchanged(recent), epoch.held())
            if (await settle(self._client, etcd.Txn(compares, tuple(puts)))).succeeded:
                return Reported(finding, fixed=True, outcome=f"moved them on by {count} snapshots")
            if _is_at(await self._client.get(head.key), ahead):
                return Reported(finding, fixed=True, outcome=f"moved them on by {count} snapshots")
        raise PreconditionFailed(f"table {name!r} is being changed by another process")

    async def _given_up(self, arg: records.OperationArg, epoch: Epoch | None) -> Reported:
        """An unpublished operation is started again by its caller, or with its batch."""
        op = self._keys.operation(arg.id)
        finding = self._finding(
            "OPERATION_BEFORE_RESTORE",
            f"{arg.id} was running when the backup was made, and has published nothing",
            f"{DOCTOR} --after-restore aborts it; its batches wait again, its callers start it again",
            str(arg.id),
            mended=True,
        )
        if epoch is None:
            return Reported(finding)
        message = "etcd was restored from a backup that was made while it ran"
        error = records.ErrorRecord(code=RestoredError.code, message=message, at=self._now)
        ops = (etcd.Put(op.state, records.ABORTING), etcd.Put(op.error, encode(error)))
        gone = (etcd.DeleteRange(op.waiting), etcd.DeleteRange(op.completion), etcd.DeleteRange(op.resolve))
        for state in (records.RUNNING, records.COMMITTING):
            txn = etcd.Txn(
                (etcd.equals(op.state, state), epoch.held(), etcd.absent(op.commit)), (*ops, *gone)
            )
            if (await settle(self._client, txn)).succeeded:
                return Reported(finding, fixed=True, outcome="gave it up")
        done = (await self._client.get(op.state)).value == records.ABORTING
        return Reported(finding, fixed=done, outcome="gave it up" if done else "it has steps to redo")


def _forward(marks: Marks, to: Watermarks) -> Marks | None:
    """The watermarks, none of them further back than before; ``None``: nothing moves. Blocks."""
    marks.chunks.know(position(source, name) for source, names in to.items() for name in names)
    changes: Watermarks = {}
    for source, names in to.items():
        for name, value in names.items():
            current = marks.value(source, name)
            if current is None or is_after(value, current):
                changes.setdefault(source, {})[name] = value
    return marks.then(changes) if changes else None


def _is_at(head: etcd.KeyValue, ahead: Ahead) -> bool:
    return head.exists and decode(head.value, Head, head.key).metadata_location == ahead.location
