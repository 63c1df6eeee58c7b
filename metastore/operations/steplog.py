"""The log of an operation's external commit steps: durable as a whole before the first of them is executed.

A sequence is split into chunks, each a key far below etcd's limit of a value. The header is written last, in
a transaction that compares every chunk as written: if the header exists the log is complete, otherwise there
is no log, whatever chunks a crash has left (C1, C2).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from distop import errors
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.update import settle
from distop.metastore.members.lease import Epoch
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.names import prefix_end
from distop.metastore.records.operation import COMMITTING, CommitSequence, StepRecord
from distop.metastore.records.record import Record, decode, encode

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 10
"""About the size of a chunk."""

MAX_STEP_BYTES = 1 << 20
"""Limit of one step: it must fit into one chunk, a value of etcd."""

MAX_CHUNKS = 100
"""The transaction that writes the header compares every chunk, and etcd takes 128 compares."""

MAX_TRIES = 8
"""How often chunks are rewritten because a delayed copy of an earlier write interfered."""

LOAD_PAGE = 20
"""Chunks read by one request."""


class ChunkRecord(Record, kw_only=True):
    """``<root>.commit.<n>``: a part of the sequence."""

    digest: str
    """Digest of the whole sequence: distinguishes its chunks from those of another one."""
    steps: list[StepRecord]


class LogRecord(Record, kw_only=True):
    """``<root>.commit``: the header; describes the complete log."""

    operation: str
    uuid: str
    digest: str
    steps: int
    chunks: int
    at: float = 0.0


class CommitStepStore:
    """Writes and reads the logs of operations.

    Parameters
    ----------
    chunk_bytes:
        About the size of a chunk.
    """

    def __init__(self, *, chunk_bytes: int = CHUNK_BYTES, now: Callable[[], float] = time.time) -> None:
        self._chunk_bytes = chunk_bytes
        self._now = now

    async def write(
        self, client: EtcdClient, keys: OperationKeys, epoch: Epoch, sequence: CommitSequence
    ) -> CommitSequence | None:
        """Make a sequence durable, unless the operation already has a log.

        Can be interrupted and repeated, by this leader or the next one, with this sequence or another one
        that was computed again: the first whose header is written is final.

        Returns
        -------
        CommitSequence | None
            The present log, which must be executed: ``sequence``, or an earlier one. ``None`` if the
            operation has no log and may not get one: it was cancelled, or is not ``committing``.

        Raises
        ------
        LeadershipLost
            The epoch is over; this call has written no header.
        OutcomeUnknown
            etcd does not answer; the log is complete or absent, but which is unknown.
        ArgumentTooLarge
            The sequence, or one step of it, exceeds the limits of a log. Nothing was written.
        """
        chunks = self._cut(sequence)
        for _ in range(MAX_TRIES):
            written: list[etcd.Compare] = []
            for index, value in enumerate(chunks):
                key = keys.commit_chunk(index)
                reached("log.chunk.before")
                result = await _settle(client, keys, epoch, etcd.Txn((), (etcd.Put(key, value),)))
                reached("log.chunk.after")
                if not result.succeeded:
                    return await self._existing(client, keys, epoch, result)
                written.append(etcd.unchanged(etcd.KeyValue(key, b"", result.revision, 0)))
            header = LogRecord(
                operation=sequence.operation,
                uuid=sequence.uuid,
                digest=sequence.digest,
                steps=len(sequence),
                chunks=len(chunks),
                at=self._now(),
            )
            # Chunks after the last one belong to an earlier, longer sequence whose writer died.
            stale = etcd.DeleteRange(keys.commit_chunk(len(chunks)), prefix_end(keys.commit_chunks))
            last = etcd.Txn(
                (etcd.absent(keys.cancel), *written), (etcd.Put(keys.commit, encode(header)), stale)
            )
            reached("log.header.before")
            result = await _settle(client, keys, epoch, last)
            reached("log.header.after")
            if result.succeeded:
                fields = {"operation": str(keys.operation), "steps": len(sequence), "chunks": len(chunks)}
                log.info("commit_steps_logged", extra={**fields, "epoch": epoch.revision})
                return sequence
            if _is_hindered(keys, epoch, result):
                return await self._existing(client, keys, epoch, result)
            # Only a chunk has changed: a delayed copy of a write whose reply was lost. Write them again.
        raise errors.Exhausted(
            f"the commit steps of {keys.operation} could not be logged: chunks change all the time"
        )

    async def load(self, client: EtcdClient, keys: OperationKeys) -> CommitSequence | None:
        """The logged sequence; ``None`` if none was logged completely.

        Raises
        ------
        CorruptRecord
            The log is damaged, belongs to another operation, or has a newer layout.
        """
        for last_try in (False, True):
            page = await client.get_range(keys.commit, b"")
            if not page.kvs:
                return None
            try:
                scan = await client.scan(keys.commit_chunks, revision=page.revision, page=LOAD_PAGE)
            except errors.Compacted:
                if last_try:
                    raise
                continue
            return _assembled(keys, page.kvs[0], scan.kvs)
        raise AssertionError("unreachable: the last try returns or raises")

    async def _existing(
        self, client: EtcdClient, keys: OperationKeys, epoch: Epoch, refused: etcd.TxnResult
    ) -> CommitSequence | None:
        leader = refused.single(1, epoch.key)
        if leader.create_revision != epoch.revision:
            raise errors.LeadershipLost(f"{keys.operation}: epoch {epoch.revision} is over")
        return await self.load(client, keys)

    def _cut(self, sequence: CommitSequence) -> list[bytes]:
        return [
            encode(ChunkRecord(digest=sequence.digest, steps=list(part))) for part in self._parts(sequence)
        ]

    def _parts(self, sequence: CommitSequence) -> Iterator[tuple[StepRecord, ...]]:
        start, size, parts = 0, 0, 1
        for index, encoded in enumerate(sequence.encoded):
            if len(encoded) > MAX_STEP_BYTES:
                raise errors.ArgumentTooLarge(
                    f"commit step {index} ({sequence.steps[index].step}) of {sequence.operation} takes "
                    f"{len(encoded):,} bytes, at most {MAX_STEP_BYTES:,} can be logged",
                    hint="write large facts to a file, and name it in the step",
                )
            if size and size + len(encoded) > self._chunk_bytes:
                yield sequence.steps[start:index]
                start, size, parts = index, 0, parts + 1
                if parts > MAX_CHUNKS:
                    raise errors.ArgumentTooLarge(
                        f"the {len(sequence):,} commit steps of {sequence.operation} take more than "
                        f"{MAX_CHUNKS} x {self._chunk_bytes:,} bytes"
                    )
            size += len(encoded) + 1
        if size:
            yield sequence.steps[start:]


async def _settle(client: EtcdClient, keys: OperationKeys, epoch: Epoch, txn: etcd.Txn) -> etcd.TxnResult:
    """Send a write of the log, which only the leader of a committing operation without a log may do."""
    fence = (etcd.equals(keys.state, COMMITTING), epoch.held(), etcd.absent(keys.commit))
    reads = (etcd.Get(keys.state), etcd.Get(epoch.key), etcd.Get(keys.commit), etcd.Get(keys.cancel))
    return await settle(client, etcd.Txn(fence, (), reads) + txn)


def _is_hindered(keys: OperationKeys, epoch: Epoch, refused: etcd.TxnResult) -> bool:
    """Whether anything except its own chunks prevents this log."""
    state, leader = refused.single(0, keys.state), refused.single(1, epoch.key)
    header, cancel = refused.single(2, keys.commit), refused.single(3, keys.cancel)
    held = leader.create_revision == epoch.revision
    return not held or state.value != COMMITTING or header.exists or cancel.exists


def _assembled(keys: OperationKeys, header_kv: etcd.KeyValue, kvs: list[etcd.KeyValue]) -> CommitSequence:
    header = decode(header_kv.value, LogRecord, header_kv.key)
    name = str(keys.operation)

    def damaged(why: str) -> errors.CorruptRecord:
        return errors.CorruptRecord(f"the log of the commit steps of {name} is damaged: {why}")

    if header.operation != name:
        raise damaged(f"it belongs to {header.operation}")
    if [kv.key for kv in kvs] != [keys.commit_chunk(index) for index in range(header.chunks)]:
        raise damaged(f"it has {len(kvs)} chunks, not the {header.chunks} of its header")
    steps: list[StepRecord] = []
    for kv in kvs:
        chunk = decode(kv.value, ChunkRecord, kv.key)
        if chunk.digest != header.digest:
            raise damaged(f"{kv.key.decode()} belongs to another sequence")
        steps += chunk.steps
    try:
        sequence = CommitSequence(header.operation, header.uuid, tuple(steps))
    except errors.InvalidArgument as error:
        raise damaged(str(error)) from error
    if len(sequence) != header.steps or sequence.digest != header.digest:
        raise damaged(f"{len(sequence)} of {header.steps} steps, and the digest differs")
    return sequence
