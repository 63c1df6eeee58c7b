"""What a task does with its jobs and with the answers it gets."""

import logging
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from distop.errors import Cancelled, InvalidArgument, JobFailed, Unavailable
from distop.executor.host.scratch import Scratch
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.task import task
from distop.executor.task.output import collected
from distop.executor.task.session import Ownership, TaskSession
from distop.executor.task.task import Task, TaskJob, TaskSummary, TaskWork
from distop.lake.storage.traces import MAX_OUTPUT_BYTES, read_traces
from distop.metastore.operations.jobs import WON, Mark, Outcome, Tried, Verdict
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import JobRecord, OperationArg, OperationOptions
from distop.metastore.records.record import decode
from distop.operations import DistributedOperation, JobContext, Plan, PlanRequest, Retry

NOWHERE = Scratch(SidecarFolder(Path("/nonexistent")))


class ScriptedPort:
    """Answers marks as scripted; everything else succeeds."""

    def __init__(self, *verdicts: Verdict) -> None:
        self.marks: list[Mark] = []
        self.released: list[int] = []
        self.tries: list[tuple[str, str, str]] = []
        self._verdicts: Iterator[Verdict] = iter(verdicts)
        self._claims = 0

    def attach(self, session: TaskSession[Any]) -> None:
        self.session = session

    def detach(self, session: TaskSession[Any]) -> None:
        pass

    def submit(self, session: TaskSession[Any], number: int, mark: Mark) -> None:
        self.marks.append(mark)
        session.answered([(number, mark, next(self._verdicts, WON))])

    def flush(self) -> None:
        pass

    def claim(self, session: TaskSession[Any], partition: str, attempt: str) -> Ownership | Verdict:
        self._claims += 1
        return Ownership(self._claims, b"saved" if self._claims > 1 else None)

    def release(self, session: TaskSession[Any], partition: str, claim: int) -> None:
        self.released.append(claim)

    def save(self, session: TaskSession[Any], partition: str, claim: int, value: bytes) -> Verdict | None:
        return None

    def count_try(self, session: TaskSession[Any], partition: str, attempt: str, error: str) -> None:
        self.tries.append((partition, attempt, error))


class Scripted(DistributedOperation):
    """Each attempt does what the next step says."""

    type = "scripted"

    def __init__(self, *steps: Callable[[JobContext], Mapping[str, Any] | None]) -> None:
        self.steps = list(steps)
        self.cleaned: list[str] = []
        self.attempts: list[str] = []

    def plan(self, request: PlanRequest) -> Plan:
        return Plan(argument={})

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
        self.attempts.append(job.attempt)
        return self.steps.pop(0)(job)

    def cleanup_attempt(self, job: JobContext) -> None:
        self.cleaned.append(job.attempt)


class Resumable(Scripted):
    """Keeps checkpoints."""

    type = "resumable"
    resumable = True


class Immortal(Scripted):
    """Cannot fail."""

    type = "immortal"
    retry = Retry(attempts=None)


class Twice(Scripted):
    """Gives a job two attempts, of other pauses than usual."""

    type = "twice"
    retry = Retry(attempts=2, backoff_s=5.0, longest_pause_s=8.0)


class NoPause(TaskSession[TaskJob]):
    """Does not wait between attempts."""

    paused: ClassVar[list[float]] = []

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)


def fail(error: Exception) -> Callable[[JobContext], None]:
    def step(job: JobContext) -> None:
        raise error

    return step


def work(job: JobContext) -> dict[str, Any]:
    return {"rows": 1}


def run(operation: Scripted, port: ScriptedPort, *partitions: str, **given: Any) -> TaskSummary:
    tried, of_arg = (
        given.pop("tried", {}),
        {name: given.pop(name) for name in ("location", "stages_files") if name in given},
    )
    options = OperationOptions(**given)
    arg = OperationArg(table="t", type=operation.type, instance=1, uuid="u", options=options, **of_arg)
    to_do = TaskWork(operation=operation, arg=arg, run_token=7, scratch=NOWHERE, tried=tried)
    session = NoPause(port, str(arg.id), 7, claims=to_do.claims)
    with collected() as output:
        made = Task(to_do, session, "s1", clock=lambda: 1.0, rng=random.Random(1), output=output)
        return made.run(partitions or ["0"])


def test_attempts_are_unique_and_begin_with_the_run_token() -> None:
    operation = Scripted(fail(OSError()), work, work)
    run(operation, ScriptedPort(), "0", "1")
    assert len(set(operation.attempts)) == 3
    assert all(attempt.startswith("7-s1-") for attempt in operation.attempts)


def test_a_job_that_raised_is_tried_again_in_place_and_its_attempt_cleaned_up() -> None:
    """O20"""
    operation, port = Scripted(fail(OSError("x")), work), ScriptedPort()
    assert run(operation, port) == TaskSummary(won=1)
    assert operation.cleaned == operation.attempts[:1]


def test_files_that_an_attempt_which_failed_has_staged_are_removed(tmp_path: Path) -> None:
    """O20: by the executor, whether the type cleans up or not."""

    def stage(job: JobContext) -> dict[str, Any]:
        path = Path(job.staging_path(".parquet"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("rows")
        return {}

    def stage_and_fail(job: JobContext) -> None:
        stage(job)
        raise OSError("x")

    operation = Scripted(stage_and_fail, stage)
    run(operation, ScriptedPort(), location=str(tmp_path), stages_files=True)
    (left,) = tmp_path.rglob("*.parquet")
    assert operation.attempts[1] in left.name


def test_the_last_attempt_cleans_up_before_its_failure_is_marked() -> None:
    """O12"""
    operation, port = Scripted(fail(OSError("x")), fail(OSError("y"))), ScriptedPort()
    assert run(operation, port, max_job_attempts=2) == TaskSummary(won=1, failed=1)
    assert operation.cleaned == operation.attempts
    record = decode(port.marks[0].value, JobRecord)
    assert (record.state, record.error) == ("failed", "JOB_CRASHED: OSError: y")


def test_what_user_code_raised_is_kept_in_the_tables_storage(tmp_path: Path) -> None:
    """And a retry that succeeds takes nothing back."""
    operation = Scripted(fail(OSError("x")), work, fail(JobFailed("told by the job")))
    run(operation, ScriptedPort(), "p", "q", location=str(tmp_path))
    (kept,) = read_traces(str(tmp_path), {}, OperationId("t", "scripted", 1), "u")
    assert (kept.partition, kept.attempt, kept.error) == ("p", operation.attempts[0], "OSError: x")
    assert "raise error" in kept.trace


def test_what_a_job_prints_and_logs_is_kept_whether_it_fails_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its end, and none of it where it wrote nothing; and it still goes where it went before."""

    def loud(job: JobContext) -> dict[str, Any]:
        print("first", "x" * MAX_OUTPUT_BYTES, "last")
        logging.getLogger("users.module").warning("logged")
        return {}

    def failing(job: JobContext) -> dict[str, Any]:
        print("about to fail", file=sys.stderr)
        raise JobFailed("no such place")

    before, handlers = sys.stdout, list(logging.getLogger().handlers)
    run(Scripted(loud, failing, work), ScriptedPort(), "loud", "failing", "quiet", location=str(tmp_path))
    assert (sys.stdout, logging.getLogger().handlers) == (before, handlers)
    told, raised = read_traces(str(tmp_path), {}, OperationId("t", "scripted", 1), "u")
    assert (told.partition, told.error, len(told.output)) == ("loud", "", MAX_OUTPUT_BYTES)
    assert "first" not in told.output
    assert told.output.splitlines()[0].endswith("x last")
    assert told.output.rstrip().endswith("WARNING users.module logged")
    assert (raised.partition, raised.trace, raised.output) == ("failing", "", "about to fail\n")
    assert "no such place" in raised.error
    assert "first" in capsys.readouterr().out


def test_a_storage_that_hangs_delays_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What jobs have written is stored once all of a task's are marked."""

    def loud(job: JobContext) -> dict[str, Any]:
        print("loud")
        return {}

    port, marked = ScriptedPort(), list[int]()
    monkeypatch.setattr(task, "keep_output", lambda *_, **__: marked.append(len(port.marks)))
    run(Scripted(loud, loud), port, "0", "1")
    assert marked == [2, 2]


def test_a_job_that_logs_or_writes_what_cannot_be_written_does_not_fail_of_its_being_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Those of pytest raise, other than the usual ones.
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])

    def careless(job: JobContext) -> dict[str, Any]:
        logging.getLogger("users.module").warning("%d rows", "no number")
        with suppress(TypeError):
            sys.stdout.write(b"bytes")  # type: ignore[arg-type]
        print("done")
        return {}

    assert run(Scripted(careless), ScriptedPort(), location=str(tmp_path)) == TaskSummary(won=1)
    (kept,) = read_traces(str(tmp_path), {}, OperationId("t", "scripted", 1), "u")
    assert (kept.error, kept.output.splitlines()[-1]) == ("", "done")


@pytest.mark.parametrize("error", [InvalidArgument("no"), Cancelled("by itself")])
def test_permanent_errors_are_not_tried_again(error: Exception) -> None:
    operation, port = Scripted(fail(error)), ScriptedPort()
    assert run(operation, port).failed == 1
    assert len(operation.attempts) == 1


def test_pauses_between_attempts_grow_from_the_first_to_a_bound() -> None:
    """O20: cut at random by up to a half."""
    NoPause.paused.clear()
    operation = Scripted(*[fail(OSError())] * 12)
    run(operation, ScriptedPort(), max_job_attempts=12, job_backoff_s=0.5)
    longest = [min(0.5 * 2**n, 30.0) for n in range(11)]
    assert len(NoPause.paused) == len(longest)
    for paused, most in zip(NoPause.paused, longest, strict=True):
        assert most / 2 <= paused <= most
    assert len(set(NoPause.paused)) > 7


@pytest.mark.parametrize(
    ("given", "attempts", "longest"),
    [({}, 2, [5.0]), ({"max_job_attempts": 4}, 4, [5.0, 8.0, 8.0]), ({"job_backoff_s": 9.0}, 2, [9.0])],
    ids=["as the type says", "more attempts", "a longer pause"],
)
def test_a_type_says_how_often_its_jobs_are_tried_and_a_start_may_say_otherwise(
    given: dict[str, Any], attempts: int, longest: list[float]
) -> None:
    NoPause.paused.clear()
    operation = Twice(*[fail(OSError())] * 9)
    assert run(operation, ScriptedPort(), **given).failed == 1
    assert len(operation.attempts) == attempts
    paired = zip(NoPause.paused, longest, strict=True)
    assert all(most / 2 <= paused <= most for paused, most in paired)


class Hours:
    """A clock that a job turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("distop.executor.task.task.boot_clock", lambda: self.now)

    def dawdle(self, seconds: float, *, heeds: bool = True) -> Callable[[JobContext], dict[str, Any]]:
        def step(job: JobContext) -> dict[str, Any]:
            assert not job.cancelled
            self.now += seconds
            if heeds:
                job.raise_if_cancelled()
            return {"rows": 1}

        return step


@pytest.mark.parametrize("heeds", [True, False], ids=["heeds it", "does not look"])
def test_an_attempt_that_takes_too_long_counts_as_one_that_failed(
    monkeypatch: pytest.MonkeyPatch, heeds: bool
) -> None:
    """O20: it is cancelled, cleans up, and the next attempt has all its time again."""
    hours, port = Hours(monkeypatch), ScriptedPort()
    operation = Scripted(hours.dawdle(61, heeds=heeds), hours.dawdle(59))
    assert run(operation, port, attempt_timeout_s=60.0) == TaskSummary(won=1)
    assert operation.cleaned == operation.attempts[:1]
    assert decode(port.marks[0].value, JobRecord).state == "success"


def test_a_job_whose_attempts_all_take_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """O12, O20"""
    hours, port = Hours(monkeypatch), ScriptedPort()
    operation = Scripted(hours.dawdle(61), hours.dawdle(61))
    assert run(operation, port, attempt_timeout_s=60.0, max_job_attempts=2).failed == 1
    assert operation.cleaned == operation.attempts
    error = decode(port.marks[0].value, JobRecord).error
    assert error == "ATTEMPT_TIMEOUT: an attempt at job 0 took longer than 60 s"


def test_a_permanent_error_that_comes_late_stays_permanent(monkeypatch: pytest.MonkeyPatch) -> None:
    hours, port = Hours(monkeypatch), ScriptedPort()

    def late(job: JobContext) -> None:
        hours.now += 61
        raise InvalidArgument("the reason")

    operation = Scripted(late)
    run(operation, port, attempt_timeout_s=60.0)
    assert decode(port.marks[0].value, JobRecord).error == "INVALID_ARGUMENT: the reason"


def test_an_attempt_that_took_too_long_and_is_not_wanted_any_more_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hours, port = Hours(monkeypatch), ScriptedPort()

    def cancelled(job: JobContext) -> None:
        hours.now += 61
        port.session.end("the operation is aborting")
        job.raise_if_cancelled()

    assert run(Scripted(cancelled), port, attempt_timeout_s=60.0) == TaskSummary(gone=1)
    assert port.marks == []


def test_a_resumable_job_that_takes_too_long_goes_on_from_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hours, port = Hours(monkeypatch), ScriptedPort()
    seen: list[bytes | None] = []

    def resume(job: JobContext) -> None:
        seen.append(job.load_checkpoint())

    operation = Resumable(hours.dawdle(61), resume)
    assert run(operation, port, attempt_timeout_s=60.0) == TaskSummary(won=1)
    assert (seen, port.released, operation.cleaned) == ([b"saved"], [1], [])


def test_tries_that_are_not_the_last_are_counted_where_others_see_them() -> None:
    """O20"""
    operation, port = Scripted(fail(OSError("x")), fail(Unavailable("y")), work), ScriptedPort()
    run(operation, port)
    assert port.tries == [
        ("0", operation.attempts[0], "JOB_CRASHED: OSError: x"),
        ("0", operation.attempts[1], "UNAVAILABLE: y"),
    ]


def test_tries_of_processes_that_died_count() -> None:
    """O20"""
    operation, port = Scripted(fail(OSError("x")), work), ScriptedPort()
    summary = run(operation, port, "0", "1", tried={"0": Tried(2, "JOB_FAILED: before")})
    assert summary == TaskSummary(won=2, failed=1)
    assert [mark.partition for mark in port.marks] == ["0", "1"]
    assert decode(port.marks[0].value, JobRecord).error == "JOB_CRASHED: OSError: x"


def test_a_job_without_tries_left_fails_with_the_last_error_and_is_not_tried() -> None:
    operation, port = Scripted(), ScriptedPort()
    run(operation, port, tried={"0": Tried(3, "ATTEMPT_TIMEOUT: an attempt took too long")})
    assert operation.attempts == []
    assert decode(port.marks[0].value, JobRecord).error == "ATTEMPT_TIMEOUT: an attempt took too long"


def test_a_try_that_cannot_be_counted_is_followed_by_the_next() -> None:
    class Forgetful(ScriptedPort):
        def count_try(self, session: TaskSession[Any], partition: str, attempt: str, error: str) -> None:
            raise Unavailable

    assert run(Scripted(fail(OSError()), work), Forgetful()) == TaskSummary(won=1)


def test_a_type_that_cannot_fail_counts_no_tries() -> None:
    port = ScriptedPort()
    run(Immortal(fail(OSError()), work), port)
    assert port.tries == []


def test_a_type_that_cannot_fail_is_tried_for_ever() -> None:
    operation = Immortal(*[fail(InvalidArgument("no"))] * 50, work)
    assert run(operation, ScriptedPort(), max_job_attempts=1) == TaskSummary(won=1)


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.GONE])
def test_an_attempt_that_does_not_count_cleans_up(outcome: Outcome) -> None:
    """O11"""
    operation = Scripted(work, work)
    run(operation, ScriptedPort(Verdict(outcome), WON), "0", "1")
    assert operation.cleaned == operation.attempts[:1]


def test_nothing_is_deleted_of_an_attempt_in_doubt() -> None:
    """P8"""
    operation = Scripted(work)
    assert run(operation, ScriptedPort(Verdict(Outcome.UNKNOWN))) == TaskSummary(unknown=1)
    assert operation.cleaned == []


def test_a_job_that_raises_after_the_run_is_over_is_not_marked() -> None:
    def cancelled(job: JobContext) -> None:
        port.session.end("the operation is aborting")
        job.raise_if_cancelled()

    port = ScriptedPort()
    operation = Scripted(cancelled)
    assert run(operation, port, "0", "1", "2") == TaskSummary(gone=3)
    assert port.marks == []
    assert operation.cleaned == operation.attempts


def test_a_job_whose_claim_is_lost_begins_again_from_its_checkpoint() -> None:
    """O9"""

    def lose(job: JobContext) -> None:
        port.session.claim_lost(None, "0", 1, "gone")
        job.raise_if_cancelled()

    seen: list[bytes | None] = []

    def resume(job: JobContext) -> None:
        seen.append(job.load_checkpoint())

    port = ScriptedPort()
    operation = Resumable(lose, resume)
    assert run(operation, port) == TaskSummary(won=1)
    assert seen == [b"saved"]
    assert port.marks[0].claim == 2


def test_a_resumable_job_keeps_what_it_made_between_attempts_and_gives_its_claim_back() -> None:
    operation, port = Resumable(fail(OSError()), work), ScriptedPort()
    run(operation, port)
    assert operation.cleaned == []
    assert port.released == [1]


def test_a_type_without_checkpoints_is_told_so() -> None:
    def save(job: JobContext) -> None:
        assert job.load_checkpoint() is None
        job.save_checkpoint(b"x")

    port = ScriptedPort()
    run(Scripted(save), port)
    assert "keeps no checkpoints" in decode(port.marks[0].value, JobRecord).error


def test_an_attempt_has_its_time_from_when_it_owns_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait long for the attempt that owns it."""
    hours = Hours(monkeypatch)

    class Busy(ScriptedPort):
        def claim(self, session: TaskSession[Any], partition: str, attempt: str) -> Ownership | Verdict:
            hours.now += 100.0
            return super().claim(session, partition, attempt)

    operation, port = Resumable(work, work), Busy()
    assert run(operation, port, attempt_timeout_s=60.0) == TaskSummary(won=1)
    assert len(operation.attempts) == 1


def test_a_mark_that_cannot_be_answered_fails_the_task_and_deletes_nothing() -> None:
    class Dead(ScriptedPort):
        def submit(self, session: TaskSession[Any], number: int, mark: Mark) -> None:
            session.unanswered([number], Unavailable("etcd is down"))

    operation = Scripted(work)
    with pytest.raises(Unavailable):
        run(operation, Dead())
    assert operation.cleaned == []


def test_a_clean_up_that_raises_does_not_hide_the_failure() -> None:
    class Untidy(Scripted):
        type = "untidy"

        def cleanup_attempt(self, job: JobContext) -> None:
            raise OSError("disk")

    port = ScriptedPort()
    run(Untidy(fail(InvalidArgument("the reason"))), port)
    assert decode(port.marks[0].value, JobRecord).error == "INVALID_ARGUMENT: the reason"
