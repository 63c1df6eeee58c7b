"""What is known of one operation, and what to do next. Pure: no I/O, no clock of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

from distop.errors import CorruptRecord, JobFailed
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.model import (
    ABORTING,
    COMMITTING,
    RUNNING,
    CancelRecord,
    CompletionRecord,
    ErrorRecord,
    JobRecord,
    OperationArg,
    PauseRecord,
    ResolveRecord,
    RunRecord,
    decode,
)

MAX_NAMED, MAX_NAMED_ERROR = 100, 120
"""Failed partitions that a history record names, and how many characters of each one's error."""


@dataclass(slots=True)
class Tracked:
    """One operation of a table, kept up to date from etcd.

    Jobs are remembered by key, so that a mark seen twice (a listing and an event, an event after a resumed
    watch) counts once. Applying the same change again changes nothing.
    """

    keys: OperationKeys
    arg: OperationArg
    state: bytes = b""
    state_revision: int = 0
    succeeded: set[bytes] = field(default_factory=set)
    failed: dict[bytes, JobRecord] = field(default_factory=dict)
    cancel_requested: bool = False
    pause: PauseRecord | None = None
    """Who has paused it, as far as :meth:`apply_put` and :meth:`apply_delete` were told."""
    cancel_text: str = "cancelled on request"
    """Who asked for it, and why."""
    error: ErrorRecord | None = None
    completion: CompletionRecord = field(default_factory=CompletionRecord)
    """How completing it has failed so far."""
    completion_revision: int = 0
    decision: ResolveRecord | None = None
    """What somebody has decided about it, while it is parked."""
    decision_revision: int = 0
    gone: bool = False
    """Its last key has been removed: nothing is left to do."""
    publishes: bool = True
    """Whether its end has outputs, watermarks or a hook; if not, there is nothing a seal would freeze."""
    unreadable: dict[bytes, str] = field(default_factory=dict)
    """Marks that this version does not understand, and why. Such a job is neither done nor failed."""
    run: RunRecord = field(default_factory=lambda: RunRecord(token=0))
    """Of a dynamic plan: the run whose results count."""

    @property
    def total(self) -> int:
        """How many jobs there are; of a dynamic plan whose count is not sealed: as far as is known."""
        if not self.arg.dynamic:
            return self.arg.partition_count
        return self.run.tasks if self.run.count is None else self.run.count

    @property
    def counting(self) -> bool:
        """Whether nobody knows yet how many jobs there are."""
        return self.arg.dynamic and self.run.count is None

    @property
    def done(self) -> int:
        """Jobs that have ended well: the results that stand, or what the runner says before there are any."""
        return max(len(self.succeeded), self.run.done) if self.counting else len(self.succeeded)

    def set_state(self, state: bytes, revision: int) -> None:
        """The state as of ``revision``; older news, such as a late event, changes nothing."""
        if revision > self.state_revision:
            self.state, self.state_revision = state, revision

    def set_completion(self, record: CompletionRecord, revision: int) -> None:
        """The completion as of ``revision``; a decision made before then has been acted on."""
        if revision > self.completion_revision:
            self.completion, self.completion_revision = record, revision
        if revision >= self.decision_revision:
            self.decision = None

    def apply_job(self, kv: KeyValue) -> None:
        """A job's state key was written."""
        self._forget_job(kv.key)
        try:
            record = decode(kv.value, JobRecord, kv.key)
        except CorruptRecord as error:
            # It concerns this operation alone: the leader of its table must be able to go on.
            self.unreadable[kv.key] = str(error)
            return
        if self.arg.dynamic and not self._is_of_present_run(record.run):
            return
        if record.state == "success":
            self.succeeded.add(kv.key)
        else:
            self.failed[kv.key] = record

    def _is_of_present_run(self, token: int) -> bool:
        """Whether a result counts. Tokens grow, and listings come in no order: one of a younger run says, as
        its ``.run`` would, that the one before counts no more."""
        if token > self.run.token:
            self.set_run(RunRecord(token=token))
        return token == self.run.token

    def set_run(self, record: RunRecord) -> None:
        """Which run's results count. That old ones are deleted need not be seen."""
        if self.run.count is not None or record.token < self.run.token:
            return
        if record.token > self.run.token:
            self.succeeded.clear()
            self.failed.clear()
            self.unreadable.clear()
        self.run = record

    def _forget_job(self, key: bytes) -> None:
        self.succeeded.discard(key)
        self.failed.pop(key, None)
        self.unreadable.pop(key, None)

    def apply_put(self, kv: KeyValue) -> None:
        """Any key below the operation's root was written."""
        if kv.key == self.keys.state:
            self.set_state(kv.value, kv.mod_revision)
        elif kv.key == self.keys.cancel:
            self.cancel_requested, self.cancel_text = True, _how_cancelled(kv)
        elif kv.key == self.keys.pause:
            try:
                self.pause = decode(kv.value, PauseRecord, kv.key)
            except CorruptRecord:
                self.pause = PauseRecord()
        elif kv.key == self.keys.run:
            try:
                self.set_run(decode(kv.value, RunRecord, kv.key))
            except CorruptRecord as error:
                self.unreadable[kv.key] = str(error)
        elif kv.key == self.keys.error:
            try:
                self.error = decode(kv.value, ErrorRecord, kv.key)
            except CorruptRecord as error:
                self.error = ErrorRecord(code=error.code, message=str(error))
        elif kv.key == self.keys.completion:
            try:
                self.set_completion(decode(kv.value, CompletionRecord, kv.key), kv.mod_revision)
            except CorruptRecord as error:
                self.set_completion(CompletionRecord(error=str(error), parked=True), kv.mod_revision)
        elif kv.key == self.keys.resolve:
            if kv.mod_revision > max(self.completion_revision, self.decision_revision):
                self.decision, self.decision_revision = _decision_of(kv), kv.mod_revision
        elif kv.key.endswith(b".state"):
            self.apply_job(kv)

    def apply_delete(self, key: bytes, revision: int) -> None:
        """Any key below the operation's root was deleted. A deleted job state counts as not done."""
        if key == self.keys.state:
            self.set_state(b"", revision)
        elif key == self.keys.pause:
            self.pause = None
        elif key.endswith(b".state"):
            self._forget_job(key)


def _how_cancelled(kv: KeyValue) -> str:
    try:
        record = decode(kv.value, CancelRecord, kv.key)
    except CorruptRecord:
        return "cancelled on request"
    by = f" by {record.by}" if record.by else " on request"
    return f"cancelled{by}{f': {record.reason}' if record.reason else ''}"


def _decision_of(kv: KeyValue) -> ResolveRecord | None:
    try:
        return decode(kv.value, ResolveRecord, kv.key)
    except CorruptRecord:
        return None  # of a newer version, whose leader will act on it


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
    """Publish (committing) or bury (aborting) it; one that publishes nothing ends from running."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Act on what somebody has decided about a parked one."""

    decision: ResolveRecord


@dataclass(frozen=True, slots=True)
class Collect:
    """It is over; remove what it left."""


Action: TypeAlias = Wait | Seal | Finish | Resolve | Collect


def decide(tracked: Tracked, *, deadline_passed: bool, paused: bool = False) -> Action:
    """What the leader should do about an operation, from nothing but its present state.

    Parameters
    ----------
    paused:
        Somebody holds it, or its table. It is not published then; it can still fail, be cancelled, and pass
        its deadline, which goes on counting.
    """
    if not tracked.state:
        return Wait() if tracked.gone else Collect()
    if tracked.state == ABORTING:
        return Finish()
    if tracked.state not in (RUNNING, COMMITTING):
        return Wait()  # of a newer version, which knows what to do about it
    if tracked.cancel_requested:
        return Seal(tracked.state, ABORTING, "CANCELLED", tracked.cancel_text)
    if tracked.state == COMMITTING:
        if not tracked.completion.parked:
            return Finish()
        return Resolve(tracked.decision) if tracked.decision is not None else Wait()
    failed = len(tracked.failed)
    if tracked.arg.options.too_many_failed(failed, tracked.total):
        return Seal(RUNNING, ABORTING, JobFailed.code, _why_failed(tracked))
    if not tracked.counting and len(tracked.succeeded) + failed >= tracked.total:
        if paused:
            return _too_late(tracked) if deadline_passed else Wait()
        # Also when the deadline has just passed: the work is done.
        return Seal(RUNNING, COMMITTING) if tracked.publishes else Finish()
    return _too_late(tracked) if deadline_passed else Wait()


def _why_failed(tracked: Tracked) -> str:
    partition, error = next(failures(tracked))
    # The code of the operation's error goes without saying twice.
    first = f"job {partition} failed: {error.removeprefix(f'{JobFailed.code}: ')}"
    allowed = tracked.arg.options.max_failed_partitions
    if not allowed:
        return first
    limit = "one must succeed" if allowed < 0 or allowed >= tracked.total else f"{allowed:,} may"
    return f"{len(tracked.failed):,} of {tracked.total:,} jobs failed, {limit}; {first}"


def failures(tracked: Tracked) -> Iterator[tuple[str, str]]:
    """The jobs that failed, in the order of their keys: partition and error."""
    for key in sorted(tracked.failed):
        named = tracked.keys.partition_of(key)
        yield named[0] if named else "?", tracked.failed[key].error


def failed_partitions(tracked: Tracked, outcome: str) -> dict[str, Any]:
    """What a success says of the jobs that were allowed to fail; so much of it as fits a history record."""
    if outcome != "success" or not tracked.failed:
        return {}
    named = islice(failures(tracked), MAX_NAMED)
    return {"failedPartitions": {name: error[:MAX_NAMED_ERROR] for name, error in named}}


def _too_late(tracked: Tracked) -> Seal:
    limit = tracked.arg.options.deadline_s
    done = f"{tracked.done} of {'an unknown number of' if tracked.counting else tracked.total} jobs were done"
    return Seal(RUNNING, ABORTING, "DEADLINE_EXCEEDED", f"not finished within {limit:g} s: {done}")
