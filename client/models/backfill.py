"""Backfills: the batches of a range, the argument of each, and how far they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Self

from distop.client.models.backlog import Block
from distop.client.models.operation import OperationFailed
from distop.errors import Cancelled, InvalidArgument

MAX_BATCHES = 10_000
"""Most batches of one backfill: as many as a table remembers by name."""

_FORMS = {"month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
"""How batches are named at each step, from coarse to fine. The byte order of the names is that of time."""

_NUMBER = re.compile("[0-9]{1,18}")


def batch_range(first: str, last: str, every: str = "") -> list[str]:
    """The names of the batches from the first to the last, both included, in their order.

    Parameters
    ----------
    first, last:
        Months (``2024-01``), days (``2024-01-31``) or hours (``2024-01-31T05``), in UTC. One may be coarser
        than the step: hours up to ``2024-01-31`` are those of that whole day. With a number as step: numbers
        with equally many digits, such as ``001`` and ``120``.
    every:
        The step: ``month``, ``day``, ``hour``, or a number. Default: as ``first`` is written.

    Raises
    ------
    InvalidArgument
        It is no range, or has more than :data:`MAX_BATCHES` batches.
    """
    try:
        names = (_numbers if _NUMBER.fullmatch(every) else _times)(first, last, every)
        found = list(islice(names, MAX_BATCHES + 1))
    except OverflowError:
        raise InvalidArgument(f"{last} is too late", details={"field": "last"}) from None
    if not 1 <= len(found) <= MAX_BATCHES:
        why = f"are more than {MAX_BATCHES:,} batches: split it" if found else "are none"
        raise InvalidArgument(f"{first} to {last} {why}", details={"field": "last"})
    return found


def checked_batches(names: Sequence[str]) -> list[str]:
    """The names of batches in their order, each once; raises :class:`~distop.errors.InvalidArgument`."""
    if not 1 <= len(names) <= MAX_BATCHES:
        raise InvalidArgument(
            f"a backfill has 1 to {MAX_BATCHES:,} batches", hint="split it", details={"field": "batches"}
        )
    return sorted(set(names), key=str.encode)


def batch_arguments(argument: Mapping[str, Any], batches: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The argument of each batch: ``{{ batch }}`` is its name, and ``{{ tick }}`` the time that this shows.

    Raises :class:`~distop.errors.InvalidArgument` for an invalid template, or if there is none.
    """
    from distop.proto.templates import has_templates, rendered  # few programs need Jinja

    if len(batches) > 1 and not has_templates(dict(argument)):
        raise InvalidArgument(
            "the argument is the same for all batches",
            hint="name the batch in it, as in --arg paths=/data/{{ batch }}",
            details={"field": "argument"},
        )
    arguments = {}
    for batch in batches:
        time = _time_of(batch)
        names = {"batch": batch} | ({"tick": time[1]} if time is not None else {})
        arguments[batch] = rendered(dict(argument), names)
    return arguments


def _time_of(text: str) -> tuple[str, datetime] | None:
    """The step that a time is written for, and the time; ``None``: it is none."""
    for unit, form in _FORMS.items():
        try:
            at = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        if at.strftime(form) == text:
            return unit, at
    return None


def _times(first: str, last: str, every: str) -> Iterator[str]:
    known = []
    for field, text in (("first", first), ("last", last)):
        if (time := _time_of(text)) is None:
            raise InvalidArgument(
                f"{text[:50]!r} is neither a month, a day nor an hour",
                hint="write it as 2024-01, 2024-01-31 or 2024-01-31T05; numbers need a number as the step",
                details={"field": field},
            )
        known.append(time)
    (unit, at), (last_unit, end) = known
    every, units = every or unit, list(_FORMS)
    if every not in units:
        raise InvalidArgument(
            f"{every[:50]!r} is not a step",
            hint=f"choose {', '.join(units)} or a number",
            details={"field": "every"},
        )
    if max(units.index(unit), units.index(last_unit)) > units.index(every):
        raise InvalidArgument(
            f"{first} to {last} are not written as {every}s",
            hint=f"write them as {datetime.now(UTC).strftime(_FORMS[every])}",
            details={"field": "every"},
        )
    end = _next(end, last_unit)
    while at < end:
        yield at.strftime(_FORMS[every])
        at = _next(at, every)


def _next(at: datetime, unit: str) -> datetime:
    if unit == "month":
        return (at.replace(day=1) + timedelta(days=31)).replace(day=1)
    return at + (timedelta(days=1) if unit == "day" else timedelta(hours=1))


def _numbers(first: str, last: str, every: str) -> Iterator[str]:
    digits = len(first)
    if not all(map(_NUMBER.fullmatch, (first, last))) or digits != len(last) or not int(every):
        raise InvalidArgument(
            f"{first[:50]!r} and {last[:50]!r} are not numbers of equally many digits, or the step is 0",
            hint="write 001 and 120, say: batches are ordered byte by byte",
            details={"field": "last"},
        )
    for number in range(int(first), int(last) + 1, int(every)):
        yield f"{number:0{digits}d}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Backfill:
    """How far the batches of a backfill are, from the records of the table's backlog."""

    table: str
    first: str
    last: str
    batches: int
    """How many there are."""
    queued: int = 0
    """How many of them this call has queued."""
    waiting: int = 0
    running: int = 0
    applied: int = 0
    skipped: int = 0
    rows: int | None = None
    """What the operations of the applied ones have added; ``None``: unknown of some of them."""
    forgotten: int = 0
    """Those that the table does not remember by name any more."""
    absent: int = 0
    """Those that are not queued, or were taken out."""
    operation: str = ""
    """What applies some of them at present."""
    gate: str = "open"
    blocked: Block | None = None
    """Why the table waits for a decision before these batches go on."""

    @property
    def done(self) -> bool:
        """Whether none of them waits, or is being applied."""
        return not self.waiting and not self.running

    def raise_for_outcome(self) -> Self:
        """Return this.

        Raises
        ------
        OperationFailed
            The table waits for a decision. ``details["cause"]`` is the code of the error.
        Cancelled
            Some batches were taken out before they were applied.
        """
        if (block := self.blocked) is not None:
            raise OperationFailed(
                f"table {self.table!r} is blocked by batch {block.batch!r}: "
                f"{block.error.code}: {block.error.message}",
                hint="remove the cause, and run the backfill again with --retry-failed; or decide: "
                f"distop backlog retry|skip {self.table} {block.batch}",
                details={"table": self.table, "batch": block.batch, "cause": block.error.code},
            )
        if self.done and self.absent:
            raise Cancelled(
                f"{self.absent:,} batches of table {self.table!r} were taken out before they were applied",
                details={"table": self.table},
            )
        return self
