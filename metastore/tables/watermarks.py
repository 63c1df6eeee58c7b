"""The watermarks of a table in etcd: reading them, making room for more, and setting them by hand (checklist
C8, U2, G4).

Operations move watermarks when they finish. Sometimes it must be done by hand: after a rollback that kept
them, or when a source has been renumbered.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

from distop.errors import Exhausted, IncompatibleOperation, TableNotFound
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.update import update
from distop.metastore.records import watermarks
from distop.metastore.records.keyspace import Keyspace, TableKeys
from distop.metastore.records.names import prefix_end
from distop.metastore.records.operation import Effect, OperationArg
from distop.metastore.records.record import decode, encode_plain
from distop.metastore.records.table import Head, TableRecord, running_operations

FOLDED_BYTES = 400_000
"""Bytes that one fold writes into chunks; more only if already one entry needs more."""

FOLDED_CHUNKS = 40
"""About how many chunks it writes at most."""

FOLDS = 4
"""Folds before one finish, if it would fit without them."""

MAX_FOLDS = 2000
"""Folds before one finish, if it would not."""

DEADLINES = 4
"""Longest wait of a thread for chunks, in deadlines of a request."""


_Waiting = tuple[bytes, str, str, str | None]
"""Position, source, partition and value of a recent watermark."""


def watermark_chunks(keyspace: Keyspace, table: TableRecord) -> bytes:
    """The prefix of its chunks' keys."""
    return keyspace.watermark_chunks(table.uuid or table.name)


class ChunkReader:
    """Reads chunks of a table at a revision. Made on the event loop of its client; called in other threads,
    it blocks. In another process, after pickling, it has a connection of its own.

    Raises :class:`~distop.errors.Compacted` if that revision is gone.
    """

    def __init__(self, client: EtcdClient, table: TableRecord, revision: int) -> None:
        self._home: tuple[EtcdClient, asyncio.AbstractEventLoop] | None = client, asyncio.get_running_loop()
        self._config, self._revision = client.config, revision
        self._prefix = watermark_chunks(client.keyspace, table)

    def __getstate__(self) -> dict[str, Any]:
        # A process of this service: it gets the password, or the path of its file.
        return {**self.__dict__, "_home": None, "_config": self._config.to_env()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= {**state, "_config": EtcdConfig.from_env(state["_config"])}

    def __call__(self, positions: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
        if self._home is None:
            return _connected(self._config).run(lambda client: self.read(client, positions))
        client, loop = self._home
        future = asyncio.run_coroutine_threadsafe(self.read(client, positions), loop)
        return future.result(DEADLINES * self._config.timeout_s)

    async def read(self, client: EtcdClient, positions: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
        """For each position the first chunk at or after it; see :data:`.Fetch`."""

        async def first(where: bytes) -> tuple[bytes, bytes] | None:
            page = await client.get_range(
                self._prefix + where, prefix_end(self._prefix), revision=self._revision, limit=1
            )
            return (page.kvs[0].key[len(self._prefix) :], page.kvs[0].value) if page.kvs else None

        return list(await asyncio.gather(*map(first, positions)))


@cache
def _connected(config: EtcdConfig) -> SyncEtcd:
    return SyncEtcd(config)


def marks_at(
    client: EtcdClient, table: TableRecord, recent: etcd.KeyValue, revision: int
) -> watermarks.Marks:
    """The watermarks of a table at a revision, to be iterated in another thread."""
    return watermarks.Marks(
        watermarks.decode_recent(recent.value), watermarks.Chunks(ChunkReader(client, table, revision))
    )


async def read_marks(client: EtcdClient, keys: TableKeys) -> tuple[watermarks.Marks, int]:
    """The present watermarks of a table, and their revision; to be iterated in a thread.

    Raises :class:`~distop.errors.TableNotFound`.
    """
    read = await client.read_at_once([etcd.Get(keys.table), etcd.Get(keys.watermarks)])
    record = _record(keys, read.single(0, keys.table))
    return marks_at(client, record, read.single(1, keys.watermarks), read.revision), read.revision


async def read_mark(
    client: EtcdClient, keys: TableKeys, source: str, partition: str
) -> tuple[str | None, int]:
    """One watermark, ``None`` if there is none or no such table; and the revision at which any watermark of
    the table was last changed, 0 if none was."""
    read = await client.read_at_once([etcd.Get(keys.table), etcd.Get(keys.watermarks)])
    table, recent = read.single(0, keys.table), read.single(1, keys.watermarks)
    if not table.exists:
        return None, recent.mod_revision
    marks = marks_at(client, _record(keys, table), recent, read.revision)
    return await asyncio.to_thread(marks.value, source, partition), recent.mod_revision


def _record(keys: TableKeys, table: etcd.KeyValue) -> TableRecord:
    if not table.exists:
        raise TableNotFound.named(keys.name)
    return decode(table.value, TableRecord, table.key)


# -- making room -------------------------------------------------------------------------------------


async def make_room(client: EtcdClient, keys: TableKeys, moves: int) -> None:
    """Move recent watermarks into the chunks, so that a change has room.

    Parameters
    ----------
    moves:
        Bytes of the change.

    Raises
    ------
    Exhausted
        Other processes change the watermarks faster.
    """
    for count in range(MAX_FOLDS):
        size = await fold(client, keys)
        if size <= watermarks.FOLD_BYTES or (
            count + 1 >= FOLDS and size + moves <= watermarks.MAX_RECENT_BYTES
        ):
            return
    raise Exhausted(
        f"the watermarks of table {keys.name!r} have no room for {moves:,} bytes more",
        hint="try again in a moment",
        details={"table": keys.name},
    )


async def fold(client: EtcdClient, keys: TableKeys) -> int:
    """Move some of the recent watermarks into their chunks; return the bytes that are left.

    IF the table and its recent watermarks are as read THEN the chunks with them, and the recent ones without
    them. Readers see no difference, so any process may do it at any time, and be killed: every other change
    of watermarks also compares the key that this writes.
    """

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, int]:
        table, existing = read.single(0, keys.table), read.single(1, keys.watermarks)
        if not table.exists or len(existing.value) <= watermarks.FOLD_BYTES:
            return None, len(existing.value)
        recent, record = watermarks.decode_recent(existing.value), decode(table.value, TableRecord, table.key)
        reader = ChunkReader(client, record, read.revision)
        ops = await folded(client, recent, reader, watermark_chunks(client.keyspace, record))
        left = encode_plain(recent)
        reached("watermarks.fold.before")
        return etcd.Txn(
            (etcd.unchanged(table), etcd.unchanged(existing)), (*ops, etcd.Put(keys.watermarks, left))
        ), len(left)

    subject, replied = f"table {keys.name!r}", lambda: reached("watermarks.fold.after")
    reads = [etcd.Get(keys.table), etcd.Get(keys.watermarks)]
    return (await update(client, reads, decide, subject=subject, replied=replied))[0]


async def folded(
    client: EtcdClient, recent: watermarks.Recent, reader: ChunkReader, prefix: bytes
) -> list[etcd.Put | etcd.DeleteRange]:
    """The writes that move some of ``recent`` into chunks, at least one entry; removes them from it."""
    waiting: list[_Waiting] = sorted(
        (watermarks.position(source, partition), source, partition, value)
        for source, partitions in recent.items()
        for partition, value in partitions.items()
    )
    ops: list[etcd.Put | etcd.DeleteRange] = []
    first, room, chunks = 0, FOLDED_BYTES, watermarks.Chunks(reader)
    while first < len(waiting) and len(ops) < FOLDED_CHUNKS:
        start = [waiting[first][0]]
        chunks.learn(start, await reader.read(client, start))
        chunk = chunks.at(start[0])
        last = end = bisect_right(waiting, chunk.bound, key=itemgetter(0))
        while (size := sum(map(_bytes, writes := _written(chunk, waiting[first:last], prefix)))) > room:
            if last - first == 1:
                break
            last = (first + last) // 2
        if size > room and ops:
            break  # the next fold has room for its first entry, whatever that takes
        ops += writes
        room -= size
        for _, source, partition, _ in waiting[first:last]:
            del recent[source][partition]
            if not recent[source]:
                del recent[source]
        first = last
        if last < end:
            break  # the chunk as it was read knows nothing of what goes into it here
    return ops


def _written(
    chunk: watermarks.Chunk, taken: Iterable[_Waiting], prefix: bytes
) -> list[etcd.Put | etcd.DeleteRange]:
    newer = (
        (where, None if value is None else (source, partition, value))
        for where, source, partition, value in taken
    )
    return [
        etcd.DeleteRange(prefix + bound) if marks is None else etcd.Put(prefix + bound, marks)
        for bound, marks in watermarks.refilled(chunk, newer).items()
    ]


def _bytes(op: etcd.Put | etcd.DeleteRange) -> int:
    return len(op.key) + (len(op.value) if isinstance(op, etcd.Put) else 0)


# -- by hand -----------------------------------------------------------------------------------------

Change = Callable[[watermarks.Marks, TableRecord, Head | None], Awaitable[tuple[watermarks.Marks, etcd.Txn]]]
"""Returns the new watermarks of a table, and further writes to its chunks. Called again when the table has
changed meanwhile."""


def without_source(marks: watermarks.Marks, prefix: bytes, source: str) -> tuple[watermarks.Marks, etcd.Txn]:
    """The watermarks of a table without those of a source. Blocks.

    Parameters
    ----------
    prefix:
        The prefix of its chunks' keys.
    """
    start = watermarks.position(source)
    end = prefix_end(start)
    recent = {name: partitions for name, partitions in marks.recent.items() if name != source}
    first, last = marks.chunks.at(start), marks.chunks.at(end)
    ops: list[etcd.Op] = [] if marks.chunks.none else [etcd.DeleteRange(prefix + start, prefix + end)]
    for chunk in {first.bound: first, last.bound: last}.values():
        others = [(where, entry) for where, entry in chunk.entries.items() if entry[0] != source]
        inside = chunk.bound < end
        if not inside and len(others) == len(chunk.entries):
            continue  # it is after the source
        # A chunk whose bound is within the range is removed: the rest of it is before the range.
        bound = max(where for where, _ in others) if inside and others else chunk.bound
        if others:
            ops.append(etcd.Put(prefix + bound, watermarks.chunk_value(entry for _, entry in others)))
        elif not inside:
            ops.append(etcd.DeleteRange(prefix + bound))
    return watermarks.Marks(recent, marks.chunks), etcd.Txn(then=tuple(ops))


async def change_watermarks(client: EtcdClient, keys: TableKeys, change: Change, audit: etcd.Put) -> int:
    """IF table, running operations, head and watermarks are as read THEN new watermarks and the audit entry.

    If nothing changes, nothing is written. Returns the revision of the read or write.

    Raises
    ------
    TableNotFound
        There is no such table.
    IncompatibleOperation
        An operation runs that moves watermarks, or may; the error names it.
    """
    await make_room(client, keys, watermarks.MAX_ENTRY_BYTES)
    wanted = (keys.table, keys.run_ops, keys.head, keys.watermarks)

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, bool]:
        table, run_ops, head, existing = read.each(wanted)
        record = _record(keys, table)
        await _check_none_moves(client, keys, run_ops)
        published = decode(head.value, Head, head.key) if head.exists else None
        before = marks_at(client, record, existing, read.revision)
        after, further = await change(before, record, published)
        if after.recent == before.recent and not further.then:
            return None, True
        reached("watermarks.before")
        compares = tuple(map(etcd.unchanged, (table, run_ops, head, existing)))
        return etcd.Txn(compares, (etcd.Put(keys.watermarks, after.encoded()), audit)) + further, True

    def is_own_write(read: etcd.TxnResult) -> bool | None:
        # The audit entry of an earlier copy; others may have changed the watermarks since.
        return True if read.got(4) else None

    reads = [*(etcd.Get(key) for key in wanted), etcd.Get(audit.key)]
    subject, replied = f"table {keys.name!r}", lambda: reached("watermarks.after")
    return (await update(client, reads, decide, is_own_write, subject=subject, replied=replied))[1]


async def _check_none_moves(client: EtcdClient, keys: TableKeys, run_ops: etcd.KeyValue) -> None:
    for running in running_operations(keys.name, run_ops.value):
        kv = await client.get(keys.operation(running).arg)
        if not kv.exists:  # it has ended since, and the transaction will notice
            continue
        arg = decode(kv.value, OperationArg, kv.key)
        if arg.watermarks or arg.effect is Effect.REPLACES:
            raise IncompatibleOperation(
                f"the watermarks of {keys.name!r} cannot be changed while {running} is running",
                hint=f"wait for it, or cancel it: distop operation cancel {running}",
                details={"table": keys.name, "operation": str(running)},
            )
