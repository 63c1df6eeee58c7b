"""The jobs of one operation as a row of cells: one byte per job, whatever the jobs' names. Pure: no I/O.

A million jobs take a megabyte, where sets of their keys would take two hundred.

How they have ended, in the order of the plan, is kept as a text of at most 1 KiB. It has a count and a letter
for each run of jobs that have ended alike: ``"120s1f3.1t"``. Where they have ended too differently for that,
it has letters of neighbouring jobs together: ``"50:24s1f"`` is of 25 groups of 50 jobs each (the last one may
have fewer), and a group has the letter of its worst job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Literal, cast

from distop.metastore.records.operation import JobCountsRecord, OperationArg

MAX_BYTES = 1024

GROUPS = 2000
"""Groups of jobs at most, unless each job has its own letter."""

LEVELS = 4
"""Shades of a cell for several jobs: the share of them that is done, in quarters."""

_WORST_FIRST = b"f.ts"
_RUN = re.compile(rb"(.)\1*", re.DOTALL)
_TEXT = re.compile(r"(?:([1-9]\d{0,7}):)?((?:[1-9]\d{0,7}[stf.])*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell to draw: a job, or ``jobs`` neighbouring ones."""

    state: Literal[".", "r", "s", "f"]
    """The job's state; of several: ``f`` if any has failed, ``s`` once all are done, else ``.``."""
    level: int
    """Quarters of its jobs that are done, rounded up: 0 = none, 4 = (nearly) all."""
    label: str
    """Which job or jobs it is."""
    jobs: int = 1
    retried: bool = False
    """Whether an attempt at one of them has failed and was not the last."""


def draw(
    jobs: bytes | bytearray, retried: bytes | bytearray, limit: int, name: Callable[[int], str]
) -> list[Cell]:
    """Jobs, given by a letter each, in at most ``limit`` cells: one a job, or one for several neighbours.

    Parameters
    ----------
    retried:
        Of each job 1 if it was tried again; it may end before the last job.
    name:
        Of the job at a position.
    """
    count, cells = len(jobs), []
    for part in range(min(count, limit)):
        start, end = part, part + 1
        if count > limit:
            start, end = part * count // limit, (part + 1) * count // limit
        done, many = jobs.count(b"s", start, end), end - start
        failed, again = jobs.find(b"f", start, end) >= 0, retried.find(1, start, end) >= 0
        state = chr(jobs[start]) if many == 1 else "f" if failed else "s" if done == many else "."
        label = name(start)
        if many > 1:
            label += f" … {name(end - 1)}: {done:,} of {many:,}"
        shown = cast(Literal[".", "r", "s", "f"], state)
        cells.append(Cell(shown, -(-done * LEVELS // many), label, many, again))
    return cells


def outcomes_text(jobs: bytes) -> str:
    """The text, given a letter for each job: ``s`` done, ``t`` done after a failed attempt, ``f`` failed, any
    other one: it has no result."""
    jobs = re.sub(rb"[^stf]", b".", jobs)
    text, each = _runs(jobs), max(2, -(-len(jobs) // GROUPS))
    while text is None:
        groups = (jobs[start : start + each] for start in range(0, len(jobs), each))
        worst = (next(letter for letter in _WORST_FIRST if letter in group) for group in groups)
        text, each = _runs(bytes(worst), f"{each}:"), each * 2
    return text


def _runs(letters: bytes, text: str = "") -> str | None:
    """The text of some letters; ``None``: it is too long."""
    for run in _RUN.finditer(letters):
        text += f"{run.end() - run.start()}{run[1].decode()}"
        if len(text) > MAX_BYTES:
            return None
    return text


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The jobs of an operation that is over; drawn as those of one that is under way."""

    total: int
    each: int
    """Jobs that have one letter together."""
    letters: bytes

    complete, claimed = True, 0

    @classmethod
    def of(cls, text: str, total: int) -> Outcomes | None:
        """From its text; ``None`` if it is empty, or does not describe so many jobs."""
        if not text or (read := _TEXT.fullmatch(text)) is None:
            return None
        each, runs = int(read[1] or 1), re.findall(r"(\d+)(.)", read[2])
        if sum(int(count) for count, _ in runs) != -(-total // each):
            return None
        return cls(total, each, b"".join(letter.encode() * int(count) for count, letter in runs))

    @property
    def retried(self) -> bool:
        """Whether a job was tried again and is done."""
        return b"t" in self.letters

    def cells(self, limit: int) -> list[Cell]:
        """At most ``limit`` cells, as :func:`draw`; jobs have the numbers of the plan."""
        return draw(
            self.letters.replace(b"t", b"s"),
            self.letters.translate(bytes(letter == ord("t") for letter in range(256))),
            limit,
            self._name,
        )

    def _name(self, at: int) -> str:
        if self.each == 1:
            return str(at)
        return f"{at * self.each} … {min((at + 1) * self.each, self.total) - 1}"


WAITING, CLAIMED, SUCCEEDED, FAILED = ".", "r", "s", "f"
"""The values of a cell: nothing yet, an attempt at an exclusive job, the job's result."""

MAX_FAILURES = 100
"""How many failures keep their text."""

MAX_DYNAMIC = 10_000_000
"""Largest number of a job of a dynamic plan, whose number is unchecked: far more than etcd holds."""

_WAITING, _CLAIMED, _SUCCEEDED, _FAILED = (ord(state) for state in (WAITING, CLAIMED, SUCCEEDED, FAILED))


MANY = 1000
"""An operation with more jobs is not counted by every reader: its leader publishes the counts."""


class GridCounts:
    """How many jobs are done, as another process has counted them."""

    failures: Mapping[str, str] = {}
    first_job_at = 0.0
    """Only who counts the jobs knows it."""

    def __init__(self) -> None:
        self._record = JobCountsRecord()

    def update(self, record: JobCountsRecord) -> None:
        """Set the present counts."""
        self._record = record

    def restart(self) -> None:
        """Another run of a dynamic plan begins: earlier counts are invalid."""
        self._record = JobCountsRecord()

    def make_room(self, jobs: int) -> None:
        """Counts need none."""

    def outcomes(self) -> str:
        """Empty: who counts the jobs knows them."""
        return ""

    @property
    def succeeded(self) -> int:
        return self._record.succeeded

    @property
    def failed(self) -> int:
        return self._record.failed

    @property
    def last_job_at(self) -> float:
        return self._record.last_job_at

    @property
    def revision(self) -> int:
        """All results up to this revision are counted; 0: none are."""
        return self._record.revision


class JobGrid:
    """The state of every job of an operation; setting the same state twice changes nothing.

    A partition outside the plan has no cell: its results do not count.
    """

    def __init__(self, arg: OperationArg) -> None:
        self._names = arg.partitions
        self._index = None if self._names is None else {name: at for at, name in enumerate(self._names)}
        self._cells = bytearray((_WAITING,)) * arg.partition_count
        self._retried = bytearray()
        """1 at the position of each job that was tried again; it ends behind the last of them."""
        self._failures: dict[int, str] = {}
        self._dynamic = arg.dynamic
        self.succeeded = 0
        self.failed = 0
        self.first_job_at = self.last_job_at = 0.0
        """When the first and the last job finished, by the clocks of executors (seconds since the epoch)."""
        self.each = 1
        """Jobs that share a state."""
        self.complete = True
        """Whether all existing jobs have been read; until then there may be more results than counted."""

    @property
    def total(self) -> int:
        return len(self._cells)

    @property
    def claimed(self) -> int:
        """Jobs that an attempt holds; only types with exclusive jobs have any."""
        return self._cells.count(_CLAIMED)

    @property
    def retried(self) -> bool:
        """Whether a job was tried again."""
        return bool(self._retried)

    @property
    def failures(self) -> dict[str, str]:
        """Partition -> why it failed, in plan order; for the first :data:`MAX_FAILURES` seen."""
        return {self._name(at): self._failures[at] for at in sorted(self._failures)}

    # -- keeping up ----------------------------------------------------------------------------------

    def claim(self, partition: str) -> None:
        """An attempt holds the job; a result is kept."""
        at = self._at(partition)
        if at >= 0 and self._cells[at] == _WAITING:
            self._set(at, _CLAIMED)

    def release(self, partition: str) -> None:
        """No attempt holds the job any more."""
        at = self._at(partition)
        if at >= 0 and self._cells[at] == _CLAIMED:
            self._set(at, _WAITING)

    def succeed(self, partition: str, when: float) -> None:
        """The job has succeeded."""
        if (at := self._at(partition)) >= 0:
            self._set(at, _SUCCEEDED, when)

    def fail(self, partition: str, when: float, error: str) -> None:
        """The job has failed."""
        if (at := self._at(partition)) >= 0:
            self._set(at, _FAILED, when)
            if len(self._failures) < MAX_FAILURES:
                self._failures[at] = error

    def retry(self, partition: str) -> None:
        """An attempt at the job has failed, and was not the last."""
        if (at := self._at(partition)) >= 0:
            self._retried.extend(bytes(max(0, at + 1 - len(self._retried))))
            self._retried[at] = 1

    def clear(self, partition: str) -> None:
        """The job has no result, or none that counts."""
        if (at := self._at(partition, grow=False)) >= 0:
            self._set(at, _WAITING)

    def restart(self) -> None:
        """Another run of a dynamic plan begins: earlier results do not count."""
        self._cells, self.succeeded, self.failed = bytearray(), 0, 0
        self.first_job_at = 0.0
        self._failures.clear()

    def make_room(self, jobs: int) -> None:
        """A dynamic plan has at least this many jobs."""
        self._cells.extend((_WAITING,) * (min(jobs, MAX_DYNAMIC) - len(self._cells)))

    def _at(self, partition: str, *, grow: bool = True) -> int:
        """The position of a partition; -1 if it is not in the plan. A dynamic plan may grow by it."""
        if self._index is not None:
            return self._index.get(partition, -1)
        at = int(partition) if partition.isascii() and partition.isdecimal() else -1
        if at < len(self._cells):
            return at
        if not (self._dynamic and grow) or at >= MAX_DYNAMIC:
            return -1
        self.make_room(at + 1)
        return at

    def _set(self, at: int, state: int, when: float = 0.0) -> None:
        if when > self.last_job_at:
            self.last_job_at = when
            self.first_job_at = self.first_job_at or when
        elif 0.0 < when < self.first_job_at:
            self.first_job_at = when
        before, self._cells[at] = self._cells[at], state
        if state == _SUCCEEDED:
            self.succeeded += 1
        elif state == _FAILED:
            self.failed += 1
        if before == _SUCCEEDED:
            self.succeeded -= 1
        elif before == _FAILED:
            self.failed -= 1
            self._failures.pop(at, None)

    # -- showing it ----------------------------------------------------------------------------------

    def copied(self) -> JobGrid:
        """As it is now, whatever happens to the jobs: a byte a job."""
        taken = copy(self)
        taken._cells, taken._retried = bytearray(self._cells), bytearray(self._retried)
        taken._failures = dict(self._failures)
        return taken

    def cells(self, limit: int) -> list[Cell]:
        """At most ``limit`` cells: one a job, or one for several neighbours where there are more jobs."""
        return draw(self._cells, self._retried, limit, self._name)

    def outcomes(self) -> str:
        """How its jobs have ended so far: see :mod:`~distop.coordinator.state.grid`."""
        jobs, at = bytearray(self._cells), self._retried.find(1)
        while 0 <= at < len(jobs):
            if jobs[at] == _SUCCEEDED:
                jobs[at] = ord("t")
            at = self._retried.find(1, at + 1)
        return outcomes_text(bytes(jobs))

    def some(self, state: str, start: int, count: int) -> tuple[list[tuple[str, str]], int]:
        """Up to ``count`` jobs in a state (empty: in any) from a position of the plan on, each with its
        state; and the position behind them, 0 at the end."""
        jobs: list[tuple[str, str]] = []
        at = start
        while len(jobs) < count:
            at = self._cells.find(state.encode(), at)
            if not 0 <= at < self.total:
                return jobs, 0
            jobs.append((self._name(at), chr(self._cells[at])))
            at += 1
        return jobs, at if at < self.total and self._cells.find(state.encode(), at) >= 0 else 0

    def text(self, limit: int) -> str:
        """The states of :meth:`cells` as one letter each, for programs."""
        if self.total <= limit:
            return self._cells.decode()
        return "".join(cell.state for cell in self.cells(limit))

    def _name(self, at: int) -> str:
        return str(at) if self._names is None else self._names[at]
