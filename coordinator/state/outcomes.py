"""How the jobs of an operation have ended, in the order of its plan, as a text of at most 1 KiB.

The text has a count and a letter for each run of jobs that have ended alike: ``"120s1f3.1t"``. Where they
have ended too differently for that, it has letters of neighbouring jobs together: ``"50:24s1f"`` is of 25
groups of 50 jobs each (the last one may have fewer), and a group has the letter of its worst job. Pure: no
I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

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
