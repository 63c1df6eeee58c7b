"""Runs of a dynamic plan: which results count, and when they are complete.

The jobs of a dynamic plan are the partitions of a DataFrame. When it is computed again they may be cut
differently, so the results of two computations must never be mixed: rows would be duplicated or lost.

So the results of exactly one run count, the one that ``<root>.run`` names, and each result contains its run.
A run that takes over the operation writes its own token there, in the transaction that removes the results of
the one before; from then on nothing of that one counts, wherever it may still be cached. Once all results of
a run exist, its runner *seals the count*. No run starts again after that, and no leader commits
before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from distop.metastore.crashpoints import reached
from distop.metastore.etcd.txn import Delete, Get, KeyValue, Put, Txn, unchanged
from distop.metastore.etcd.update import PATIENCE_S, settle
from distop.metastore.operations.runs import Run
from distop.metastore.records.operation import RunRecord
from distop.metastore.records.record import decode, encode

if TYPE_CHECKING:
    from distop.metastore.etcd.client import EtcdClient

REMOVED_AT_ONCE = 2000
"""Results of an earlier run that one transaction removes."""

GIVE_BACK_S = 1.0
"""How long it may take to stop counting a released run: its process is about to end."""


class DynamicRun:
    """Decides what counts for a run. Belongs to the holder of the run.

    All methods return ``False`` when the run is over: then nothing was written, and nothing ever will be.
    """

    def __init__(self, client: EtcdClient, run: Run) -> None:
        self.run = run
        self._client = client
        self._standing = KeyValue.missing(run.keys.run)

    @property
    def count(self) -> int | None:
        """How many results there are, if that is sealed; perhaps by an earlier run."""
        return self._record.count if self._standing.exists else None

    @property
    def begun(self) -> int:
        """How many runs have begun it, this one included, and have not ended in order."""
        return self._record.begun

    @property
    def _record(self) -> RunRecord:
        return decode(self._standing.value, RunRecord, self._standing.key)

    async def begin(self) -> bool:
        """Let only the results of this run count; unless a count is sealed, which is left unchanged.

        IF the run is held AND ``.run`` is as read THEN ``.run`` names this run, and results of earlier ones
        are deleted (in steps, if there are many). None can follow: their marks compare a runner that is gone.
        """
        keys = self.run.keys
        self._standing = await self._client.get(keys.run)
        start, end = keys.numbered_jobs
        more = True
        while more and self.count is None:
            page = await self._client.get_range(start, end, keys_only=True, limit=REMOVED_AT_ONCE)
            more = page.more
            gone = (Delete(page.kvs[0].key, page.kvs[-1].key + b"\0"),) if page.kvs else ()
            record = encode(self._mine())
            txn = Txn(
                (*self.run.held(), unchanged(self._standing)),
                (Put(keys.run, record), *gone),
                (Get(keys.run), Get(keys.state), Get(keys.runner)),
            )
            reached("run.begin.before")
            result = await settle(
                self._client, txn, patience_s=PATIENCE_S, replied=lambda: reached("run.begin.after")
            )
            if result.succeeded:
                created = self._standing.create_revision or result.revision
                self._standing = KeyValue(keys.run, record, result.revision, created)
                continue
            if self.run.why_over(result.one(1, keys.state), result.one(2, keys.runner)):
                return False
            # Only the holder of the run writes it: this is our own write, whose reply was lost. Its step is
            # done, too.
            self._standing = result.one(0, keys.run)
        return True

    async def seal(self, count: int) -> bool:
        """Record that all results exist: exactly ``count`` of this run.

        IF the run is held AND ``.run`` is as this run left it THEN the count is final. Call it when each of
        these results is known to have been written.
        """
        return await self._write(seals=True, count=count)

    async def note(self, tasks: int, done: int) -> bool:
        """Record Spark's progress, for display. Nothing depends on it."""
        return self._mine(tasks=tasks, done=done) == self._record or await self._write(tasks=tasks, done=done)

    async def give_back(self) -> bool:
        """Do not count this run any more, unless its count is sealed: its process lives and releases it. Call
        it once; a process that dies before is counted, since the operation may have killed it."""
        begun, given = self._record.begun - 1, None
        while given is None and self.count is None:
            value = encode(msgspec.structs.replace(self._record, begun=begun))
            given = await self._put(value, patience_s=GIVE_BACK_S)
        return bool(given)

    def _mine(self, **says: int) -> RunRecord:
        """The record of this run, apart from its number."""
        begun = 1
        if self._standing.exists:
            begun = self._record.begun + (self._record.token != self.run.token)
        return RunRecord(token=self.run.token, begun=begun, **says)

    async def _write(self, *, seals: bool = False, **says: int) -> bool:
        """Write this run's record, with retries: a note of its own may come between. A sealed count is never
        removed."""
        written = None
        while written is None and self.count is None:
            written = await self._put(encode(self._mine(**says)), seals=seals)
        return bool(written)

    async def _put(self, value: bytes, *, seals: bool = False, patience_s: float = PATIENCE_S) -> bool | None:
        """IF the run is held AND ``.run`` is as read THEN it gets this value. ``None``: the run is held, but
        its record has another value of its own, which is read now."""
        keys = self.run.keys
        txn = Txn(
            (*self.run.held(), unchanged(self._standing)),
            (Put(keys.run, value),),
            (Get(keys.run), Get(keys.state), Get(keys.runner)),
        )
        if seals:
            reached("count.seal.before")
            result = await settle(
                self._client, txn, patience_s=patience_s, replied=lambda: reached("count.seal.after")
            )
        else:
            result = await settle(self._client, txn, patience_s=patience_s)
        if result.succeeded:
            self._standing = KeyValue(keys.run, value, result.revision, self._standing.create_revision)
            return True
        standing = result.one(0, keys.run)
        if standing.exists and standing.value == value:
            # An earlier copy of this, whose reply was lost; a sealed count is final, whatever happened to the
            # run.
            self._standing = standing
            return True
        if self.run.why_over(result.one(1, keys.state), result.one(2, keys.runner)):
            return False
        # Ours, too: from a concurrent call, or a note whose outcome was unknown when it was given up.
        self._standing = standing
        return None
