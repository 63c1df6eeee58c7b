"""What the leader of a table does next about an operation, computed only from its present state. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from distop.coordinator.state.tracker import Tracked
from distop.errors import JobFailed
from distop.metastore.records.operation import ABORTING, COMMITTING, RUNNING, ResolveRecord


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before the operation's deadline or the next change."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Move ``.state`` from ``before`` to ``after``."""

    before: bytes
    after: bytes
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """Publish (committing) or clean up (aborting)."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Act on the decision about an operation that is parked, or hangs."""

    decision: ResolveRecord


@dataclass(frozen=True, slots=True)
class Collect:
    """It is over; remove what it left."""


Action: TypeAlias = Wait | Seal | Finish | Resolve | Collect


def decide(tracked: Tracked, *, deadline_passed: bool, paused: bool = False) -> Action:
    """What the leader should do about an operation, computed only from its present state.

    Parameters
    ----------
    paused:
        The operation or its table is paused. It is not published then; it can still fail, be cancelled, and
        pass its deadline, which keeps counting.
    """
    if not tracked.state:
        return Wait() if tracked.gone else Collect()
    if tracked.state == ABORTING:
        return Finish()
    if tracked.state not in (RUNNING, COMMITTING):
        return Wait()  # a newer version's state, which that version handles
    if tracked.cancel_requested:
        return Seal(tracked.state, ABORTING, "CANCELLED", tracked.cancel_text)
    if tracked.state == COMMITTING:
        if tracked.decision is not None:
            return Resolve(tracked.decision)
        return Wait() if tracked.completion.parked else Finish()
    failed = tracked.jobs.failed
    if tracked.arg.options.too_many_failed(failed, tracked.total):
        return Seal(RUNNING, ABORTING, JobFailed.code, _why_failed(tracked))
    if not tracked.counting and tracked.jobs.succeeded + failed >= tracked.total:
        if paused:
            return _too_late(tracked) if deadline_passed else Wait()
        # Also when the deadline has just passed: the work is done.
        return Seal(RUNNING, COMMITTING)
    return _too_late(tracked) if deadline_passed else Wait()


def _why_failed(tracked: Tracked) -> str:
    partition, error = next(iter(tracked.jobs.failures.items()), ("?", "?"))
    # Do not repeat the code of the operation's error.
    first = f"job {partition} failed: {error.removeprefix(f'{JobFailed.code}: ')}"
    allowed = tracked.arg.options.max_failed_partitions
    if not allowed:
        return first
    limit = "one must succeed" if allowed < 0 or allowed >= tracked.total else f"{allowed:,} may"
    return f"{tracked.jobs.failed:,} of {tracked.total:,} jobs failed, {limit}; {first}"


def _too_late(tracked: Tracked) -> Seal:
    limit = tracked.arg.options.deadline_s
    done = f"{tracked.done} of {'an unknown number of' if tracked.counting else tracked.total} jobs were done"
    return Seal(RUNNING, ABORTING, "DEADLINE_EXCEEDED", f"not finished within {limit:g} s: {done}")
