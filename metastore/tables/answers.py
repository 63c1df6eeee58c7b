"""Answers to requests with an idempotency key, so that a repetition is not executed again.

A note is written in the transaction that executes the request, under an etcd lease that is not renewed: it
expires without any cleanup.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from distop.errors import RunReused
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Get, Put, Txn, absent
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import AnswerRecord

REMEMBER_S = 1800
"""Minimum time that an answer is remembered; at most twice as long."""


@dataclass(frozen=True)
class Note:
    """The note of a request, written with its effect."""

    key: bytes
    digest: str
    lease: int

    def part(self, result: str) -> Txn:
        """The part of the request's transaction that writes the note, if there is none yet. ``result``: the
        location of the new metadata of the one table that it changes, if any."""
        record = AnswerRecord(digest=self.digest, result=result)
        return Txn((absent(self.key),), (Put(self.key, encode(record), self.lease),), (Get(self.key),))


class RememberedAnswers:
    """The notes of one process. May be used from several threads."""

    def __init__(self, etcd: SyncEtcd) -> None:
        self._etcd, self._keyspace = etcd, etcd.keyspace
        self._lock = threading.Lock()
        self._lease, self._until = 0, 0.0

    def find(self, key: str, digest: str) -> AnswerRecord | None:
        """The answer under this key.

        Raises :class:`~distop.errors.RunReused` if it belongs to another request.
        """
        kv = self._etcd.get(self._keyspace.answer(key))
        if not kv.exists:
            return None
        record = decode(kv.value, AnswerRecord, kv.key)
        if record.digest != digest:
            raise RunReused(f"the key {key} was used for another request")
        return record

    def has(self, key: str) -> bool:
        """Whether there is an answer under this key, to whatever request."""
        return self._etcd.get(self._keyspace.answer(key)).exists

    def note(self, key: str, digest: str) -> Note:
        """The note of a new request."""
        with self._lock:
            if (now := time.monotonic()) >= self._until:
                self._lease = self._etcd.run(lambda client: client.lease_grant(2 * REMEMBER_S))
                self._until = now + REMEMBER_S
            return Note(self._keyspace.answer(key), digest, self._lease)

    def forget_lease(self) -> None:
        """The lease has ended early: the next note gets another one."""
        with self._lock:
            self._until = 0.0
