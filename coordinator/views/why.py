"""Why a table is, or is not, moving: one sentence, from the public API's messages. Pure: no I/O, no clock.

It uses the messages of the public API, so that the page, a command line and an alert say the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from google.protobuf.timestamp_pb2 import Timestamp

from distop.errors import CorruptRecord, SourceIncomplete, shortened
from distop.metastore.records.operation import OperationOptions
from distop.proto import distop_pb2 as pb
from distop.proto.commands import command, to_resolve, to_unblock

SILENCE_S = 30.0
"""Seconds without a finished job after which the sentence says so."""

_MAX_ERROR = 300


class Mood(IntEnum):
    """The state of a table; higher values need more attention."""

    IDLE = 0
    MOVING = 1
    WAITING = 2
    """There is work that no process has taken yet, or that has failed and is tried again."""
    PAUSED = 3
    """It is paused and must be resumed."""
    STUCK = 4
    """It will not move without an action."""
    FAILED = 5
    """Nothing runs, and the last operation did not succeed."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an operation or a table makes progress or none, as a sentence."""

    mood: Mood
    sentence: str
    remedy: str = ""
    """What to do, or where to look, beside the sentence; empty: nothing, or the sentence says it."""

    @property
    def text(self) -> str:
        """The sentence, with what to do."""
        return f"{self.sentence}; {self.remedy}" if self.remedy else self.sentence


def why(
    *,
    running: Sequence[pb.Operation],
    leader: str,
    members: Sequence[pb.Member],
    last: pb.Operation | None,
    now: float,
    also_running: int = 0,
    table: pb.Table | None = None,
) -> Reason:
    """Why a table moves or does not (checklist U1).

    Parameters
    ----------
    running:
        Its active operations.
    leader:
        The coordinator that leads it; empty without one.
    members:
        All live coordinators and executors.
    last:
        The operation that finished last.
    now:
        Seconds since the Unix epoch.
    also_running:
        How many further operations run.
    table:
        The table itself, if it is known: it may be paused.
    """
    reason = _without_calls(running, leader, members, last, now, also_running, table)
    if table is not None and (rewritten := table.ordering.rewritten):
        others = f", and {many(len(rewritten) - 1, 'other batch', 'other batches')}" if rewritten[1:] else ""
        sentence = f"batch {rewritten[0]} was written again since it was applied{others}: "
        sentence += command("replace-batch", table.name, rewritten[0])
        reason = Reason(reason.mood, f"{reason.sentence}; {sentence}")
    calls = [
        (serving, call)
        for serving in members
        for call in serving.calls
        if table is not None and call.table == table.name
    ]
    if not calls:
        return reason
    member, call = calls[0]
    sentence = f"{reason.sentence}; {long_call(call.what, member.id, now - seconds_of(call.since))}"
    if len(calls) > 1:
        sentence += f"; {many(len(calls) - 1, 'other call')} that may"
    return Reason(max(reason.mood, Mood.WAITING), sentence)


def long_call(label: str, member: str, seconds: float) -> str:
    """The description of a slow call."""
    return f"{label} runs for {span(seconds)} on {member} and may hang"


def _without_calls(
    running: Sequence[pb.Operation],
    leader: str,
    members: Sequence[pb.Member],
    last: pb.Operation | None,
    now: float,
    also_running: int,
    table: pb.Table | None,
) -> Reason:
    """The answer, without slow calls."""
    if table is not None and table.HasField("pause"):
        held = len([other for other in running if other.state == pb.RUNNING]) + also_running
        waits = f", {many(held, 'operation')} held" if held else ""
        by, resume = held_by(table.pause, now), command("resume-table", table.name)
        return Reason(Mood.PAUSED, f"paused{by}: nothing starts{waits}; {resume}")
    fed = _fed(table, leader, members) if table is not None else None
    if not running:
        if also_running:
            return Reason(Mood.MOVING, f"{many(also_running, 'operation')} running")
        return fed or _idle(last, now)
    reasons = [why_operation(operation, leader, members, now) for operation in running]
    # The operation in the worst state explains the table; among equals the first.
    worst = max(reasons, key=lambda reason: reason.mood)
    if fed is not None and fed.mood is Mood.STUCK and worst.mood is not Mood.STUCK:
        # The running operations will end; the backlog will still be blocked.
        return Reason(Mood.STUCK, f"{fed.sentence}; {many(len(running) + also_running, 'operation')} running")
    others = len(running) - 1 + also_running
    sentence = worst.text
    if others:
        sentence += f"; {many(others, 'other operation')}"
    if fed is not None and table is not None and table.next_batch and not table.ordering.running:
        sentence += f"; batch {table.next_batch} waits"
    return Reason(worst.mood, sentence)


def short_name(operation: pb.Operation) -> str:
    """An operation's name without its table: ``ingest/17``, ``build_index/tailnum/3``."""
    return "/".join(filter(None, (operation.type, operation.object, str(operation.instance))))


def span(seconds: float) -> str:
    """A duration in words, coarser the longer it is: ``300 ms``, ``12 s``, ``4 min``, ``3 h``."""
    seconds = round(max(seconds, 0.0), 3)
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds // 86400)} d"


def seconds_of(moment: Timestamp) -> float:
    """A protobuf timestamp as seconds since the epoch; 0 for an unset one."""
    return float(moment.seconds) + moment.nanos / 1e9


def _idle(last: pb.Operation | None, now: float) -> Reason:
    if last is None:
        return Reason(Mood.IDLE, "idle: no operation has run yet")
    name = short_name(last)
    if not last.state:
        return Reason(Mood.FAILED, f"idle: how {name} ended cannot be read{_because(last)}")
    since = f"idle for {span(now - seconds_of(last.finished_at))}"
    if last.state == pb.SUCCEEDED:
        return Reason(Mood.IDLE, f"{since}: {name} succeeded{_held_back(last)}")
    if last.state == pb.CANCELLED:
        return Reason(Mood.IDLE, f"{since}: {name} was cancelled")
    return Reason(Mood.FAILED, f"{since}: {name} failed{_because(last)}")


def _held_back(operation: pb.Operation) -> str:
    """What a successful ingest of a topic could not read yet: each one after it may find nothing, too."""
    facts = json.loads(operation.facts_json or "{}")
    warnings = facts.get("warnings") if facts.get("offsetsHeldBack") else None
    return f"; {cut(str(warnings[0]))}" if warnings else ""


def _fed(table: pb.Table, leader: str, members: Sequence[pb.Member]) -> Reason | None:
    """The state of a table's backlog while nothing runs; ``None`` if nothing waits."""
    ordering, name, first = table.ordering, table.name, table.next_batch
    if (held := why_held(name, ordering, first)) is not None:
        return Reason(held.mood, held.text)
    lost = _failed_batches(table)
    if lost or not first:
        return lost
    if ordering.running:
        return _led(f"batch {first} is being applied", "end it", leader, members)
    error, failed = table.next_batch_error, table.next_batch_attempts
    if error.code == SourceIncomplete.code:
        text = f"batch {first} waits for its source: {cut(error.message)}"
        return Reason(Mood.WAITING, f"{text}; to withdraw it: {command('remove-batch', name, first)}")
    if error.code and not failed:
        return Reason(Mood.STUCK, f"batch {first} cannot be read: {error.code}: {cut(error.message)}")
    if failed:
        tries = f"{many(failed, 'failed attempt')} of {ordering.max_attempts}"
        text = f"batch {first} is retried after {tries}: {error.code}: {cut(error.message)}"
        return Reason(Mood.WAITING, text) if leader else _led(text, "apply it", leader, members)
    return _led(f"batch {first} is next", "apply it", leader, members)


def why_held(table: str, ordering: pb.Ordering, first: str) -> Reason | None:
    """What somebody must decide before the ordered batches of a table go on; ``None``: nothing. The one
    derivation that :func:`why`, the page and the doctor share.

    ``first``: the next batch; empty: none waits.
    """
    if ordering.HasField("blocked"):
        batch, error = ordering.blocked.batch, ordering.blocked.error
        sentence = f"batch {batch} blocks the table: {error.code}: {cut(error.message)}"
        return Reason(Mood.STUCK, sentence, to_unblock(table, batch))
    if ordering.held_by:
        return Reason(
            Mood.STUCK,
            f"{ordering.held_by} has rolled batches back: none is applied until it is said what becomes of "
            "them",
            f"{command('batches', table)}, skip those not wanted, {command('open-gate', table)}",
        )
    if ordering.awaiting:
        batch, staged = ordering.awaiting, ordering.staged
        if staged.batch == batch:
            return Reason(
                Mood.STUCK,
                f"batch {batch} is on branch {staged.branch}, written by {staged.operation}, and waits for "
                "approval to be published",
                f"look at it: {command('validate-branch', table, staged.branch)}, or read the branch; "
                f"{command('approve-branch', table, batch, staged.branch)}, or {to_unblock(table, batch)}",
            )
        comes = f" before {first} can come" if first else ""
        waits = f"batch {batch} waits for approval{comes}"
        return Reason(Mood.STUCK, waits, command("approve-batch", table, batch))
    if first and ordering.gate != "open":
        sentence = f"its gate is closed, and batches are collected from {first} on"
        return Reason(Mood.STUCK, sentence, command("open-gate", table))
    return None


def _failed_batches(table: pb.Table) -> Reason | None:
    """The state of a table with failed unordered batches."""
    failed = table.ordering.failed
    if not failed:
        return None
    block = failed[0]
    others = f", and {many(len(failed) - 1, 'other batch', 'other batches')}" if len(failed) > 1 else ""
    return Reason(
        Mood.STUCK,
        f"batch {block.batch} has failed{others}: {block.error.code}: {cut(block.error.message)}; "
        + to_unblock(table.name, block.batch),
    )


class Need(Enum):
    """What an operation that is not over needs next, to come to its end."""

    DECISION = "decision"
    """Somebody must resolve it: it is parked."""
    REPAIR = "repair"
    """Its records cannot be read."""
    UPGRADE = "upgrade"
    """It is in a state of a newer version."""
    CALL = "call"
    """A slow call of its completion must return: a hook, or commit steps."""
    LEADER = "leader"
    """The leader of its table must act: publish it, abort it, or go on with either."""
    RESUME = "resume"
    """Somebody must resume it, or its table."""
    RUNNER = "runner"
    """One of the executors that serve its type must take it."""
    EXECUTOR = "executor"
    """There is none, so one must be started."""
    LEASE = "lease"
    """The lease of its runner, which is not alive, must end: then others go on."""
    JOBS = "jobs"
    """Its runner must go on with the jobs."""


def need_of(operation: pb.Operation, executors: Mapping[str, Collection[str]]) -> Need:
    """What an operation needs; the one derivation that :func:`why`, the page and the doctor share.

    ``executors``: the types that each live executor serves.
    """
    jobs, completion = operation.jobs, operation.completion
    if completion.parked:
        return Need.DECISION
    if operation.state in (pb.COMMITTING, pb.ABORTING):
        return Need.CALL if completion.running else Need.LEADER
    if not operation.state and operation.error.code == CorruptRecord.code:
        return Need.REPAIR
    if operation.state != pb.RUNNING:
        return Need.UPGRADE
    if operation.cancel_requested or _too_many_failed(operation):
        return Need.LEADER
    if operation.HasField("pause"):
        return Need.RESUME
    if not jobs.counting and jobs.succeeded + jobs.failed >= jobs.total:
        return Need.LEADER
    if operation.runner:
        return Need.JOBS if operation.runner in executors else Need.LEASE
    served = any(operation.type in types for types in executors.values())
    return Need.RUNNER if served else Need.EXECUTOR


def executors_among(members: Sequence[pb.Member]) -> dict[str, Collection[str]]:
    """The types that each live executor serves."""
    return {member.id: member.types for member in members if member.role == "executor"}


def _too_many_failed(operation: pb.Operation) -> bool:
    options = OperationOptions(max_failed_partitions=operation.max_failed_partitions)
    return options.too_many_failed(operation.jobs.failed, operation.jobs.total)


def why_operation(operation: pb.Operation, leader: str, members: Sequence[pb.Member], now: float) -> Reason:
    """Why one operation that is not over makes progress or none; its sentence begins with its short name.

    The parameters are those of :func:`why`.
    """
    name, serving = short_name(operation), _serving(operation, members)
    executors = executors_among(members)
    match need_of(operation, executors):
        case Need.DECISION:
            decide = to_resolve(operation.name, skippable=operation.completion.skippable)
            parked = f"{name} is parked{_failing(operation, now)}"
            return Reason(Mood.STUCK, parked, f"remove the cause and decide: {decide}")
        case Need.CALL:
            return _calling(operation, leader, members, now)
        case Need.LEADER:
            return _acting(operation, leader, members, now)
        case Need.REPAIR:
            return Reason(Mood.STUCK, f"{name} cannot be read{_because(operation)}")
        case Need.UPGRADE:
            unknown = f"{name} is in a state that this version does not know"
            return Reason(Mood.STUCK, unknown, "upgrade distop here")
        case Need.RESUME:
            paused = f"{name} is paused{held_by(operation.pause, now)}: {_done(operation)}"
            return Reason(Mood.PAUSED, paused, command("resume", operation.name))
        case Need.JOBS:
            return _running(operation, members, now)
        case Need.LEASE:
            lost = f"run by {operation.runner}, which is not among the live executors"
            sentence = f"{name}: {_done(operation, failed=True)}, {lost}"
            return Reason(Mood.WAITING, sentence, "others go on when its lease ends")
        case Need.RUNNER:
            ready = many(len(serving), "executor")
            reports = {
                entry.operation: f"; {member.id}: {entry.what}"
                for member in serving
                for entry in member.held_up
            }
            none = (
                f"{ready} for type {operation.type}, none has taken it yet{reports.get(operation.name, '')}"
            )
            return Reason(Mood.WAITING, f"{_without_runner(operation)}: {none}")
        case Need.EXECUTOR:
            alive = f"; {many(len(executors), 'executor')} for other types" if executors else ""
            none = f"{_without_runner(operation)}: no executor serves type {operation.type}{alive}"
            return Reason(Mood.STUCK, none, "start one that does: distop executor")


def _serving(operation: pb.Operation, members: Sequence[pb.Member]) -> list[pb.Member]:
    """The executors that serve its type."""
    return [member for member in members if member.role == "executor" and operation.type in member.types]


def _done(operation: pb.Operation, *, failed: bool = False) -> str:
    """How many of its jobs are done; ``failed``: and how many have failed."""
    jobs = operation.jobs
    total = "an unknown number of jobs" if jobs.counting and not jobs.total else many(jobs.total, "job")
    done = f"{jobs.succeeded:,} of {total} done"
    return f"{done}, {jobs.failed:,} failed" if failed and jobs.failed else done


def _without_runner(operation: pb.Operation) -> str:
    return f"{short_name(operation)} is waiting for a runner ({_done(operation, failed=True)})"


def _acting(operation: pb.Operation, leader: str, members: Sequence[pb.Member], now: float) -> Reason:
    """The table's leader has to publish or to abort it."""
    name, jobs, failing = short_name(operation), operation.jobs, _failing(operation, now)
    if operation.state == pb.COMMITTING and operation.completion.attempts:
        tried = f"{name} is committing{failing}{_again(operation.completion, now)}"
        reason = _led(tried, "publish it", leader, members)
        return Reason(max(reason.mood, Mood.WAITING), reason.sentence)
    if operation.state == pb.COMMITTING:
        text, to_do = f"{name} is committing: all {many(jobs.total, 'job')} done", "publish it"
    elif operation.state == pb.ABORTING:
        tried = failing + _again(operation.completion, now)
        text, to_do = f"{name} is being aborted{_because(operation)}{tried}", "abort it"
    elif operation.cancel_requested:
        text, to_do = f"{name} is being cancelled: {_done(operation)}", "abort it"
    elif _too_many_failed(operation):
        text, to_do = f"{name} is to be aborted: {many(jobs.failed, 'job')} failed", "abort it"
    else:
        text, to_do = f"{name} is about to commit: {_done(operation, failed=True)}", "publish it"
    return _led(text, to_do, leader, members)


def _calling(operation: pb.Operation, leader: str, members: Sequence[pb.Member], now: float) -> Reason:
    """Its completion has called something slow: a hook, or commit steps."""
    completion, commits = operation.completion, operation.state == pb.COMMITTING
    phase = "committing" if commits else "being aborted"
    failing = _failing(operation, now)
    since = span(now - seconds_of(completion.running_since))
    sentence = (
        f"{short_name(operation)} is {phase}{failing}: {completion.running} runs for {since} and may hang"
    )
    reason = _led(sentence, "go on", leader, members)
    decide = f"to end it: {command('abort', operation.name)}" if commits else ""
    return Reason(max(reason.mood, Mood.WAITING), reason.sentence, decide)


def _running(operation: pb.Operation, members: Sequence[pb.Member], now: float) -> Reason:
    done = _done(operation, failed=True)
    sentence = f"{short_name(operation)} running: {done}, run by {operation.runner}"
    held = {
        entry.operation: entry
        for member in members
        if member.id == operation.runner
        for entry in member.held_up
    }
    if entry := held.get(operation.name) or held.get(""):
        mood = Mood.WAITING if entry.operation else Mood.MOVING
        return Reason(mood, f"{sentence}; for {span(now - seconds_of(entry.since))}: {entry.what}")
    silent = now - max(seconds_of(operation.last_job_at), seconds_of(operation.started_at))
    if operation.HasField("last_job_at") and silent > SILENCE_S:
        return Reason(
            Mood.WAITING,
            f"{sentence}; no job has finished for {span(silent)}: they take long, or hang",
            f"see the log of {operation.runner}",
        )
    return Reason(Mood.MOVING, sentence)


def _led(text: str, to_do: str, leader: str, members: Sequence[pb.Member]) -> Reason:
    """The table's leader has to act next."""
    if leader:
        return Reason(Mood.MOVING, f"{text}; {leader} leads")
    if any(member.role == "coordinator" for member in members):
        return Reason(Mood.WAITING, f"{text}; waiting for a coordinator to lead the table and {to_do}")
    return Reason(Mood.STUCK, f"{text}; no coordinator is alive to {to_do}; start one: distop coordinator")


def held_by(pause: pb.Pause, now: float) -> str:
    """Who paused it, since when, and why."""
    by = f" by {pause.by}" if pause.by else ""
    reason = f" ({cut(pause.reason)})" if pause.reason else ""
    return f"{by} since {span(now - seconds_of(pause.at))}{reason}"


def _because(operation: pb.Operation) -> str:
    if not operation.error.code:
        return ""
    return f": {operation.error.code}: {cut(operation.error.message)}"


def cut(text: str) -> str:
    """An error, shortened to fit a sentence."""
    return shortened(text, _MAX_ERROR)


def _failing(operation: pb.Operation, now: float) -> str:
    """How its completion fails, and since when; empty: it does not."""
    completion = operation.completion
    if not (completion.attempts or completion.parked):
        return ""
    since = f" for {span(now - seconds_of(completion.since))}" if completion.HasField("since") else ""
    step = f" at step {completion.step}" if completion.step else ""
    error = f"{completion.error.code}: {cut(completion.error.message)}"
    return f" after {many(completion.attempts, 'failed attempt')}{since}{step}: {error}"


def _again(completion: pb.Completion, now: float) -> str:
    """When a failing completion is tried again, and until when."""
    if not completion.HasField("next_at"):
        return ""
    next_s, left_s = seconds_of(completion.next_at) - now, seconds_of(completion.until) - now
    return f"; tries again {f'in {span(next_s)}' if next_s > 0 else 'now'}, gives up in {span(left_s)}"


def many(count: int, noun: str, several: str = "") -> str:
    """A count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {several or noun + 's'}"
