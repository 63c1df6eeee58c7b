"""The jobs of one operation as a row of cells: a byte a job, whatever the jobs are called.

A million jobs take a megabyte, where sets of their keys would take two hundred. Pure: no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distop.errors import CorruptRecord
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.model import JobRecord, OperationArg, RunRecord, decode

WAITING, CLAIMED, SUCCEEDED, FAILED = ".", "r", "s", "f"
"""What stands in a cell: nothing yet, an attempt at an exclusive job, the job's result."""

LEVELS = 4
"""Shades of a cell that stands for several jobs: the share of them that is done, in quarters."""

MAX_FAILURES = 20
"""Failures of which the text is kept."""

MAX_DYNAMIC = 1_000_000
"""Cells for the jobs of a dynamic plan, whose number nobody has checked."""

_WAITING, _CLAIMED, _SUCCEEDED, _FAILED = (ord(state) for state in (WAITING, CLAIMED, SUCCEEDED, FAILED))


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell to draw: a job, or ``jobs`` neighbouring ones."""

    state: Literal[".", "r", "s", "f"]
    """The job's; of several: ``f`` if any has failed, ``s`` once all are done, else ``.``."""
    level: int
    """Quarters of its jobs that are done, rounded up: 0 = none, 4 = (nearly) all."""
    label: str
    """Which job or jobs it is."""
    jobs: int = 1


class JobGrid:
    """The jobs of an operation, kept up to date from keys; applying the same change twice changes nothing."""

    def __init__(self, keys: OperationKeys, arg: OperationArg) -> None:
        self._keys = keys
        self._names = arg.partitions
        self._index = None if self._names is None else {name: at for at, name in enumerate(self._names)}
        self._cells = bytearray((_WAITING,)) * arg.partition_count
        self._dynamic, self._run = arg.dynamic, 0
        self.failures: dict[str, str] = {}
        """Partition -> why it failed; the first :data:`MAX_FAILURES` that were seen."""
        self.last_job_at = 0.0
        """When a job finished last, as its executor says (seconds since the epoch)."""
        self.succeeded = 0
        self.failed = 0
        self.complete = False
        """Whether all jobs there were have been read; until then there may be more results than counted."""

    @property
    def total(self) -> int:
        return len(self._cells)

    @property
    def claimed(self) -> int:
        """Jobs that an attempt holds; only types with exclusive jobs have any."""
        return self._cells.count(_CLAIMED)

    # -- keeping up ----------------------------------------------------------------------------------

    def apply_put(self, kv: KeyValue) -> None:
        """Any key below the operation's root was written; keys of no job change nothing."""
        if self._dynamic and not self._heeds(kv):
            return
        at, partition, word = self._place(kv.key)
        if word == "claim" and self._cells[at] == _WAITING:
            self._set(at, _CLAIMED)
        elif word == "state":
            try:
                record = decode(kv.value, JobRecord, kv.key)
            except CorruptRecord:
                return  # neither done nor failed, as for the leader
            self.last_job_at = max(self.last_job_at, record.at)
            self._set(at, _SUCCEEDED if record.state == "success" else _FAILED)
            if record.state != "success" and len(self.failures) < MAX_FAILURES:
                self.failures[partition] = record.error

    def apply_delete(self, key: bytes) -> None:
        """Any key below the operation's root was deleted."""
        at, partition, word = self._place(key)
        if word == "claim" and self._cells[at] == _CLAIMED:
            self._set(at, _WAITING)
        elif word == "state":
            self._set(at, _WAITING)
            self.failures.pop(partition, None)

    def _heeds(self, kv: KeyValue) -> bool:
        """Whether a key of a dynamic plan is one of the run that counts; makes room for its jobs."""
        named, is_run = self._keys.partition_of(kv.key), kv.key == self._keys.run
        try:
            if is_run:
                record = decode(kv.value, RunRecord, kv.key)
                token, jobs = record.token, record.tasks if record.count is None else record.count
            elif named is not None and named[1] == "state" and named[0].isdecimal():
                token, jobs = decode(kv.value, JobRecord, kv.key).run, int(named[0]) + 1
            else:
                return False
        except CorruptRecord:
            return False
        if token < self._run:
            return False
        if token > self._run:
            self._run, self._cells = token, bytearray()
            self.succeeded = self.failed = 0
            self.failures.clear()
        self._cells.extend((_WAITING,) * (min(jobs, MAX_DYNAMIC) - len(self._cells)))
        return not is_run

    def _place(self, key: bytes) -> tuple[int, str, str]:
        """Index, partition and word of a job's key; the word is empty for any other key."""
        named = self._keys.partition_of(key)
        if named is None:
            return 0, "", ""
        partition, word = named
        if self._index is not None:
            at = self._index.get(partition, -1)
        else:
            at = int(partition) if partition.isascii() and partition.isdecimal() else -1
        return (at, partition, word) if 0 <= at < self.total else (0, "", "")

    def _set(self, at: int, state: int) -> None:
        before, self._cells[at] = self._cells[at], state
        self.succeeded += (state == _SUCCEEDED) - (before == _SUCCEEDED)
        self.failed += (state == _FAILED) - (before == _FAILED)

    # -- showing it ----------------------------------------------------------------------------------

    def cells(self, limit: int) -> list[Cell]:
        """At most ``limit`` cells: one a job, or one for several neighbours where there are more jobs."""
        if self.total <= limit:
            return [self._one(at) for at in range(self.total)]
        return [
            self._several(part * self.total // limit, (part + 1) * self.total // limit)
            for part in range(limit)
        ]

    def text(self, limit: int) -> str:
        """The states of :meth:`cells` as one letter each, for programs."""
        if self.total <= limit:
            return self._cells.decode()
        return "".join(cell.state for cell in self.cells(limit))

    def _name(self, at: int) -> str:
        return str(at) if self._names is None else self._names[at]

    def _one(self, at: int) -> Cell:
        state = chr(self._cells[at])
        return Cell(state, LEVELS if state == SUCCEEDED else 0, self._name(at))  # type: ignore[arg-type]

    def _several(self, start: int, end: int) -> Cell:
        jobs, done = end - start, self._cells.count(_SUCCEEDED, start, end)
        failed = self._cells.count(_FAILED, start, end)
        state: Literal[".", "s", "f"] = "f" if failed else "s" if done == jobs else "."
        level = -(-done * LEVELS // jobs)
        return Cell(state, level, f"{self._name(start)} … {self._name(end - 1)}: {done:,} of {jobs:,}", jobs)
