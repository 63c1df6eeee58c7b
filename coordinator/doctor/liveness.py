"""Whether operations progress, and if not, why (checklist U1). Pure: a snapshot and the time in, findings
out.

Most of these are transient (a fail-over, a runner about to start), so they are reported only if they last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distop.coordinator.doctor.checks import is_due
from distop.coordinator.doctor.findings import Finding
from distop.coordinator.doctor.reading import ObservedOperation, ObservedTable
from distop.coordinator.views.messages import member_message, pause_of
from distop.coordinator.views.operations import from_tracked
from distop.coordinator.views.why import Need, held_by, long_call, need_of, span, why_operation
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import RUNNING, HistoryRecord, PauseRecord
from distop.metastore.records.record import readable

LOOK = "look for operation_action_failed in the log of the coordinator that leads its table"


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
        record = readable(table.pause.value, PauseRecord)
        held = held_by(pause_of(record, "table"), now) if record is not None else ""
        sentence = f"table {table.name!r} is paused{held}"
        remedy = f"nothing, unless it should go on: distop table resume {table.name}"
        findings.append(table.finding("TABLE_PAUSED", sentence=sentence, remedy=remedy))
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


def _leader_of(table: ObservedTable) -> str:
    """The member that leads the table; empty: none, or its record cannot be read."""
    record = readable(table.coordinator.value, LeaderRecord) if table.coordinator.exists else None
    return record.member if record is not None else ""


def _leader(table: ObservedTable, now: float, patience: Patience) -> Iterator[Finding]:
    active = [
        operation
        for operation in table.operations.values()
        if operation.active.exists and operation.keys_count
    ]
    if table.coordinator.exists:
        if (leader := _leader_of(table)) not in table.members.ids("coordinator"):
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
    changed_at = max(tracked.arg.started_at, operation.last_mark_at)
    quiet = now - changed_at if changed_at else 0.0
    message = from_tracked(tracked, table.revision)
    # The doctor counts the jobs that have a result, and does not read what that is.
    message.jobs.succeeded, message.jobs.failed = operation.jobs, 0
    if changed_at:
        message.last_job_at.FromNanoseconds(int(changed_at * 1e9))
    need = need_of(message, table.members.executors())
    members = [member_message(member.record, member.role) for member in table.members.members]
    reason = why_operation(message, _leader_of(table), members, now)
    sentence = f"table {table.name!r}: {reason.sentence}"

    def finding(code: str, *, remedy: str = reason.remedy, more: str = "", lasts: bool = True) -> Finding:
        return table.finding(
            code,
            operation=operation.id,
            persists_s=patience.hand_over_s if lasts else 0.0,
            sentence=sentence + more,
            remedy=remedy or "nothing yet",
        )

    if need in (Need.DECISION, Need.CALL) or message.completion.attempts:
        codes = {Need.DECISION: "PARKED", Need.CALL: "COMPLETION_HANGS"}
        yield finding(codes.get(need, "COMPLETION_FAILS"), lasts=False)
    if need is Need.RESUME:
        remedy = f"nothing, unless it should go on: {reason.remedy}"
        yield finding("OPERATION_PAUSED", remedy=remedy, lasts=False)
    if tracked.pause is not None or table.pause.exists:
        return
    if need in (Need.JOBS, Need.LEASE, Need.RUNNER, Need.EXECUTOR):
        yield from _claims(table, operation, patience)
    is_tried = operation.word("completion").exists
    if need is Need.EXECUTOR:
        yield finding("NO_EXECUTOR", remedy=f"start one: distop executor --type {operation.id.type}")
    elif need is Need.RUNNER and quiet > patience.quiet_leader_s:
        busy = "they may be busy (--max-operations each); start another one"
        yield finding("WAITING_FOR_RUNNER", more=f", for {span(quiet)}", remedy=busy)
    elif need is Need.LEASE:
        stop = "stop that process; others go on once its lease is over"
        yield finding("RUNNER_WITHOUT_MEMBER", remedy=stop)
    elif need is Need.JOBS and quiet > patience.quiet_jobs_s:
        yield finding("JOBS_QUIET", remedy="look at the executor's log and at Spark's page")
    elif need in (Need.LEADER, Need.UPGRADE) and led and quiet > patience.quiet_leader_s and not is_tried:
        ended = f"; its last job ended {span(quiet)} ago"
        yield finding("NO_PROGRESS", more=ended, remedy=LOOK)


def _claims(table: ObservedTable, operation: ObservedOperation, patience: Patience) -> Iterator[Finding]:
    """Jobs that nobody runs, as long as some are left."""
    leases = table.members.leases()
    dead = sum(count for lease, count in operation.claims.items() if lease and lease not in leases)
    if dead:
        yield table.finding(
            "CLAIM_WITHOUT_MEMBER",
            operation=operation.id,
            persists_s=patience.hand_over_s,
            sentence=f"{dead:,} jobs of {operation.id} are claimed by sidecars that are not among "
            "the live members",
            remedy="nothing, unless it lasts: their leases end, and other attempts claim the jobs",
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
        remedy="stop the executor that holds it" if runner.exists else LOOK,
    )


def _ended_at(table: ObservedTable, operation: OperationId) -> float:
    kv = table.history.get(operation)
    record = readable(kv.value, HistoryRecord) if kv is not None else None
    return record.finished_at if record is not None else 0.0
