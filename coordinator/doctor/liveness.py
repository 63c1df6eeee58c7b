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
from distop.coordinator.doctor.reading import ObservedOperation, ObservedTable
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


def check_progress(table: ObservedTable, now: float, patience: Patience) -> list[Finding]:
    """Operations of a table that do not progress.

    Parameters
    ----------
    now:
        Seconds since the Unix epoch.
    """
    findings = list(_leader(table, now, patience))
    if table.pause.exists:
        try:
            held = _held(decode(table.pause.value, PauseRecord, table.pause.key))
        except CorruptRecord:
            held = ""
        findings.append(_notice("TABLE_PAUSED", table, "", f"table {table.name!r} is paused{held}"))
    for operation in table.operations.values():
        findings += _operation(table, operation, now, patience, led=table.coordinator.exists)
    return [*findings, *_calls(table, now, patience), *_held_up(table, now)]


def _calls(table: ObservedTable, now: float, patience: Patience) -> Iterator[Finding]:
    for member in table.members.members:
        for call in member.record.calls:
            if call.table == table.name:
                yield table.finding(
                    "CALL_TAKES_LONG",
                    subject=f"{member.record.id} {call.since}",
                    persists_s=patience.hand_over_s,  # it is reported for a moment after its end
                    sentence=long_call(call.what, member.record.id, now - call.since),
                    remedy="look at what it reads; it ends with the call that needs it, or, if that is a "
                    f"batch, when the table is paused: distop table pause {table.name}",
                )


def _held_up(table: ObservedTable, now: float) -> Iterator[Finding]:
    """What executors say of the running operations; for a moment they say it of one that has ended, too."""
    running = {
        str(name): name
        for name, obstacle in table.operations.items()
        if obstacle.tracked is not None and obstacle.tracked.state == RUNNING
    }
    for member in table.members.members:
        for obstacle in member.record.held_up:
            if (operation := running.get(obstacle.operation)) is not None:
                yield table.finding(
                    "JOBS_HELD_UP",
                    operation=operation,
                    subject=f"{member.record.id} {obstacle.since}",
                    sentence=f"{obstacle.operation} does not go on at {member.record.id} for "
                    f"{span(now - obstacle.since)}: {obstacle.what}",
                    remedy="remove the cause; its jobs are tried again until then, as often as it allows",
                )


def _leader(table: ObservedTable, now: float, patience: Patience) -> Iterator[Finding]:
    active = [
        operation
        for operation in table.operations.values()
        if operation.active.exists and operation.keys_count
    ]
    if table.coordinator.exists:
        try:
            leader = decode(table.coordinator.value, LeaderRecord, table.coordinator.key).member
        except CorruptRecord:
            leader = ""
        if leader not in table.members.ids("coordinator"):
            yield table.finding(
                "LEADER_WITHOUT_MEMBER",
                subject=leader,
                persists_s=patience.hand_over_s,
                sentence=f"table {table.name!r} is led by {leader or 'an unknown process'}, "
                "which is not among the live coordinators",
                remedy="stop that process; others lead once its lease is over",
            )
    elif active or (table.backlog_index.exists and table.table.exists) or is_due(table, now):
        ready = table.members.ids("coordinator")
        waits = "a backlog" if table.backlog_index.exists else "schedules"
        work = f"{len(active)} active operations" if active else f"{waits} to process"
        yield table.finding(
            "NO_LEADER",
            persists_s=patience.hand_over_s,
            sentence=f"no coordinator leads table {table.name!r}, which has {work}",
            remedy="start a coordinator"
            if not ready
            else f"look at the logs of the coordinators ({', '.join(sorted(ready)[:3])}): leadership_failed",
        )


def _operation(
    table: ObservedTable, operation: ObservedOperation, now: float, patience: Patience, *, led: bool
) -> Iterator[Finding]:
    if operation.active.exists and not operation.state.exists and operation.keys_count:
        yield from _uncollected(table, operation, now, patience)
    tracked = operation.tracked
    if not operation.state.exists or tracked is None:
        return
    yield from _completion(table, operation, tracked.completion)
    if tracked.pause is not None:
        yield _notice(
            "OPERATION_PAUSED", table, str(operation.id), f"{operation.id} is paused{_held(tracked.pause)}"
        )
    if tracked.pause is not None or table.pause.exists:
        return
    changed_at = max(tracked.arg.started_at, operation.last_mark_at)
    quiet = now - changed_at if changed_at else 0.0
    need = _need(table, operation, tracked)
    if need in (Need.JOBS, Need.LEASE, Need.RUNNER, Need.EXECUTOR):
        yield from _jobs(table, operation, tracked, need, quiet, patience)
    elif led and quiet > patience.quiet_leader_s and not operation.word("completion").exists:
        state = tracked.state.decode(errors="replace")
        yield table.finding(
            "NO_PROGRESS",
            operation=str(operation.id),
            persists_s=patience.hand_over_s,
            sentence=f"{operation.id} is {state}, and its last job ended {span(quiet)} ago",
            remedy="look for operation_action_failed in the log of the coordinator that leads its table",
        )


def _need(table: ObservedTable, active: ObservedOperation, tracked: Tracked) -> Need:
    """What it needs; the doctor counts its jobs that have a result, and does not read what that is."""
    operation = from_tracked(tracked, table.revision)
    operation.jobs.succeeded, operation.jobs.failed = active.jobs, 0
    return need_of(operation, table.members.executors())


def _jobs(
    table: ObservedTable,
    operation: ObservedOperation,
    tracked: Tracked,
    need: Need,
    quiet: float,
    patience: Patience,
) -> Iterator[Finding]:
    """Findings while jobs are left."""
    given: dict[str, Any] = {
        "operation": str(operation.id),
        "persists_s": patience.hand_over_s,
    }
    left = f"{tracked.total - operation.jobs:,} of {tracked.total:,} jobs are left"
    left = "its jobs are left" if tracked.counting else left
    member = tracked.runner
    dead = sum(
        count for lease, count in operation.claims.items() if lease and lease not in table.members.leases()
    )
    if dead:
        yield table.finding(
            "CLAIM_WITHOUT_MEMBER",
            sentence=f"{dead:,} jobs of {operation.id} are claimed by sidecars that are not among "
            "the live members",
            remedy="nothing, unless it lasts: their leases end, and other attempts claim the jobs",
            **given,
        )
    if need is Need.EXECUTOR:
        yield table.finding(
            "NO_EXECUTOR",
            sentence=f"{operation.id} is running, {left}, and no executor serves type {operation.id.type}",
            remedy=f"start one: distop executor --type {operation.id.type}",
            **given,
        )
    elif need is Need.RUNNER and quiet > patience.quiet_leader_s:
        yield table.finding(
            "WAITING_FOR_RUNNER",
            sentence=f"{operation.id} has waited for a runner for {span(quiet)}, {left}; "
            f"{len(table.members.serving(operation.id.type))} executors serve its type",
            remedy="they may be busy (--max-operations each); start another one",
            **given,
        )
    elif need is Need.LEASE:
        yield table.finding(
            "RUNNER_WITHOUT_MEMBER",
            sentence=f"{operation.id} is run by {member}, which is not among the live executors",
            remedy="stop that process; others go on once its lease is over",
            **given,
        )
    elif need is Need.JOBS and quiet > patience.quiet_jobs_s:
        yield table.finding(
            "JOBS_QUIET",
            sentence=f"no job of {operation.id} has finished for {span(quiet)}, {left}; {member} runs it",
            remedy="its jobs take long, or hang: look at the executor's log and at Spark's page",
            **given,
        )


def _uncollected(
    table: ObservedTable, operation: ObservedOperation, now: float, patience: Patience
) -> Iterator[Finding]:
    """Findings after its end, while its keys and files exist."""
    ended_at = _ended_at(table, operation.id)
    if not ended_at or now - ended_at <= patience.quiet_leader_s:
        return
    runner = operation.word("runner")
    waits = ": its runner's key still exists" if runner.exists else ""
    yield table.finding(
        "NOT_COLLECTED",
        operation=str(operation.id),
        persists_s=patience.hand_over_s,
        sentence=f"{operation.id} ended {span(now - ended_at)} ago, and has {operation.keys_count:,} keys "
        f"left{waits}",
        remedy="stop the executor that holds it"
        if runner.exists
        else "look for operation_action_failed in the log of the coordinator that leads its table",
    )


def _ended_at(table: ObservedTable, operation: OperationId) -> float:
    kv = table.history.get(operation)
    try:
        return decode(kv.value, HistoryRecord, kv.key).finished_at if kv is not None else 0.0
    except CorruptRecord:
        return 0.0


def _completion(
    table: ObservedTable, operation: ObservedOperation, record: CompletionRecord
) -> Iterator[Finding]:
    """Findings when its completion failed, or waits for a call that may hang."""
    name, attempts = str(operation.id), record.attempts
    if record.running:
        yield _notice(
            "COMPLETION_HANGS",
            table,
            name,
            f"completing {name} waits for {record.running}, which takes long and may hang; "
            f"distop operation resolve {name} abort ends it",
        )
    if not attempts and not record.parked:
        return
    step = f" at step {record.step}" if record.step else ""
    why = f"{record.error_code or 'an error'}: {record.error or '?'}"
    if record.parked:
        yield table.finding(
            "PARKED",
            operation=name,
            sentence=f"{name} is parked after {attempts} attempts to complete it{step}: {why}",
            remedy=f"remove the cause and decide: {to_resolve(name, skippable=record.skippable)}",
        )
    else:
        yield _notice(
            "COMPLETION_FAILS",
            table,
            name,
            f"completing {name} has failed {attempts} times{step} and is retried: {why}",
        )


def _held(pause: PauseRecord) -> str:
    """Who paused it and why, to follow "paused"."""
    by = f" by {pause.by}" if pause.by else ""
    return f"{by}: {pause.reason}" if pause.reason else by


def _notice(code: str, table: ObservedTable, operation: str, sentence: str) -> Finding:
    remedy = "nothing, unless it should go on: distop table resume" if "PAUSED" in code else "nothing yet"
    return table.finding(code, operation=operation, sentence=sentence, remedy=remedy)
