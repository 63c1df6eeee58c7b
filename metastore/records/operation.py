"""What stands in etcd of an operation: its request, its jobs, how it ends and what remains of it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from distop.metastore.records.effects import Effect
from distop.metastore.records.keyspace import OperationId
from distop.metastore.records.options import FollowUp, OperationOptions
from distop.metastore.records.record import Record

RUNNING = b"running"
COMMITTING = b"committing"
ABORTING = b"aborting"
"""States of an operation while it has keys; plain text, since transactions compare them."""

MAX_JOB_RECORD_BYTES = 1024
"""A job's record stays under this whatever the job wrote; larger facts belong beside its data."""

MAX_CHECKPOINT_BYTES = 1024
"""A checkpoint stays under this; larger progress belongs beside the job's data."""


class WatermarkMove(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """One step of a watermark: it must still stand at ``before`` when the operation finishes."""

    before: str | None = None
    after: str
    jobs: list[tuple[int, int]] | None = None
    """The jobs that bring it there, as ranges (from, up to but without) of their places among the operation's
    jobs; it moves only if all of them succeed. ``None``: all jobs of the operation."""
    beside: Literal["", "nothing", "older"] = ""
    """Of a source that is a place: which other watermarks may stand around and below it at the finish. Empty:
    any. ``nothing``: none. ``older``: any below it, and around it what is older than ``after``."""


class RequestNote(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """What is remembered of the request that started an operation, besides its id."""

    digest: str = ""
    """Of its body."""
    call: str = ""
    """The call that it came with."""
    forget_at: float = 0.0
    """Until when its id is remembered."""


class OperationArg(Record, kw_only=True):
    """``<root>.arg``: the request, as accepted. Fixed from the start of the operation to its end.

    Layout 2 is that of dynamic plans: an older version would take them for operations without jobs.
    """

    LAYOUT: ClassVar[int] = 2
    table: str
    type: str
    instance: int
    object: str = ""
    uuid: str = ""
    """Random; names staged files, so that no two operations ever share a path."""
    argument: dict[str, Any] = {}
    """What the type's ``plan`` made of the caller's argument."""
    partition_count: int = 0
    """Number of jobs."""
    partitions: list[str] | None = None
    """Names of the jobs; ``None`` means "0" to "<partition_count - 1>"."""
    dynamic: bool = False
    """Nobody knows beforehand which jobs there are: see :class:`RunRecord`."""
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
    """What the caller says of itself, where ``started_by`` is a verified name."""
    address: str = ""
    """Where its start came from."""
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
    """What the operation does to the table."""
    batches: list[str] = []
    """The batches of the table's backlog that it applies; finishing it takes them out."""
    unordered: str = ""
    """The batch without an order that it applies."""
    schedule: str = ""
    """The schedule of the table that has started it."""
    series: str = ""
    """The series of operations that it goes on with; see :class:`SeriesNote`."""
    distop: str = ""
    """The version that started it."""
    then: FollowUp | None = None
    """What its finish starts, if it succeeds."""
    follows: str = ""
    """The operation whose finish has started it."""
    asked: str = ""
    """The caller's argument, shortened, as JSON in the order of the caller: for people."""

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
    """Of an external step: those of a stage run side by side, once all steps of lower stages are done."""


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
    """Whose mark it is; a repeated mark recognises itself by it."""
    result: dict[str, Any] = {}
    """What the job reports: counts, and where its manifest lies."""
    error: str = ""
    """Code and message of a failure, cut to fit."""
    at: float = 0.0
    run: int = 0
    """Of a dynamic plan: the token of the run that it belongs to."""


class RunRecord(Record, kw_only=True):
    """``<root>.run``: of a dynamic plan, the run whose results count. Those of any other run do not."""

    token: int
    """Its run token."""
    count: int | None = None
    """How many results it has; ``None``: they are not all there yet. Once it is known it stays."""
    tasks: int = 0
    """How many tasks Spark is to run, as far as is known. For people only."""
    done: int = 0
    """How many of them have ended. For people only."""
    begun: int = 1
    """How many runs have begun, this one among them, but for those whose process has let them go in order."""


class JobCountsRecord(Record, kw_only=True):
    """``<root>.jobCounts``: how many jobs are done, so that nobody must count the results of very many."""

    succeeded: int = 0
    failed: int = 0
    run: int = 0
    """Of a dynamic plan: the token of the run whose results these are."""
    last_job_at: float = 0.0
    """When a job finished last, as its executor says (seconds since the epoch)."""
    revision: int = 0
    """All results up to this revision are counted."""


class CancelRecord(Record, kw_only=True):
    """``<root>.cancel``: somebody asked for the operation to be cancelled."""

    by: str = ""
    reason: str = ""
    at: float = 0.0


class PauseRecord(Record, kw_only=True):
    """``<root>.pause`` and ``<table>.pause``: somebody has paused the operation, or the table."""

    by: str = ""
    reason: str = ""
    at: float = 0.0


class ErrorRecord(Record, kw_only=True):
    """``<root>.error``: why an operation aborts."""

    code: str
    message: str
    at: float = 0.0
    facts: dict[str, Any] = {}
    """What the history is to show of it besides; some KiB at most."""


class CompletionRecord(Record, kw_only=True):
    """``<root>.completion``: how completing an operation has failed so far, or what it waits for. Absent: it
    has not failed, and does not take long."""

    attempts: int = 0
    """Failed attempts since the start or since somebody resolved it; counted across leaders."""
    step: str = ""
    """The commit step that failed last; empty when it was something else."""
    index: int | None = None
    """Where that step stands in the commit sequence."""
    skippable: bool = False
    """Whether that step may be left out."""
    error_code: str = ""
    error: str = ""
    at: float = 0.0
    parked: bool = False
    """No further attempt before somebody resolves it."""
    skipped: list[int] = []
    """Steps of the commit sequence that are not to be executed, as somebody has decided."""
    running: str = ""
    """What it has called that takes long, and may hang."""
    running_since: float = 0.0
    """When that was seen, in seconds since the Unix epoch."""


RETRY, SKIP, ABORT = "retry", "skip", "abort"
"""How a parked operation can be resolved."""


class ResolveRecord(Record, kw_only=True):
    """``<root>.resolve``: somebody's decision on an operation that is parked, or whose completion hangs, for
    its leader to act on."""

    action: str
    """``retry``, ``skip`` or ``abort``."""
    by: str = ""
    reason: str = ""
    at: float = 0.0


class RequestRecord(Record, kw_only=True):
    """``<table>.request.<id>``: what a request id made, so that a repeat gets the same answer."""

    operation: str
    digest: str
    """Of the request's body; the same id with another body is an error."""
    call: str = ""
    """The call that it came with: a repeat of that call gets this answer whatever has become of it."""
    at: float = 0.0
    forget_at: float = 0.0
    """Until when it is remembered."""
    outcome: str = ""
    """How the operation has ended, as in the history; empty: it has not."""


SUCCESS = "success"
"""How an operation ended whose request has its answer: a repeat starts nothing."""


class ActiveRecord(Record, kw_only=True):
    """``_active.<operation>``: the index entry of an operation that still has keys. The same stands below
    ``_waiting.`` as long as it runs and no executor has it."""

    type: str


class SeriesRecord(Record, kw_only=True):
    """``<table>.series.<name>``: where the one line is that the history has of a series."""

    operation: str
    """The one that succeeded last."""


class SeriesEntry(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """One operation of a series."""

    operation: str
    started_at: float = 0.0
    finished_at: float = 0.0
    rows: int = 0


class SeriesNote(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """What the last line of a series says of all of it."""

    name: str
    count: int = 0
    """Operations that have succeeded."""
    rows: int = 0
    since: float = 0.0
    """When the first of them was started."""
    last: list[SeriesEntry] = []
    """The last ones, this one included, the newest at the end."""
    lines: list[str] = []
    """Earlier ones whose lines still stand, since they were not collected yet."""


class HistoryRecord(Record, kw_only=True):
    """``<table>.history.<operation>``: what remains of a finished operation."""

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
    """What its commit steps report: snapshot id, rows, files."""
    argument: str = ""
    """What it was asked to do: :attr:`OperationArg.asked`."""
    retry_of: str = ""
    """The operation that its request had started before, and that ended without success."""
    follows: str = ""
    """The operation whose finish has started it."""
    series: SeriesNote | None = None
    """Of the last operation of a series: what there is to say of all of them."""
