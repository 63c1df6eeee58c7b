"""Finishes of one table, one at a time.

All of them change ``runOps``. Taking turns, those of one leader do not make each other lose; and since nearly
all changes of it are the leader's own or come by its watch, it need not be read each time. What is remembered
may be wrong: the finishing transaction compares it.
"""

from __future__ import annotations

import asyncio

from distop.metastore.keyspace import OperationId
from distop.metastore.starting import slots_without
from distop.metastore.txn import KeyValue


class Turn:
    """Whose turn it is, and the newest ``runOps`` that is known."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._run_ops: KeyValue | None = None
        self._revision = 0

    @property
    def run_ops(self) -> KeyValue | None:
        """``None``: it has to be read."""
        return self._run_ops

    def seen(self, kv: KeyValue) -> None:
        """It was written, as an event says; late news change nothing."""
        if kv.mod_revision > self._revision:
            self._run_ops, self._revision = kv, kv.mod_revision

    def finished(self, before: KeyValue, operation: OperationId, revision: int) -> None:
        """An operation was taken out of it."""
        if revision > self._revision:
            self._revision, self._run_ops = revision, KeyValue.missing(before.key)
            if (left := slots_without(before, operation)) is not None:
                self._run_ops = KeyValue(before.key, left, revision, before.create_revision)

    def forget(self) -> None:
        """It was not what was remembered."""
        self._run_ops = None
