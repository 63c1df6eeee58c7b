"""The state of one operation, what has happened to it, and what its leader does next, from its keys. Pure:
no I/O, no clock of its own.

Its leader, the page, its watchers and the doctor all derive it here. What later values of the keys hide
(earlier executors, leaders and failures) the leader remembers as events, and writes with transactions that it
sends in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from operator import attrgetter
from typing import TypeAlias, TypeVar

from distop.coordinator.state.grid import MANY, GridCounts, JobGrid
from distop.errors import CorruptRecord, JobFailed, shortened
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.operations.steplog import LogRecord
from distop.metastore.records import operation as records
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.names import unescape
from distop.metastore.records.record import Record, decode, encode


@dataclass(frozen=True, slots=True)
class Nothing:
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

    decision: records.ResolveRecord


@dataclass(frozen=True, slots=True)
class Collect:
    """It is over; remove what it left."""


Action: TypeAlias = Nothing | Seal | Finish | Resolve | Collect


def decide(tracked: Tracked, *, deadline_passed: bool, paused: bool = False) -> Action:
    """What the leader should do about an operation, computed only from its present state.

    Parameters
    ----------
    paused:
        The operation or its table is paused. It is not published then; it can still fail, be cancelled, and
        pass its deadline, which keeps counting.
    """
    if not tracked.state:
        return Nothing() if tracked.gone else Collect()
    if tracked.state == records.ABORTING:
        return Finish()
    if tracked.state not in (records.RUNNING, records.COMMITTING):
        return Nothing()  # a newer version's state, which that version handles
    if tracked.cancel_requested:
        return Seal(tracked.state, records.ABORTING, "CANCELLED", tracked.cancel_text)
    if tracked.state == records.COMMITTING:
        if tracked.decision is not None:
            return Resolve(tracked.decision)
        return Nothing() if tracked.completion.parked else Finish()
    failed = tracked.jobs.failed
    if tracked.arg.options.too_many_failed(failed, tracked.total):
        return Seal(records.RUNNING, records.ABORTING, JobFailed.code, _why_failed(tracked))
    if not tracked.counting and tracked.jobs.succeeded + failed >= tracked.total:
        if paused:
            return _too_late(tracked) if deadline_passed else Nothing()
        # Also when the deadline has just passed: the work is done.
        return Seal(records.RUNNING, records.COMMITTING)
    return _too_late(tracked) if deadline_passed else Nothing()


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
    return Seal(
        records.RUNNING, records.ABORTING, "DEADLINE_EXCEEDED", f"not finished within {limit:g} s: {done}"
    )


MAX_EVENTS, MAX_BYTES = 64, 4096
FIRST = 16
"""Of too many events the first ones, this many, and the last ones are kept."""
_MAX_TEXT, _MAX_NAME = 200, 100

R = TypeVar("R", bound=Record)

TAKEN, WAITS_AGAIN, LED = "taken", "waits again", "led"


def event(at: float, kind: str, by: str = "", about: str = "") -> records.OperationEvent:
    """One event, at some seconds since the Unix epoch; long texts are cut."""
    return records.OperationEvent(
        at=round(at, 3), what=kind, by=shortened(by, _MAX_NAME), about=shortened(about, _MAX_TEXT)
    )


class Timeline:
    """The events of one operation, as far as they are known. One that is added twice counts once."""

    def __init__(self) -> None:
        self._events: list[records.OperationEvent] = []
        self._left_out = 0
        self._led = False
        self.unrecorded = False
        """Something has happened that the keys of the operation will not say for long."""

    def add(self, event: records.OperationEvent) -> None:
        if event in self._events:
            return
        taken_before = any(other.what in (TAKEN, WAITS_AGAIN) for other in self._events)
        self.unrecorded |= event.what == WAITS_AGAIN or (event.what == TAKEN and taken_before)
        self._events.append(event)
        if len(self._events) > MAX_EVENTS:
            del self._events[FIRST]
            self._left_out += 1

    def lead(self, event: records.OperationEvent) -> None:
        """This process leads from now on, and so knows what is written."""
        self._led = True
        self.add(event)

    def restore(self, record: records.EventsRecord) -> None:
        """Put what an earlier leader has written before what is known."""
        if not self._led:
            own, self._events, self._left_out = self._events, list(record.events), record.left_out
            for event in own:
                self.add(event)

    def record(self, more: Iterable[records.OperationEvent] = ()) -> records.EventsRecord:
        """All of them with some more, by their times: at most ``MAX_EVENTS`` and ``MAX_BYTES``."""
        events = sorted(
            [*self._events, *(event for event in more if event not in self._events)], key=attrgetter("at")
        )
        left_out = self._left_out
        while True:
            record = records.EventsRecord(events=events, left_out=left_out)
            if len(events) <= MAX_EVENTS and len(encode(record)) <= MAX_BYTES:
                return record
            del events[min(FIRST, len(events) // 2)]
            left_out += 1


def sealed(at: float, state: bytes, error: records.ErrorRecord | None) -> records.OperationEvent:
    """The outcome of the jobs is fixed: ``committing``, or ``aborting`` with its reason."""
    why = f": {error.code}: {error.message}" if error is not None else ""
    return event(at, "sealed", about=state.decode() + why)


def completion_failed(record: records.CompletionRecord) -> records.OperationEvent:
    """An attempt at ending the operation has failed."""
    step = f"{record.step}: " if record.step else ""
    about = f"attempt {record.attempts}: {step}{record.error_code}: {record.error}"
    return event(record.at, "parked" if record.parked else "completion failed", about=about)


@dataclass(slots=True)
class Tracked:
    """One operation of a table, kept up to date from etcd.

    A mark seen twice (a listing and an event, an event after a resumed watch) counts once: applying the same
    change again changes nothing.
    """

    keys: OperationKeys
    arg: records.OperationArg
    state: bytes = b""
    state_revision: int = 0
    counted: InitVar[GridCounts | None] = None
    """Another process counts its jobs: only its own keys are followed here."""
    jobs: JobGrid | GridCounts = field(init=False)
    """Its jobs; of a dynamic plan those of the run that counts."""
    revision: int = 0
    """The revision of the last change that was applied."""
    runner: str = ""
    """The executor that runs it; ``?`` if its record cannot be read."""
    runner_revision: int = 0
    cancel_requested: bool = False
    pause: records.PauseRecord | None = None
    """Who has paused it, as far as :meth:`apply_put` and :meth:`apply_delete` have seen."""
    pause_revision: int = 0
    table_pause: records.PauseRecord | None = None
    """Who has paused its table: set by the owner, since that key is not one of its own."""
    cancel_text: str = "cancelled on request"
    """Who requested it, and why."""
    error: records.ErrorRecord | None = None
    completion: records.CompletionRecord = field(default_factory=records.CompletionRecord)
    """How completing it has failed so far."""
    completion_revision: int = 0
    decision: records.ResolveRecord | None = None
    """The decision about it, while it is parked."""
    decision_revision: int = 0
    gone: bool = False
    """Its last key has been removed: nothing is left to do."""
    unreadable: dict[bytes, str] = field(default_factory=dict)
    """Unreadable marks, and why. Such a job is neither done nor failed."""
    timeline: Timeline = field(default_factory=Timeline)
    """What has happened to it, as far as its keys have said."""
    run: records.RunRecord = field(default_factory=lambda: records.RunRecord(token=0))
    """Of a dynamic plan: the run whose results count."""

    def __post_init__(self, counted: GridCounts | None) -> None:
        self.jobs = counted or JobGrid(self.arg)

    @classmethod
    def of(
        cls, keys: OperationKeys, kvs: Iterable[KeyValue], counted: GridCounts | None = None
    ) -> Tracked | None:
        """From all keys below the operation's root; ``None`` if it has no argument or no state (any more).

        With ``counted`` its own keys are enough.

        Raises :class:`~distop.errors.CorruptRecord` if its argument cannot be read.
        """
        by_key = {kv.key: kv for kv in kvs}
        arg = by_key.get(keys.arg)
        if arg is None or keys.state not in by_key:
            return None
        tracked = cls(keys, decode(arg.value, records.OperationArg, arg.key), counted=counted)
        for kv in by_key.values():
            tracked.apply_put(kv)
        return tracked

    @property
    def total(self) -> int:
        """How many jobs there are; of a dynamic plan without a sealed count: as far as is known."""
        if not self.arg.dynamic:
            return self.arg.partition_count
        return self.run.tasks if self.run.count is None else self.run.count

    @property
    def has_many(self) -> bool:
        """Whether it has so many jobs that only its leader counts them."""
        return self.total > MANY

    def counts(self) -> records.JobCountsRecord:
        """How many jobs are done, for processes that do not count them."""
        jobs = self.jobs
        return records.JobCountsRecord(
            succeeded=jobs.succeeded,
            failed=jobs.failed,
            run=self.run.token,
            last_job_at=jobs.last_job_at,
            revision=self.revision,
        )

    @property
    def counting(self) -> bool:
        """Whether the number of jobs is still unknown."""
        return self.arg.dynamic and self.run.count is None

    @property
    def done(self) -> int:
        """Successful jobs: the present results, or the runner's count before there are any."""
        return max(self.jobs.succeeded, self.run.done) if self.counting else self.jobs.succeeded

    @property
    def parked(self) -> bool:
        """Whether it waits for a decision."""
        decided = self.decision is not None or self.cancel_requested
        return self.state == records.COMMITTING and self.completion.parked and not decided

    def events(self, *more: records.OperationEvent) -> records.EventsRecord:
        """What has happened to it between its start and its end, to be written with ``more``."""
        return self.timeline.record(more)

    def all_events(self, *more: records.OperationEvent) -> records.EventsRecord:
        """The same with what its jobs say: which one is the last is known once no other is to come."""
        jobs, done = self.jobs, self.jobs.succeeded + self.jobs.failed
        bounds = [event(jobs.first_job_at, "first job done")] if jobs.first_job_at else []
        if done > 1 and (self.state != records.RUNNING or (not self.counting and done >= self.total)):
            bounds.append(event(jobs.last_job_at, "last job done"))
        return self.events(*more, *bounds)

    # -- keeping up ----------------------------------------------------------------------------------

    def set_state(self, state: bytes, revision: int) -> None:
        """The state as of ``revision``; a late event with an older one changes nothing."""
        if revision > self.state_revision:
            self.state, self.state_revision = state, revision

    def set_completion(self, record: records.CompletionRecord, revision: int) -> None:
        """The completion as of ``revision``; a decision made before then has been acted on."""
        if revision > self.completion_revision:
            self.completion, self.completion_revision = record, revision
            if record.attempts:
                self.timeline.add(completion_failed(record))
        if revision >= self.decision_revision:
            self.decision = None

    def set_run(self, record: records.RunRecord) -> None:
        """Which run's results count. The deletion of old ones need not be seen."""
        if self.run.count is not None or record.token < self.run.token:
            return
        if record.token > self.run.token:
            self.jobs.restart()
            self.unreadable.clear()
        self.run = record
        self.jobs.make_room(self.total)

    def apply_put(self, kv: KeyValue) -> tuple[str, records.JobRecord] | None:
        """A key below the operation's root was written; an unreadable value never raises.

        Returns partition and record if it is the result of a job, and counts.
        """
        if kv.mod_revision > self.revision:
            self.revision = kv.mod_revision
        word, dot, of_job = kv.key[len(self.keys.prefix) :].partition(b".")
        if dot:
            return self._apply_job(kv, word, of_job)
        match word:
            case b"state":
                self.set_state(kv.value, kv.mod_revision)
            case b"runner" if kv.mod_revision >= self.runner_revision:
                record = _read(kv, records.RunnerRecord)
                self.runner = "?" if isinstance(record, CorruptRecord) else record.member
                self.runner_revision = kv.mod_revision
                if not isinstance(record, CorruptRecord):
                    self.timeline.add(event(record.started_at, TAKEN, record.member))
            case b"queued":
                queued = _read(kv, records.QueuedRecord)
                if not isinstance(queued, CorruptRecord):
                    self.timeline.add(event(queued.at, WAITS_AGAIN, about=queued.why))
            case b"events":
                events = _read(kv, records.EventsRecord)
                if not isinstance(events, CorruptRecord):
                    self.timeline.restore(events)
            case b"commit":
                log = _read(kv, LogRecord)
                if not isinstance(log, CorruptRecord):
                    self.timeline.add(event(log.at, "steps logged", about=f"{log.steps:,} commit steps"))
            case b"cancel":
                cancel = _read(kv, records.CancelRecord)
                self.cancel_requested, self.cancel_text = True, _how_cancelled(cancel)
                if not isinstance(cancel, CorruptRecord):
                    self.timeline.add(event(cancel.at, "cancel requested", cancel.by, cancel.reason))
            case b"pause" if kv.mod_revision >= self.pause_revision:
                pause = _read(kv, records.PauseRecord)
                self.pause = records.PauseRecord() if isinstance(pause, CorruptRecord) else pause
                self.pause_revision = kv.mod_revision
                self.timeline.add(event(self.pause.at, "paused", self.pause.by, self.pause.reason))
            case b"jobCounts" if isinstance(self.jobs, GridCounts):
                counts = _read(kv, records.JobCountsRecord)
                if not isinstance(counts, CorruptRecord) and counts.run == self.run.token:
                    self.jobs.update(counts)
            case b"run":
                run = _read(kv, records.RunRecord)
                if isinstance(run, CorruptRecord):
                    self.unreadable[kv.key] = str(run)
                else:
                    self.set_run(run)
            case b"error":
                error = _read(kv, records.ErrorRecord)
                if isinstance(error, CorruptRecord):
                    error = records.ErrorRecord(code=error.code, message=str(error))
                self.error = error
            case b"completion":
                completion = _read(kv, records.CompletionRecord)
                if isinstance(completion, CorruptRecord):
                    completion = records.CompletionRecord(error=str(completion), parked=True)
                self.set_completion(completion, kv.mod_revision)
            case b"resolve":
                if kv.mod_revision > max(self.completion_revision, self.decision_revision):
                    decision = _read(kv, records.ResolveRecord)
                    # A newer version's decision is left to a leader of that version.
                    self.decision = None if isinstance(decision, CorruptRecord) else decision
                    self.decision_revision = kv.mod_revision
                    if self.decision is not None:
                        decided = f"{self.decision.action} {self.decision.reason}".strip()
                        self.timeline.add(event(self.decision.at, "decided", self.decision.by, decided))
        return None

    def _apply_job(self, kv: KeyValue, component: bytes, word: bytes) -> tuple[str, records.JobRecord] | None:
        if isinstance(self.jobs, GridCounts):
            return None
        if word == b"claim":
            if not self.arg.dynamic:
                self.jobs.claim(_partition(component))
        elif word == b"tries":
            if not self.arg.dynamic:
                self.jobs.retry(_partition(component))
        elif word == b"state":
            partition = _partition(component)
            try:
                record = decode(kv.value, records.JobRecord, kv.key)
            except CorruptRecord as error:
                # It concerns only this operation: the leader of its table must be able to go on.
                self.jobs.clear(partition)
                self.unreadable[kv.key] = str(error)
                return None
            if self.unreadable:
                self.unreadable.pop(kv.key, None)
            if self.arg.dynamic and not self._is_of_present_run(record.run):
                self.jobs.clear(partition)
                return None
            if record.state == "success":
                self.jobs.succeed(partition, record.at)
            else:
                self.jobs.fail(partition, record.at, record.error)
            return partition, record
        return None

    def _is_of_present_run(self, token: int) -> bool:
        """Whether a result counts. Tokens grow, and listings are unordered: a result of a younger run
        implies, as its ``.run`` would, that the run before does not count any more."""
        if token > self.run.token:
            self.set_run(records.RunRecord(token=token))
        return token == self.run.token

    def apply_delete(self, key: bytes, revision: int) -> None:
        """A key below the operation's root was deleted. A deleted job state counts as not done."""
        self.revision = max(self.revision, revision)
        jobs = self.jobs
        match key[len(self.keys.prefix) :].split(b"."):
            case [b"state"]:
                self.set_state(b"", revision)
            case [b"runner"] if revision >= self.runner_revision:
                self.runner, self.runner_revision = "", revision
            case [b"completion"] if revision > self.completion_revision:
                self.completion = records.CompletionRecord()
            case [b"pause"] if revision >= self.pause_revision:
                self.pause, self.pause_revision = None, revision
            case [component, b"state"] if isinstance(jobs, JobGrid):
                self.unreadable.pop(key, None)
                jobs.clear(_partition(component))
            case [component, b"claim"] if isinstance(jobs, JobGrid):
                jobs.release(_partition(component))


def _partition(component: bytes) -> str:
    """The partition that a component of a key names; empty if it names none."""
    if component.isalnum():
        return component.decode()  # most are numbers, and there may be a hundred thousand
    try:
        return unescape(component.decode())
    except UnicodeError:
        return ""


def _read(kv: KeyValue, kind: type[R]) -> R | CorruptRecord:
    try:
        return decode(kv.value, kind, kv.key)
    except CorruptRecord as error:
        return error


def _how_cancelled(record: records.CancelRecord | CorruptRecord) -> str:
    if isinstance(record, CorruptRecord):
        return "cancelled on request"
    by = f" by {record.by}" if record.by else " on request"
    return f"cancelled{by}{f': {record.reason}' if record.reason else ''}"
