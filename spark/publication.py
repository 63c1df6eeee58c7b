"""Publishes a write once, or abandons it: the calls of Spark's driver to a coordinator.

Everything depends on runs. The start of a run happens once, however often and by however many
processes it is sent; so the first answer to one is a fence for all that use it:

- Two attempts at the same thing (a batch of a stream before and after its driver was killed) have the same
    run. The first one that starts wins; the other finds it, and abandons its own files.
- Abandoning also starts an operation, one that publishes nothing, as the run that publishing would
    have used. From then on no process can publish, not even one that was suspended and wakes up late; so its
    files may be removed. If publishing came first, nothing is abandoned and no file is touched.

An operation that ended without publishing leaves its run used. The next attempt uses the name with
``.2`` appended, and so on: all attempts follow the same sequence and stop at the first that was published. So
it is with a batch of a stream that was rolled back; another write is refused then.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tenacity

from distop import errors
from distop.client import Client, Operation, OperationState
from distop.lake.iceberg.takeover import TYPE, PreparedTask, write_list
from distop.metastore.crashpoints import reached
from distop.spark.operation import GAVE_UP
from distop.spark.target import WriteTarget

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
MAX_TURNS = 1000
"""Attempts at one thing that may end without being published."""
GIVE_UP_S = 20.0
"""Longest time for abandoning; otherwise the files are found by their age."""


@dataclass(frozen=True, kw_only=True)
class Publication:
    """What is published, and how."""

    target: WriteTarget
    run: str
    """The run of all attempts at the same thing; for a write that is not repeated: its name."""
    mode: str = "append"
    on_conflict: str | None = None
    source: str = ""
    """Of a stream: the watermark source that counts its batches."""
    batch: str = ""

    def argument(self, files: str) -> dict[str, Any]:
        """Argument of the operation that publishes a list of files."""
        argument: dict[str, Any] = {
            "write": self.target.write,
            "mode": self.mode,
            "layout": self.target.layout_json,
            "base_snapshot": self.target.base_snapshot,
            "files": files,
        }
        if self.on_conflict is not None:
            argument["on_conflict"] = self.on_conflict
        if self.source:
            argument |= {"source": self.source, "batch": self.batch}
        return argument


@dataclass(frozen=True, kw_only=True)
class WriteOutcome:
    """The result of publishing."""

    is_own: bool
    """``False``: an earlier attempt had already published the same, and these files are not needed."""
    operation: Operation | None = None
    """The operation that published; ``None`` if only the watermark remembers it."""
    facts: dict[str, Any] = field(default_factory=dict)


class Deadline:
    """Deadline for retries of transient errors."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """How many seconds are left."""
        return max(self._end - time.monotonic(), 0.0)

    def retry_until_known(self, call: Callable[[], T]) -> T:
        """Call until it succeeds or raises a permanent error, or the time is over."""

        def is_transient(error: BaseException) -> bool:
            if not isinstance(error, errors.DistopError) or not error.retryable or not self.left:
                return False
            log.info("write_waits", extra={"code": error.code, "error": error.message})
            return True

        pause = tenacity.wait_random_exponential(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_transient),
            wait=lambda state: min(pause(state), self.left),
            reraise=True,
        )(call)


def publish(
    client: Client, publication: Publication, tasks: Sequence[PreparedTask], deadline: Deadline
) -> WriteOutcome:
    """Publish the output of the tasks that count, unless that was done before.

    Idempotent, from any process, with the same run: the first publication stays the answer.

    Raises
    ------
    WriteGivenUp
        This write was abandoned.
    RolledBack
        Another attempt was published, and rolled back since; not raised for a batch of a stream.
    OperationFailed, Cancelled
        It was not published; ``details["cause"]`` says why. Its files are gone.
    DistopError
        An error of the coordinator; or, once the time is over, the last transient one. If it is
        ``retryable``, it is unknown whether the write was published; repeating it with the same run is
        safe.
    """
    target = publication.target
    # A unique name: an operation must never find another list under the name that it has recorded.
    name = f"list-{random.getrandbits(64):016x}.json"
    reached("publish.before")
    write_list(target.io(), target.path("", name, "metadata"), tasks)
    reached("publish.middle")
    argument = publication.argument(name)
    try:
        for run in _turns(publication.run):
            try:
                operation, first = _start(client, target, run, argument, deadline)
            except errors.RolledBack:
                if not publication.source:
                    raise
                continue
            reached("publish.after")
            ended = _end_of(client, operation, deadline)
            if first or ended.object == target.write:
                if ended.facts.get(GAVE_UP):
                    raise errors.WriteGivenUp(
                        f"write {target.write} was given up", details={"write": target.write}
                    )
                ended.raise_for_outcome()
                return WriteOutcome(is_own=True, operation=ended, facts=ended.facts)
            if ended.state is OperationState.SUCCEEDED and not ended.facts.get(GAVE_UP):
                give_up(client, publication, Deadline(GIVE_UP_S), run=target.write)
                return WriteOutcome(is_own=False, operation=ended, facts=ended.facts)
    except errors.AlreadyIngested as error:
        # The request is forgotten, so this write may be the published one: its files stay. The age of an
        # unpublished write's files identifies them.
        return WriteOutcome(is_own=False, facts={"watermark": error.details.get("watermark", "")})
    raise errors.Exhausted(
        f"{MAX_TURNS} attempts at {publication.run!r} ended without being published",
        hint="find out why they failed",
    )


def give_up(client: Client, publication: Publication, deadline: Deadline, *, run: str | None = None) -> bool:
    """Make sure that a write is never published, and remove its files; return whether that is certain.

    Does nothing to a write that is published, or may be. Never raises: remaining files are found by their
    age.

    Parameters
    ----------
    run:
        The only run as which the write may still be published, if that is known.
    """
    target = publication.target
    argument: dict[str, Any] = {"write": target.write, "give_up": True, "layout": target.layout_json}
    if run is None and publication.source:
        argument |= {"source": publication.source, "batch": publication.batch}
    try:
        for turn in _turns(run or publication.run):
            reached("give_up.before")
            try:
                operation, first = _start(client, target, turn, argument, deadline)
            except errors.RolledBack:
                continue  # nobody publishes with this one any more
            reached("give_up.after")
            if first:
                return True
            if operation.object == target.write:
                return bool(operation.facts.get(GAVE_UP))
            ended = _end_of(client, operation, deadline)
            if ended.state is OperationState.SUCCEEDED and not ended.facts.get(GAVE_UP):
                # Another attempt was published: all that follow this sequence stop there.
                return run is None and give_up(client, publication, deadline, run=target.write)
    except errors.DistopError as error:
        log.warning("write_not_given_up", extra={"write": target.write, "error": str(error)})
    return False


def _turns(run: str) -> list[str]:
    return [run, *(f"{run}.{turn}" for turn in range(2, MAX_TURNS))]


def _start(
    client: Client, target: WriteTarget, run: str, argument: dict[str, Any], deadline: Deadline
) -> tuple[Operation, bool]:
    """The operation of a run, and whether this very request made it.

    Raises :class:`~distop.errors.RolledBack` if it was that of another write, whose rows are gone.
    """

    def start() -> tuple[Operation, bool]:
        try:
            started = client.start(
                target.table,
                TYPE,
                argument,
                object=target.write,
                run=run,
                once=True,
                timeout_s=max(1.0, min(deadline.left, 30.0)),
            )
            return started.started, True
        except (errors.RunReused, errors.RolledBack) as error:
            other = client.operation(str(error.details["operation"])).get()
            # What this write itself has published stays its answer: its files belong to a snapshot.
            if other.type != TYPE or (isinstance(error, errors.RolledBack) and other.object != target.write):
                raise
            return other, False

    return deadline.retry_until_known(start)


def _end_of(client: Client, operation: Operation, deadline: Deadline) -> Operation:
    """An operation after its end."""
    if operation.done:
        return operation

    def wait() -> Operation:
        return client.operation(operation.name).wait(timeout_s=max(1.0, deadline.left))

    try:
        return deadline.retry_until_known(wait)
    except errors.DeadlineExceeded as error:
        raise errors.DeadlineExceeded(
            f"whether {operation.name} publishes the write is still unknown",
            hint=f"see distop table why {operation.table}; writing again with the same run is safe",
            details=error.details,
        ) from error
