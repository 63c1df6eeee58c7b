"""Records of an operation in etcd: its request (options, effect), jobs, commit sequence, end and history."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar, Literal

import msgspec

from distop.errors import InvalidArgument
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import Record
from distop.process.tracing import Trace

MAX_JOB_ATTEMPTS = 100
MAX_JOB_BACKOFF_S = 600.0
"""Longest back-off before the second attempt at a job: it occupies a slot in Spark meanwhile."""

MAX_FOLLOW_UPS = 8
"""How deep follow-ups may be nested."""

FIRST_PAUSE_S = 0.05
MAX_RETRY_FOR_S = 10 * 365 * 86_400
MAX_RETRY_PAUSE_S = 3600.0

RUNNING = b"running"
COMMITTING = b"committing"
ABORTING = b"aborting"
"""States of an operation while it has keys; plain text, since transactions compare them."""

MAX_JOB_RECORD_BYTES = 1024
"""Limit of a job's record; larger facts belong in files."""

MAX_CHECKPOINT_BYTES = 1024
"""Limit of a checkpoint; larger progress belongs in files."""

RETRY, SKIP, ABORT = "retry", "skip", "abort"
"""How a parked operation can be resolved."""

SUCCESS = "success"
"""Outcomes after which a repeated request starts nothing."""

# Sorted keys make equal steps equal bytes, whichever process made them.
_encoder = msgspec.json.Encoder(order="deterministic")


class Effect(StrEnum):
    """The effect of an operation on its table. Recorded when it starts."""

    READS = "reads"
    """Reads one snapshot of the table and does not change the table. Files staged by its jobs are swept after
    the end."""
    APPENDS = "appends"
    """Adds rows to the table's content at commit time."""
    WRITES = "writes"
    """Adds rows or overwrites the table's content, as its argument says."""
    REWRITES = "rewrites"
    """Replaces files by others with the same rows. Files that another operation removed from the table
    meanwhile stay removed."""
    DELETES = "deletes"
    """Deletes rows of one snapshot from the table, by replacing their files. It fails if another operation
    has removed one of these files meanwhile."""
    CLEANS = "cleans"
    """Removes snapshots, or files that no snapshot refers to. It adds no file."""
    REPLACES = "replaces"
    """May change the table in any way, and so runs alone."""

    @property
    def keeps_files(self) -> bool:
        """Whether files of successful jobs become part of the table."""
        return self not in (Effect.READS, Effect.CLEANS)


_TOGETHER: dict[Effect, frozenset[Effect]] = {
    # Its snapshot must not expire meanwhile, so nothing is cleaned concurrently.
    Effect.READS: frozenset({Effect.READS, Effect.APPENDS, Effect.WRITES, Effect.REWRITES}),
    # Cleaning removes no file that a later commit can refer to.
    Effect.APPENDS: frozenset({Effect.APPENDS, Effect.WRITES, Effect.REWRITES, Effect.CLEANS}),
    # Two of these may both overwrite, so one waits for the other.
    Effect.WRITES: frozenset({Effect.REWRITES, Effect.CLEANS}),
    Effect.REWRITES: frozenset({Effect.CLEANS}),
    # Its snapshot must not expire. It and other replacements of the same files would invalidate each other's
    # work; overwriting does so as well, but then the result is well defined.
    Effect.DELETES: frozenset({Effect.READS, Effect.APPENDS, Effect.WRITES}),
}
"""The effects that may run at the same time as each one; each pair stands here once."""


def may_run_together(effect: Effect, other: Effect) -> bool:
    """Whether neither can invalidate what the other reads or has written, in whatever order they start and
    end."""
    return other in _TOGETHER.get(effect, ()) or effect in _TOGETHER.get(other, ())


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How the jobs of an operation, and then its completion, are tried again while they fail. Pauses between
    two attempts double; those of a completion begin with 0.1 s."""

    attempts: int | None = 3
    """Attempts at one job, 1 to 100, before it has failed. ``None``: no limit, so it cannot fail. Otherwise
    one that raises ``JobFailed`` or ``InvalidArgument`` has failed at once."""
    backoff_s: float = 0.1
    """Seconds before the second attempt at a job, at most 600."""
    for_s: float = 1800.0
    """Seconds from the first failure of a completion; the last attempt is the first one after that. 0: there
    is but one."""
    longest_pause_s: float = 30.0
    """Longest pause in seconds, 1 to 3600; a longer ``backoff_s`` stays as it is."""

    @property
    def most_attempts(self) -> float:
        """Attempts at one job; infinity if there is no limit."""
        return math.inf if self.attempts is None else self.attempts

    def job_pause_s(self, attempts: int) -> float:
        """Seconds from the last of so many attempts at a job to the next one."""
        longest = max(self.longest_pause_s, self.backoff_s)
        return min(longest, self.backoff_s * 2.0 ** min(attempts - 1, 30))

    def pause_s(self, failures: int) -> float:
        """Seconds from the last of so many failures of a completion to the next attempt."""
        return min(FIRST_PAUSE_S * 2.0 ** min(failures, 20), self.longest_pause_s)

    def __post_init__(self) -> None:
        if self.attempts is not None and not 1 <= self.attempts <= MAX_JOB_ATTEMPTS:
            raise InvalidArgument(
                f"--attempts must lie between 1 and {MAX_JOB_ATTEMPTS}",
                details={"field": "options.max_job_attempts"},
            )
        if not 0 < self.backoff_s <= MAX_JOB_BACKOFF_S:
            raise InvalidArgument(
                f"--backoff must be positive, and at most {MAX_JOB_BACKOFF_S:g} s",
                details={"field": "options.job_backoff_s"},
            )
        if not 0 <= self.for_s <= MAX_RETRY_FOR_S:
            raise InvalidArgument(
                f"--retry-for must lie between 0 and {MAX_RETRY_FOR_S:,} s",
                details={"field": "options.retry_for_s"},
            )
        if not 1 <= self.longest_pause_s <= MAX_RETRY_PAUSE_S:
            raise InvalidArgument(f"longest_pause_s must lie between 1 and {MAX_RETRY_PAUSE_S:g} seconds")


class OperationOptions(
    msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """How to run an operation."""

    deadline_s: float | None = None
    """Seconds from the start after which it is aborted."""
    max_job_attempts: int | None = None
    """As :attr:`Retry.attempts`, unless its type sets no limit; ``None``: as the type says."""
    job_backoff_s: float | None = None
    """As :attr:`Retry.backoff_s`; ``None``: as the type says."""
    attempt_timeout_s: float | None = None
    """Seconds after which an attempt is cancelled, and counts as one that failed."""
    max_failed_partitions: int = 0
    """How many jobs may fail without failing the operation, which then publishes the results of the others;
    -1: any number. One must succeed."""
    retry_for_s: float | None = None
    """As :attr:`Retry.for_s`; ``None``: as the type says."""

    def retry(self, of_type: Retry) -> Retry:
        """The policy of an operation whose type has this one."""
        given: dict[str, Any] = {
            "attempts": self.max_job_attempts if of_type.attempts is not None else None,
            "backoff_s": self.job_backoff_s,
            "for_s": self.retry_for_s,
        }
        return replace(of_type, **{name: value for name, value in given.items() if value is not None})

    def too_many_failed(self, failed: int, total: int) -> bool:
        """Whether this many failed jobs out of ``total`` make the operation fail."""
        allowed = total if self.max_failed_partitions < 0 else self.max_failed_partitions
        return failed > allowed or 0 < total <= failed

    def __post_init__(self) -> None:
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise InvalidArgument("--deadline must be positive", details={"field": "options.deadline_s"})
        if self.max_failed_partitions < -1:
            raise InvalidArgument(
                "--max-failed must be a number of jobs, or any",
                details={"field": "options.max_failed_partitions"},
            )
        if self.attempt_timeout_s is not None and not 0 < self.attempt_timeout_s < math.inf:
            raise InvalidArgument(
                "--attempt-timeout must be positive", details={"field": "options.attempt_timeout_s"}
            )
        self.retry(Retry())


class FollowUpArg(
    msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """An operation that the finish of another one starts, on the same table, in the same transaction."""

    type: str
    object: str = ""
    argument: dict[str, Any] = {}
    """The argument as the caller sent it: it is planned on the result of the finish."""
    partitions: list[str] = []
    options: OperationOptions = msgspec.field(default_factory=OperationOptions)
    then: FollowUpArg | None = None


class WatermarkMove(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """One move of a watermark: it must still be at ``before`` when the operation finishes."""

    before: str | None = None
    after: str
    jobs: list[tuple[int, int]] | None = None
    """The jobs of this move, as half-open ranges (from, to) of their positions among the operation's jobs; it
    happens only if all of them succeed. ``None``: all jobs of the operation."""
    neighbours: Literal["", "nothing", "older"] = msgspec.field(default="", name="beside")
    """Of a source that is a place: which other watermarks may exist around and below it at the finish. Empty:
    any. ``nothing``: none. ``older``: any below it, and around it those older than ``after``."""


class RequestNote(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """What is remembered of the request that started an operation, in addition to its id."""

    digest: str = ""
    """Digest of its body."""
    call: str = ""
    """Id of its call."""
    forget_at: float = 0.0
    """Until when its id is remembered."""
    earlier: str = ""
    """The operation of this request that had succeeded last: its rows are replaced, unless they are gone."""


class OperationArg(Record, kw_only=True):
    """``<root>.arg``: the accepted request. Constant from the start of the operation to its end.

    Layout 2 is for dynamic plans: an older version would take them for operations without jobs. Layout 3 is
    for plans with parts that are newer than release 0.2.0, which would ignore them.
    """

    LAYOUT: ClassVar[int] = 3
    table: str
    type: str
    instance: int
    object: str = ""
    uuid: str = ""
    """Random; part of the names of staged files, so that no two operations ever share a path."""
    argument: dict[str, Any] = {}
    """The type's ``plan`` for the caller's argument."""
    partition_count: int = 0
    """Number of jobs."""
    partitions: list[str] | None = None
    """Names of the jobs; ``None`` means "0" to "<partition_count - 1>"."""
    dynamic: bool = False
    """The jobs are not known in advance: see :class:`RunRecord`."""
    watermarks: dict[str, dict[str, WatermarkMove]] = {}
    """source -> partition -> move, applied in the transaction that finishes the operation."""
    options: OperationOptions = msgspec.field(default_factory=OperationOptions)
    run: str = msgspec.field(default="", name="requestId")
    """The name that the caller has given the request, or one made for the call."""
    request_note: RequestNote = msgspec.field(default_factory=RequestNote)
    retry_of: str = ""
    """The operation that this request had started before, and that ended without success."""
    started_at: float = 0.0
    started_by: str = ""
    claimed_by: str = ""
    """The name that the caller states, where ``started_by`` is a verified name."""
    address: str = ""
    """The address of the caller."""
    location: str = ""
    """The table's location at the start."""
    storage: dict[str, Any] = {}
    """The table's storage options at the start, for fsspec."""
    exclusive: bool = False
    """Jobs must be claimed before they run."""
    stages_files: bool = False
    """Jobs leave files under the operation's staging folders, or something elsewhere, which a collector
    sweeps after the end."""
    builds_index: bool = False
    """These files belong to the index that is the operation's object."""
    effect: Effect = Effect.REPLACES
    """The effect of the operation on the table."""
    batches: list[str] = []
    """The batches of the table's backlog that it applies; finishing it removes them."""
    unordered: str = ""
    """The unordered batch that it applies."""
    schedule: str = ""
    """The schedule of the table that has started it."""
    series: str = ""
    """The series that it continues; see :class:`SeriesNote`."""
    distop: str = ""
    """The version that started it."""
    then: FollowUpArg | None = None
    """What its finish starts, if it succeeds."""
    follows: str = ""
    """The operation whose finish has started it."""
    traceparent: str = ""
    """The span of the caller that has started it, as W3C Trace Context writes it."""
    asked: str = ""
    """The caller's argument, shortened, as JSON in the caller's order: for people."""

    @property
    def id(self) -> OperationId:
        return OperationId(self.table, self.type, self.instance, self.object)

    @property
    def applies(self) -> list[str]:
        """The batches that it applies, ordered or not."""
        return [*self.batches, self.unordered] if self.unordered else self.batches

    @property
    def trace(self) -> Trace:
        """The trace of the operation, the same in every process."""
        return Trace(f"{self.id}/{self.uuid}", self.traceparent)

    def partition_names(self) -> list[str]:
        if self.partitions is not None:
            return self.partitions
        return [str(index) for index in range(self.partition_count)]


class StepRecord(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """One commit step an operation asks for: the name of a registered step type, and its argument."""

    step: str
    argument: dict[str, Any] = {}
    stage: int = 0
    """Of an external step: steps of a stage run concurrently, after all steps of lower stages."""


class OperationEvent(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", frozen=True):
    """One thing that has happened to an operation."""

    at: float
    """Seconds since the Unix epoch, by the clock of the process that did it."""
    what: str
    by: str = ""
    about: str = ""


class EventsRecord(Record, kw_only=True):
    """``<root>.events``: what has happened to an operation and no other key says any more; written by its
    leader for people. No decision uses it."""

    events: list[OperationEvent] = []
    left_out: int = 0
    """How many in the middle are left out."""


class QueuedRecord(Record, kw_only=True):
    """``<root>.queued``: since when, and why, an operation that had an executor waits for another one."""

    why: str
    """``lost``: that has ended without releasing it; ``given back``."""
    at: float = 0.0


class RunnerRecord(Record, kw_only=True):
    """``<root>.runner``: which executor runs the operation; the key's create revision is the run token."""

    member: str
    started_at: float = 0.0


class ClaimRecord(Record, kw_only=True):
    """``<root>.<partition>.claim``: the attempt that owns an exclusive job."""

    attempt: str
    member: str = ""


class JobRecord(Record, kw_only=True):
    """``<root>.<partition>.state``: the one result of a job. Under 1 KiB."""

    state: str
    """``success`` or ``failed``."""
    attempt: str = ""
    """The attempt of the mark; a repeated mark is recognised by it."""
    result: dict[str, Any] = {}
    """The job's result: counts, and the location of its manifest."""
    error: str = ""
    """Code and message of a failure, cut to fit."""
    at: float = 0.0
    run: int = 0
    """Of a dynamic plan: the token of its run."""


class RunRecord(Record, kw_only=True):
    """``<root>.run``: of a dynamic plan, the run whose results count. Those of any other run do not."""

    token: int
    """The token of the run, as in the results of its jobs."""
    count: int | None = None
    """How many results it has; ``None``: not all exist yet. Once set it never changes."""
    tasks: int = 0
    """How many tasks Spark is to run, as far as is known. For people only."""
    done: int = 0
    """How many of them have ended. For people only."""
    begun: int = 1
    """How many runs have begun, this one included, except those whose process released them in order."""


class JobCountsRecord(Record, kw_only=True):
    """``<root>.jobCounts``: how many jobs are done, so that readers need not count very many results."""

    succeeded: int = 0
    failed: int = 0
    run: int = 0
    """Of a dynamic plan: the token of the run with these results."""
    last_job_at: float = 0.0
    """When the last job finished, according to its executor (seconds since the epoch)."""
    revision: int = 0
    """All results up to this revision are counted."""


class CancelRecord(Record, kw_only=True):
    """``<root>.cancel``: the cancellation of the operation was requested."""

    by: str = ""
    reason: str = ""
    at: float = 0.0


class PauseRecord(Record, kw_only=True):
    """``<root>.pause`` and ``<table>.pause``: the operation, or the table, is paused."""

    by: str = ""
    reason: str = ""
    at: float = 0.0


class ErrorRecord(Record, kw_only=True):
    """``<root>.error``: why an operation aborts."""

    code: str
    message: str
    at: float = 0.0
    facts: dict[str, Any] = {}
    """Further facts for the history; some KiB at most."""


class CompletionRecord(Record, kw_only=True):
    """``<root>.completion``: how completing an operation has failed so far, or what it waits for. Absent: it
    has not failed, and is not slow."""

    attempts: int = 0
    """Failed attempts since the start or the last decision; counted across leaders."""
    step: str = ""
    """The commit step that failed last; empty if something else failed."""
    index: int | None = None
    """The position of that step in the commit sequence."""
    skippable: bool = False
    """Whether that step may be skipped."""
    error_code: str = ""
    error: str = ""
    at: float = 0.0
    since: float = 0.0
    """The first of these failures, in seconds since the Unix epoch, as the following times."""
    next_at: float = 0.0
    """The next attempt, unless it is parked; that of a new leader is earlier."""
    until: float = 0.0
    """The last attempt is the first one that was to be made at or after this time."""
    parked: bool = False
    """No further attempt before a decision."""
    skipped: list[int] = []
    """Steps of the commit sequence that a user decided to skip."""
    running: str = ""
    """The slow call in progress, which may hang."""
    running_since: float = 0.0
    """When that was noticed, in seconds since the Unix epoch."""


class ResolveRecord(Record, kw_only=True):
    """``<root>.resolve``: a user's decision on an operation that is parked, or whose completion hangs, for
    its leader to act on."""

    action: str
    """``retry``, ``skip`` or ``abort``."""
    by: str = ""
    reason: str = ""
    at: float = 0.0


class RequestRecord(Record, kw_only=True):
    """``<table>.request.<run>``: the operation of a run, so that a repetition gets the same answer."""

    operation: str
    digest: str
    """Digest of the request's body; the same run with another body is an error."""
    call: str = ""
    """Id of its call: a repetition of that call gets this answer in any case."""
    at: float = 0.0
    forget_at: float = 0.0
    """Until when it is remembered."""
    outcome: str = ""
    """The operation's outcome, as in the history; empty: it has not ended."""
    earlier: str = ""
    """The operation of this request that had succeeded last before ``operation`` began."""

    @property
    def done_by(self) -> str:
        """The operation of this request that has succeeded last; empty: none."""
        return self.operation if self.outcome == SUCCESS else self.earlier


class ActiveRecord(Record, kw_only=True):
    """``_active.<operation>``: the index entry of an operation that still has keys. The same exists below
    ``_waiting.`` while it runs without an executor."""

    type: str


class SeriesRecord(Record, kw_only=True):
    """``<table>.series.<name>``: names the one history line of a series."""

    operation: str
    """The one that succeeded last."""


class SeriesEntry(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """An operation of a series, as the next one of the series counts it."""

    operation: str
    started_at: float = 0.0
    finished_at: float = 0.0
    rows: int = 0


class SeriesNote(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The summary of a series, in its last line."""

    name: str
    count: int = 0
    """Operations that have succeeded."""
    rows: int = 0
    since: float = 0.0
    """When the first of them was started."""
    last: list[SeriesEntry] = []
    """The last ones, this one included, the newest at the end."""
    lines: list[str] = []
    """Earlier ones whose lines still exist, since they were not collected yet."""


class HistoryRecord(Record, kw_only=True):
    """``<table>.history.<operation>``: the record of a finished operation."""

    outcome: str
    """``success``, ``failed`` or ``cancelled``."""
    uuid: str = ""
    run: str = msgspec.field(default="", name="requestId")
    started_at: float = 0.0
    started_by: str = ""
    finished_at: float = 0.0
    partition_count: int = 0
    succeeded: int = 0
    failed: int = 0
    error_code: str = ""
    error: str = ""
    facts: dict[str, Any] = {}
    """What its commit steps reported: snapshot id, rows, files."""
    argument: str = ""
    """Its argument for people: :attr:`OperationArg.asked`."""
    batches: list[str] = []
    """The batches that it was to apply: :attr:`OperationArg.applies`."""
    retry_of: str = ""
    """The operation that its request had started before, and that ended without success."""
    follows: str = ""
    """The operation whose finish has started it."""
    series: SeriesNote | None = None
    """Of the last operation of a series: the summary of all."""
    events: list[OperationEvent] = []
    """What has happened to it between its start and its end."""
    events_left_out: int = 0
    job_outcomes: str = ""
    """How its jobs have ended: :mod:`distop.coordinator.state.grid`. At most 1 KiB."""

    def count(self, fact: str) -> int | None:
        """A fact that counts something, such as rows; ``None`` if it is missing. Facts are whatever JSON an
        operation type reports, so it may be anything else: that counts nothing."""
        value = self.facts.get(fact)
        return value if type(value) is int and 0 <= value < 1 << 53 else None


@dataclass(frozen=True)
class CommitSequence:
    """The external steps of one operation: fixed before the first of them is executed (C1).

    Parameters
    ----------
    operation:
        Its name.
    uuid:
        Its uuid. A sequence with another uuid belongs to another operation.
    steps:
        Ordered by stage; the order within a stage has no meaning.

    Raises
    ------
    InvalidArgument
        Stages do not ascend, or a step is not valid JSON (such as a file name that is not Unicode).
    """

    operation: str
    uuid: str
    steps: tuple[StepRecord, ...]

    def __post_init__(self) -> None:
        stages = [step.stage for step in self.steps]
        if stages != sorted(stages) or (stages and stages[0] < 0):
            raise InvalidArgument(f"the commit steps of {self.operation} are not ordered by stage")
        _ = self.encoded

    @classmethod
    def of(cls, operation: str, uuid: str, steps: Iterable[StepRecord]) -> CommitSequence:
        """The sequence of steps in any order."""
        return cls(operation, uuid, tuple(sorted(steps, key=lambda step: step.stage)))

    @cached_property
    def encoded(self) -> tuple[bytes, ...]:
        """The steps, each as the JSON bytes of its record."""
        try:
            return tuple(_encoder.encode(step) for step in self.steps)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"a commit step of {self.operation} is not JSON: {error}") from error

    @cached_property
    def digest(self) -> str:
        """Equal for equal sequences of the same operation, and for no others."""
        digest = hashlib.sha256(_encoder.encode([self.operation, self.uuid, len(self.steps)]))
        for step in self.encoded:
            digest.update(b"\n" + step)
        return digest.hexdigest()

    def stages(self) -> list[Mapping[int, StepRecord]]:
        """The steps of each stage by their index, in the order of stages."""
        numbered = groupby(enumerate(self.steps), key=lambda pair: pair[1].stage)
        return [dict(group) for _, group in numbered]

    def __len__(self) -> int:
        return len(self.steps)
