"""Executes a commit sequence: verify, execute, verify; stage after stage, with bounded parallelism.

Nothing is remembered between two executions. Verification finds what is done, so any host can take over after
any crash, and executing a sequence twice has the same result as once (C3, C4, C13).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec

from distop import errors
from distop.commit import contract
from distop.metastore.crashpoints import reached
from distop.metastore.records.operation import CommitSequence, StepRecord

log = logging.getLogger(__name__)

WORKERS = 16
"""Steps executed concurrently: they mostly wait for storage."""

MAX_DESCRIBED = 300
"""Characters of a step's argument shown in an error."""


class StepFailed(errors.DistopError):
    """A commit step failed."""

    code = "STEP_FAILED"
    kind = errors.Kind.PRECONDITION

    index: int = -1
    """The number of the step in the sequence, from 0."""
    record: StepRecord = StepRecord(step="")
    cause: Exception | None = None
    """The error that it raised."""

    @classmethod
    def of(cls, index: int, record: StepRecord, cause: Exception) -> StepFailed:
        """The failure of one step."""
        known = errors.as_distop(cause)
        code = known.code
        failed = cls(
            f"commit step {index} ({describe(record)}) failed: {code}: {known.message}",
            details={"step": record.step, "index": str(index), "cause": code},
        )
        failed.index, failed.record, failed.cause = index, record, cause
        failed.__cause__ = cause
        return failed


def describe(record: StepRecord) -> str:
    """A step in one line, for people."""
    return f"{record.step} {errors.shortened(msgspec.json.encode(record.argument).decode(), MAX_DESCRIBED)}"


@dataclass(frozen=True, kw_only=True)
class Undone:
    """The result of undoing."""

    undone: int
    """Steps that were undone; those never executed, or undone before, do not count."""
    left: list[int]
    """Indexes of the steps that could not be undone, in order: a step that raises, an unknown one, and one of
    a kind that cannot be undone."""


def execute(
    sequence: CommitSequence,
    context: contract.StepContext,
    *,
    check: Callable[[], None],
    workers: int = WORKERS,
    skip: Collection[int] = (),
    only: Collection[int] | None = None,
    registry: contract.StepRegistry | None = None,
    now: Callable[[], float] = time.time,
    took: list[contract.StepTime] | None = None,
) -> dict[int, float]:
    """Make sure that every step of a sequence is done. Blocking.

    Returns the indexes of the steps that were executed here, each with the time when it was done, in seconds
    since the Unix epoch; the others had been done before, or are skipped.

    Steps of a stage run concurrently; a stage begins when all earlier stages are done. After a failure no
    further step begins, and the call waits for the running ones.

    Parameters
    ----------
    check:
        Called before every step and again before it acts; raises when this process may not act any more.
    workers:
        Steps executed at a time.
    skip:
        Indexes of steps that an operator decided to skip.
    only:
        Indexes of the steps of this call; ``None``: all.
    took:
        Gets the time that each step took, also if it was found done.

    Raises
    ------
    StepFailed
        Names the step; a permanent failure takes precedence over a transient one.
    LeadershipLost, LeaseLost
        Raised by ``check``; says nothing about the steps.
    CorruptRecord
        The sequence belongs to another operation.
    PreconditionFailed
        ``skip`` names a step that does not exist, or may not be skipped.
    """
    registry = registry or contract.default_registry()
    _check_owner(sequence, context)
    for index in skip:
        check_skippable(sequence, index, registry)
    context = replace(context, check=check)

    done: dict[int, float] = {}
    found_done = 0

    def execute_one(index: int, record: StepRecord) -> bool:
        began = time.time()
        try:
            return executed(index, record)
        finally:
            if took is not None:
                took.append(contract.StepTime(record.step, began, time.time()))

    def executed(index: int, record: StepRecord) -> bool:
        check()
        step = registry.load_external(record)
        if step.verify(context) is contract.StepState.DONE:
            return False
        check()
        reached("step.before")
        step.execute(context)
        reached("step.middle")
        if not step.looks_itself and step.verify(context) is contract.StepState.NOT_DONE:
            raise RuntimeError("it was executed, but is not done")
        reached("step.after")
        done[index] = now()
        return True

    for stage in sequence.stages():
        wanted = [
            (index, record)
            for index, record in stage.items()
            if index not in skip and (only is None or index in only)
        ]
        acted = _run(execute_one, wanted, workers)
        found_done += len(acted) - sum(acted)
    fields = {
        "operation": sequence.operation,
        "executed": len(done),
        "found_done": found_done,
        "skipped": len(skip),
    }
    log.info("commit_steps_executed", extra=fields)
    return done


def undo(
    sequence: CommitSequence,
    context: contract.StepContext,
    *,
    check: Callable[[], None],
    workers: int = WORKERS,
    registry: contract.StepRegistry | None = None,
) -> Undone:
    """Undo the executed steps of a sequence, the last stage first. Blocking.

    Raises as :func:`execute`, except :class:`StepFailed`.
    """
    registry = registry or contract.default_registry()
    _check_owner(sequence, context)
    context = replace(context, check=check)

    def undo_one(index: int, record: StepRecord) -> bool:
        check()
        try:
            step = registry.load_external(record)
            executed = _was_executed(step, context)
            reached("undo.before")
            if not step.undo(context):
                left.append(index)
            reached("undo.after")
            return executed and index not in left
        except (errors.LeadershipLost, errors.LeaseLost):
            raise
        except Exception as error:
            fields = {"operation": sequence.operation, "step": record.step, "index": index}
            log.warning("commit_step_not_undone", extra={**fields, "error": str(error)})
            left.append(index)
            return False

    left: list[int] = []
    undone = sum(sum(_run(undo_one, list(stage.items()), workers)) for stage in reversed(sequence.stages()))
    return Undone(undone=undone, left=sorted(left))


def _was_executed(step: contract.ExternalStep, context: contract.StepContext) -> bool:
    """Whether a step has been executed, as far as it can be verified."""
    try:
        return step.verify(context) is not contract.StepState.NOT_DONE
    except (errors.LeadershipLost, errors.LeaseLost):
        raise
    except Exception:
        return True


def _check_owner(sequence: CommitSequence, context: contract.StepContext) -> None:
    arg = context.arg
    if (sequence.operation, sequence.uuid) != (str(arg.id), arg.uuid):
        raise errors.CorruptRecord(
            f"these commit steps are of {sequence.operation} ({sequence.uuid}), not of {arg.id} ({arg.uuid})"
        )


def is_skippable(record: StepRecord, registry: contract.StepRegistry | None = None) -> bool:
    """Whether an operator may skip this step. An unknown one may not be skipped."""
    try:
        kind = (registry or contract.default_registry()).kind(record.step)
    except errors.UnknownCommitStep:
        return False
    return bool(getattr(kind, "skippable", False))


def check_skippable(
    sequence: CommitSequence, index: int, registry: contract.StepRegistry | None = None
) -> None:
    """Raise :class:`~distop.errors.PreconditionFailed` unless an operator may skip this step."""
    if not 0 <= index < len(sequence):
        raise errors.PreconditionFailed(f"{sequence.operation} has no commit step {index}")
    record = sequence.steps[index]
    if not is_skippable(record, registry):
        raise errors.PreconditionFailed(
            f"commit step {index} of {sequence.operation} ({describe(record)}) cannot be skipped: "
            "rows would be lost"
        )


def _run(
    execute: Callable[[int, StepRecord], bool], numbered: Sequence[tuple[int, StepRecord]], workers: int
) -> list[bool]:
    """The results of ``execute`` for each step, in order. At most ``workers`` run at a time, and none begins
    after a failure."""
    waiting: Iterator[tuple[int, tuple[int, StepRecord]]] = enumerate(numbered)
    answers: dict[int, bool] = {}
    failures: list[tuple[int, StepRecord, Exception]] = []
    lock, stop = threading.Lock(), threading.Event()

    def work() -> None:
        # Each worker takes the next step itself: 10,000 steps do not need 10,000 futures.
        while not stop.is_set():
            with lock:
                taken = next(waiting, None)
            if taken is None:
                return
            position, (index, record) = taken
            try:
                answers[position] = execute(index, record)
            except Exception as error:
                failures.append((index, record, error))
                stop.set()

    workers = max(1, min(workers, len(numbered)))
    with ThreadPoolExecutor(workers, thread_name_prefix="step") as pool:
        for running in [pool.submit(work) for _ in range(workers)]:
            running.result()
    if failures:
        raise _worst(failures)
    return [answers[position] for position in sorted(answers)]


def _worst(failures: list[tuple[int, StepRecord, Exception]]) -> Exception:
    """The error to raise: a lost leadership first, since it says nothing about steps; then a permanent
    failure."""
    for _, _, error in failures:
        if isinstance(error, errors.LeadershipLost | errors.LeaseLost):
            return error
    ordered = sorted(
        failures, key=lambda failure: (not isinstance(failure[2], errors.PermanentStepError), failure[0])
    )
    return StepFailed.of(*ordered[0])
