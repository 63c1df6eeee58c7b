"""Records of an operation in etcd: its request, its jobs, its end and its history."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from distop.metastore.records.effects import Effect
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.options import FollowUp, OperationOptions
from distop.metastore.records.record import Record

RUNNING = b"running"
COMMITTING = b"committing"
ABORTING = b"aborting"
"""States of an operation while it has keys; plain text, since transactions compare them."""

MAX_JOB_RECORD_BYTES = 1024
"""Limit of a job's record; larger facts belong in files."""

MAX_CHECKPOINT_BYTES = 1024
"""Limit of a checkpoint; larger progress belongs in files."""


class WatermarkMove(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """One move of a watermark: it must still be at ``before`` when the operation finishes."""

    before: str | None = None
    after: str
    jobs: list[tuple[int, int]] | None = None
    """The jobs of this move, as half-open ranges (from, to) of their positions among the operation's jobs; it
    happens only if all of them succeed. ``None``: all jobs of the operation."""
    beside: Literal["", "nothing", "older"] = ""
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
    request_id: str = ""
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
    nested_files: bool = False
    """These files may lie in folders below the staging folders."""
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
    then: FollowUp | None = None
    """What its finish starts, if it succeeds."""
    follows: str = ""
    """The operation whose finish has started it."""
    asked: str = ""
    """The caller's argument, shortened, as JSON in the caller's order: for people."""

    @property
    def id(self) -> OperationId:
        return OperationId(self.table, self.type, self.instance, self.object)

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


class Event(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", frozen=True):
    """One thing that has happened to an operation."""

    at: float
    """Seconds since the Unix epoch, by the clock of the process that did it."""
    what: str
    by: str = ""
    about: str = ""


class EventsRecord(Record, kw_only=True):
    """``<root>.events``: what has happened to an operation and no other key says any more; written by its
    leader for people. No decision uses it."""

    events: list[Event] = []
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
    """Its run token."""
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


RETRY, SKIP, ABORT = "retry", "skip", "abort"
"""How a parked operation can be resolved."""


class ResolveRecord(Record, kw_only=True):
    """``<root>.resolve``: a user's decision on an operation that is parked, or whose completion hangs, for
    its leader to act on."""

    action: str
    """``retry``, ``skip`` or ``abort``."""
    by: str = ""
    reason: str = ""
    at: float = 0.0


class RequestRecord(Record, kw_only=True):
    """``<table>.request.<id>``: the operation of a request id, so that a repetition gets the same answer."""

    operation: str
    digest: str
    """Digest of the request's body; the same id with another body is an error."""
    call: str = ""
    """Id of its call: a repetition of that call gets this answer in any case."""
    at: float = 0.0
    forget_at: float = 0.0
    """Until when it is remembered."""
    outcome: str = ""
    """The operation's outcome, as in the history; empty: it has not ended."""


SUCCESS = "success"
"""Outcomes after which a repeated request starts nothing."""


class ActiveRecord(Record, kw_only=True):
    """``_active.<operation>``: the index entry of an operation that still has keys. The same exists below
    ``_waiting.`` while it runs without an executor."""

    type: str


class SeriesRecord(Record, kw_only=True):
    """``<table>.series.<name>``: names the one history line of a series."""

    operation: str
    """The one that succeeded last."""


class SeriesEntry(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """One operation of a series."""

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
    request_id: str = ""
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
    retry_of: str = ""
    """The operation that its request had started before, and that ended without success."""
    follows: str = ""
    """The operation whose finish has started it."""
    series: SeriesNote | None = None
    """Of the last operation of a series: the summary of all."""
    events: list[Event] = []
    """What has happened to it between its start and its end."""
    events_left_out: int = 0

    def count(self, fact: str) -> int | None:
        """A fact that counts something, such as rows; ``None`` if it is missing. Facts are whatever JSON an
        operation type reports, so it may be anything else: that counts nothing."""
        value = self.facts.get(fact)
        return value if type(value) is int and 0 <= value < 1 << 53 else None
