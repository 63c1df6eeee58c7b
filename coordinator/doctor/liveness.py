"""Whether operations progress, and if not, why (checklist U1). Pure: a snapshot and the time in, findings
out.

Most of these are transient (a fail-over, a runner about to start), so they are reported only if they last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from distop.coordinator.doctor.checks import is_due
from distop.coordinator.doctor.findings import Finding
from distop.coordinator.doctor.reading import OperationSeen, TableSeen
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.views.operations import from_tracked
from distop.coordinator.views.why import Need, long_call, need_of, span, to_resolve
from distop.errors import CorruptRecord
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import RUNNING, CompletionRecord, HistoryRecord, PauseRecord
from distop.metastore.records.record import decode


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long transient states may last, in seconds."""

    hand_over_s: float = 10.0
    """Without a leader or a runner: the TTL of a lease (5 s), plus a margin."""
    quiet_jobs_s: float = 900.0
    """Without a job that finishes, while a runner works."""
    quiet_leader_s: float = 120.0
    """Between the last job and the end, and between the end and the last key."""


def check_progress(seen: TableSeen, now: float, patience: Patience) -> list[Finding]:
    """Operations of a table that do not progress.

    Parameters
    ----------
    now:
        Seconds since the Unix epoch.
    """
    found = list(_leader(seen, now, patience))
    if seen.pause.exists:
        try:
            held = _held(decode(seen.pause.value, PauseRecord, seen.pause.key))
        except CorruptRecord:
            held = ""
        found.append(_notice("TABLE_PAUSED", seen, "", f"table {seen.name!r} is paused{held}"))
    for one in seen.operations.values():
        found += _operation(seen, one, now, patience, led=seen.coordinator.exists)
    return [*found, *_calls(seen, now, patience), *_held_up(seen, now)]


def _calls(seen: TableSeen, now: float, patience: Patience) -> Iterator[Finding]:
    for member in seen.members.members:
        for call in member.record.calls:
            if call.table == seen.name:
                yield seen.finding(
                    "CALL_TAKES_LONG",
                    subject=f"{member.record.id} {call.since}",
                    persists_s=patience.hand_over_s,  # it is reported for a moment after its end
                    sentence=long_call(call.what, member.record.id, now - call.since),
                    remedy="look at what it reads; it ends with the call that needs it, or, if that is a "
                    f"batch, when the table is paused: distop pause {seen.name}",
                )


def _held_up(seen: TableSeen, now: float) -> Iterator[Finding]:
    """What executors say of the running operations; for a moment they say it of one that has ended, too."""
    running = {
        str(name): name
        for name, one in seen.operations.items()
        if one.tracked is not None and one.tracked.state == RUNNING
    }
    for member in seen.members.members:
        for one in member.record.held_up:
            if (operation := running.get(one.operation)) is not None:
                yield seen.finding(
                    "JOBS_HELD_UP",
                    operation=operation,
                    subject=f"{member.record.id} {one.since}",
                    sentence=f"{one.operation} does not go on at {member.record.id} for "
                    f"{span(now - one.since)}: {one.what}",
                    remedy="remove the cause; its jobs are tried again until then, as often as it allows",
                )


def _leader(seen: TableSeen, now: float, patience: Patience) -> Iterator[Finding]:
    active = [one for one in seen.operations.values() if one.active.exists and one.keys_count]
    if seen.coordinator.exists:
        try:
            leader = decode(seen.coordinator.value, LeaderRecord, seen.coordinator.key).member
        except CorruptRecord:
            leader = ""
        if leader not in seen.members.ids("coordinator"):
            yield seen.finding(
                "LEADER_WITHOUT_MEMBER",
                subject=leader,
                persists_s=patience.hand_over_s,
                sentence=f"table {seen.name!r} is led by {leader or 'an unknown process'}, "
                "which is not among the live coordinators",
                remedy="stop that process; others lead once its lease is over",
            )
    elif active or (seen.backlog_index.exists and seen.table.exists) or is_due(seen, now):
        ready = seen.members.ids("coordinator")
        waits = "a backlog" if seen.backlog_index.exists else "schedules"
        what = f"{len(active)} active operations" if active else f"{waits} to process"
        yield seen.finding(
            "NO_LEADER",
            persists_s=patience.hand_over_s,
            sentence=f"no coordinator leads table {seen.name!r}, which has {what}",
            remedy="start a coordinator"
            if not ready
            else f"look at the logs of the coordinators ({', '.join(sorted(ready)[:3])}): leadership_failed",
        )


def _operation(
    seen: TableSeen, one: OperationSeen, now: float, patience: Patience, *, led: bool
) -> Iterator[Finding]:
    if one.active.exists and not one.state.exists and one.keys_count:
        yield from _uncollected(seen, one, now, patience)
    tracked = one.tracked
    if not one.state.exists or tracked is None:
        return
    yield from _completion(seen, one, tracked.completion)
    if tracked.pause is not None:
        yield _notice("OPERATION_PAUSED", seen, str(one.id), f"{one.id} is paused{_held(tracked.pause)}")
    if tracked.pause is not None or seen.pause.exists:
        return
    changed_at = max(tracked.arg.started_at, one.last_mark_at)
    quiet = now - changed_at if changed_at else 0.0
    need = _need(seen, one, tracked)
    if need in (Need.JOBS, Need.LEASE, Need.RUNNER, Need.EXECUTOR):
        yield from _jobs(seen, one, tracked, need, quiet, patience)
    elif led and quiet > patience.quiet_leader_s and not one.word("completion").exists:
        state = tracked.state.decode(errors="replace")
        yield seen.finding(
            "NO_PROGRESS",
            operation=str(one.id),
            persists_s=patience.hand_over_s,
            sentence=f"{one.id} is {state}, and its last job ended {span(quiet)} ago",
            remedy="look for operation_action_failed in the log of the coordinator that leads its table",
        )


def _need(seen: TableSeen, one: OperationSeen, tracked: Tracked) -> Need:
    """What it needs; the doctor counts its jobs that have a result, and does not read what that is."""
    operation = from_tracked(tracked, seen.revision)
    operation.jobs.succeeded, operation.jobs.failed = one.jobs, 0
    return need_of(operation, seen.members.executors())


def _jobs(
    seen: TableSeen, one: OperationSeen, tracked: Tracked, need: Need, quiet: float, patience: Patience
) -> Iterator[Finding]:
    """Findings while jobs are left."""
    given: dict[str, Any] = {
        "operation": str(one.id),
        "persists_s": patience.hand_over_s,
    }
    left = f"{tracked.total - one.jobs:,} of {tracked.total:,} jobs are left"
    left = "its jobs are left" if tracked.counting else left
    member = tracked.runner
    dead = sum(count for lease, count in one.claims.items() if lease and lease not in seen.members.leases())
    if dead:
        yield seen.finding(
            "CLAIM_WITHOUT_MEMBER",
            sentence=f"{dead:,} jobs of {one.id} are claimed by sidecars that are not among the live members",
            remedy="nothing, unless it lasts: their leases end, and other attempts claim the jobs",
            **given,
        )
    if need is Need.EXECUTOR:
        yield seen.finding(
            "NO_EXECUTOR",
            sentence=f"{one.id} is running, {left}, and no executor serves type {one.id.type}",
            remedy=f"start one: distop executor --type {one.id.type}",
            **given,
        )
    elif need is Need.RUNNER and quiet > patience.quiet_leader_s:
        yield seen.finding(
            "WAITING_FOR_RUNNER",
            sentence=f"{one.id} has waited for a runner for {span(quiet)}, {left}; "
            f"{len(seen.members.serving(one.id.type))} executors serve its type",
            remedy="they may be busy (--max-operations each); start another one",
            **given,
        )
    elif need is Need.LEASE:
        yield seen.finding(
            "RUNNER_WITHOUT_MEMBER",
            sentence=f"{one.id} is run by {member}, which is not among the live executors",
            remedy="stop that process; others go on once its lease is over",
            **given,
        )
    elif need is Need.JOBS and quiet > patience.quiet_jobs_s:
        yield seen.finding(
            "JOBS_QUIET",
            sentence=f"no job of {one.id} has finished for {span(quiet)}, {left}; {member} runs it",
            remedy="its jobs take long, or hang: look at the executor's log and at Spark's page",
            **given,
        )


def _uncollected(seen: TableSeen, one: OperationSeen, now: float, patience: Patience) -> Iterator[Finding]:
    """Findings after its end, while its keys and files exist."""
    ended_at = _ended_at(seen, one.id)
    if not ended_at or now - ended_at <= patience.quiet_leader_s:
        return
    runner = one.word("runner")
    waits = ": its runner's key still exists" if runner.exists else ""
    yield seen.finding(
        "NOT_COLLECTED",
        operation=str(one.id),
        persists_s=patience.hand_over_s,
        sentence=f"{one.id} ended {span(now - ended_at)} ago, and has {one.keys_count:,} keys left{waits}",
        remedy="stop the executor that holds it"
        if runner.exists
        else "look for operation_action_failed in the log of the coordinator that leads its table",
    )


def _ended_at(seen: TableSeen, operation: OperationId) -> float:
    kv = seen.history.get(operation)
    try:
        return decode(kv.value, HistoryRecord, kv.key).finished_at if kv is not None else 0.0
    except CorruptRecord:
        return 0.0


def _completion(seen: TableSeen, one: OperationSeen, record: CompletionRecord) -> Iterator[Finding]:
    """Findings when its completion failed, or waits for a call that may hang."""
    attempts = record.attempts
    if record.running:
        yield _notice(
            "COMPLETION_HANGS",
            seen,
            str(one.id),
            f"completing {one.id} waits for {record.running}, which takes long and may hang; distop resolve "
            f"{one.id} abort ends it",
        )
    if not attempts and not record.parked:
        return
    step = f" at step {record.step}" if record.step else ""
    why = f"{record.error_code or 'an error'}: {record.error or '?'}"
    if record.parked:
        yield seen.finding(
            "PARKED",
            operation=str(one.id),
            sentence=f"{one.id} is parked after {attempts} attempts to complete it{step}: {why}",
            remedy=f"remove the cause and decide: {to_resolve(str(one.id), skippable=record.skippable)}",
        )
    else:
        yield _notice(
            "COMPLETION_FAILS",
            seen,
            str(one.id),
            f"completing {one.id} has failed {attempts} times{step} and is retried: {why}",
        )


def _held(pause: PauseRecord) -> str:
    """Who paused it and why, to follow "paused"."""
    by = f" by {pause.by}" if pause.by else ""
    return f"{by}: {pause.reason}" if pause.reason else by


def _notice(code: str, seen: TableSeen, operation: str, sentence: str) -> Finding:
    remedy = "nothing, unless it should go on: distop resume" if "PAUSED" in code else "nothing yet"
    return seen.finding(code, operation=operation, sentence=sentence, remedy=remedy)
