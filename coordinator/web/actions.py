"""What can be done from the page: a call of the API for each action, derived from the state of its object.

An action that the state does not allow does not exist. It has the words that ask back, the equal command, and
what it was decided on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from google.protobuf.message import Message

from distop.coordinator.schedules.times import MADE_UP_S
from distop.coordinator.views.messages import state_of, state_of_batch
from distop.coordinator.views.why import seconds_of
from distop.proto import distop_pb2 as pb
from distop.proto.commands import command
from distop.proto.json_text import to_json

BY = "page"
"""The caller's name, unless one is verified."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One kind of action, in words."""

    of: str
    """``operation``, ``table``, ``snapshot``, ``gate``, ``batch`` or ``schedule``."""
    label: str
    meaning: str
    """What follows from it, in one or two sentences."""
    done: str
    typed: bool = False
    """Whether the name has to be typed: something is removed or rolled back."""


VERBS = {
    "cancel": Verb(
        "operation",
        "Cancel",
        "Its jobs are stopped, and nothing of it is published.",
        "Its cancellation is requested.",
    ),
    "pause": Verb(
        "operation",
        "Pause",
        "It launches no jobs and is not published until it is resumed. Its deadline goes on.",
        "It is paused.",
    ),
    "resume": Verb("operation", "Resume", "It goes on where it was paused.", "It is resumed."),
    "retry": Verb(
        "operation", "Retry", "Its completion is tried again at once, and counted anew.", "It is tried again."
    ),
    "skip": Verb(
        "operation",
        "Skip",
        "The commit step that fails is left out, and what comes after it is done.",
        "The step is skipped.",
        typed=True,
    ),
    "abort": Verb(
        "operation",
        "Abort",
        "It fails, and its steps are undone where that is possible.",
        "It is aborted.",
        typed=True,
    ),
    "pause-table": Verb(
        "table",
        "Pause",
        "It starts nothing, and its running operations are paused, too.",
        "The table is paused.",
    ),
    "resume-table": Verb(
        "table",
        "Resume",
        "It starts operations again. Those that were paused themselves stay paused.",
        "The table is resumed.",
    ),
    "compact-table": Verb(
        "table",
        "Compact",
        "Small files are rewritten into large ones. No row changes.",
        "The operation has started.",
    ),
    "expire": Verb(
        "table",
        "Expire snapshots",
        "Snapshots that are older than 3 days are removed for good, with the files that only they refer to.",
        "The operation has started.",
        typed=True,
    ),
    "find-orphans": Verb(
        "table",
        "Find orphans",
        "Files below the table's location that nothing refers to are counted. Nothing is removed.",
        "The operation has started.",
    ),
    "remove-orphans": Verb(
        "table",
        "Remove orphans",
        "Files below the table's location that are older than 3 days, and that nothing refers to, are "
        "removed for good.",
        "The operation has started.",
        typed=True,
    ),
    "roll-back": Verb(
        "snapshot",
        "Roll back",
        "The snapshot becomes the current one, and watermarks are restored: what came later leaves "
        "the table.",
        "The rollback has started.",
        typed=True,
    ),
    "close-gate": Verb(
        "gate", "Close", "Ordered batches are collected: none is applied until it is opened.", "It is closed."
    ),
    "open-gate": Verb("gate", "Open", "The collected batches are applied, in their order.", "It is open."),
    "approve-batch": Verb(
        "batch",
        "Approve",
        "If it is on a branch, it is published. The next batch follows.",
        "It is approved.",
    ),
    "retry-batch": Verb("batch", "Retry", "It is tried again.", "It is tried again."),
    "skip-batch": Verb(
        "batch",
        "Skip",
        "It is never applied, and the batches behind it are.",
        "It is skipped.",
        typed=True,
    ),
    "remove-batch": Verb(
        "batch",
        "Remove",
        "It leaves the backlog, as if it had never been published.",
        "It is removed.",
        typed=True,
    ),
    "replace-batch": Verb(
        "batch",
        "Replace",
        "Its source is read again, in place of the rows that it has added. What came later stays.",
        "It is queued.",
    ),
    "pause-schedule": Verb(
        "schedule", "Pause", "It starts nothing until it is resumed.", "The schedule is paused."
    ),
    "resume-schedule": Verb(
        "schedule",
        "Resume",
        "It starts operations again. Missed times are not made up for.",
        "It is resumed.",
    ),
    "run-schedule": Verb(
        "schedule",
        "Run",
        "The operation of its last time is started, unless it runs or has succeeded.",
        "The operation has started.",
    ),
}


@dataclass(frozen=True, slots=True)
class Action:
    """One action that the state of its object allows."""

    do: str
    """Its kind, a key of :data:`VERBS`."""
    request: Message
    """What is sent to the API."""
    name: str
    """The operation or table."""
    state: str
    """What it was decided on, in words."""
    incarnation: str
    """Distinguishes the object from others of its name."""
    item: str = ""
    """The snapshot, batch or schedule of the table."""
    line: str = ""
    """Its command, if that has more than these names."""

    @property
    def verb(self) -> Verb:
        return VERBS[self.do]

    @property
    def method(self) -> str:
        """The call, such as ``OperationService/CancelOperation``."""
        method = self.request.DESCRIPTOR.name.removesuffix("Request")
        return f"{_SERVICES[method]}/{method}"

    @property
    def command(self) -> str:
        """The equal command."""
        return self.line or command(self.do, *filter(None, (self.name, self.item)))

    @property
    def object(self) -> str:
        """What is to be typed: the object's own name; of a snapshot that of its table."""
        return self.item if self.verb.of in ("batch", "schedule") else self.name


_SERVICES = {
    method.name: service.name
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def of_operation(operation: pb.Operation) -> Iterator[Action]:
    """What can be done about an operation."""
    name, completion = operation.name, operation.completion
    own_pause = operation.HasField("pause") and operation.pause.scope == "operation"
    state = state_of(operation)
    state += ", paused" if own_pause else ""
    state += f", {completion.error.code} at {completion.step or 'its end'}" if completion.error.code else ""
    incarnation = f"{operation.run} {operation.started_at.ToNanoseconds()}"
    action = partial(Action, name=name, state=state, incarnation=incarnation)
    if operation.state == pb.RUNNING:
        if own_pause:
            yield action("resume", pb.ResumeOperationRequest(name=name))
        elif not operation.cancel_requested:
            yield action("pause", pb.PauseOperationRequest(name=name))
        if not operation.cancel_requested:
            yield action("cancel", pb.CancelOperationRequest(name=name))
    elif operation.state == pb.COMMITTING:
        failing = completion.parked or completion.attempts > 0
        possible = {"retry": failing, "skip": failing and completion.skippable}
        possible["abort"] = failing or bool(completion.running)
        for do in (do for do, allowed in possible.items() if allowed):
            yield action(do, pb.ResolveOperationRequest(name=name, action=do))


def of_table(table: pb.Table) -> Iterator[Action]:
    """What can be done with a whole table."""
    name, paused = table.name, table.HasField("pause")
    state = "paused" if paused else "not paused"
    action = partial(Action, name=name, state=state, incarnation=table.uuid)
    if paused:
        yield action("resume-table", pb.ResumeTableRequest(name=name))
        return
    yield action("pause-table", pb.PauseTableRequest(name=name))
    if table.format == "iceberg" and table.snapshot_id:
        for do, (type, argument) in MAINTENANCE.items():
            yield action(do, _start(table, type, argument))


MAINTENANCE: dict[str, tuple[str, dict[str, object]]] = {
    "compact-table": ("compact", {}),
    "expire": ("expire_snapshots", {}),
    "find-orphans": ("remove_orphans", {}),
    "remove-orphans": ("remove_orphans", {"dry_run": False}),
}
"""The types that look after a table, and their arguments."""


def _start(table: pb.Table, type: str, argument: dict[str, object]) -> pb.StartOperationRequest:
    return pb.StartOperationRequest(table=table.name, type=type, argument_json=to_json(argument, "argument"))


def of_snapshot(table: pb.Table, snapshot: str) -> Iterator[Action]:
    """What can be done with a snapshot of a table, by its id."""
    if table.format == "iceberg" and not table.HasField("pause") and snapshot != str(table.snapshot_id):
        request = _start(table, "rollback", {"snapshot": snapshot})
        state = f"at snapshot {table.snapshot_id}"
        yield Action("roll-back", request, table.name, state, table.uuid, item=snapshot)


def of_gate(table: pb.Table) -> Iterator[Action]:
    """What can be done with the gate of a table's backlog."""
    name, ordering = table.name, table.ordering
    if ordering.gate == "closed":
        request = pb.ControlBacklogRequest(table=name, action="open")
        held = f" by {ordering.held_by}" if ordering.held_by else ""
        yield Action("open-gate", request, name, f"closed{held}", table.uuid)
    else:
        yield Action("close-gate", pb.SetOrderingRequest(table=name, gate="closed"), name, "open", table.uuid)


def of_batch(batch: pb.Batch, ordering: pb.Ordering) -> Iterator[Action]:
    """What can be done with a batch; nothing with one that cannot be read."""
    if not batch.state:
        return
    table, name, state = ordering.table, batch.name, state_of_batch(batch, ordering)
    staged = ordering.staged if ordering.HasField("staged") and ordering.staged.batch == name else None
    words = [state, batch.error.code, batch.operation]
    words += [staged.branch, staged.snapshot] if staged is not None else []
    action = partial(
        Action,
        name=table,
        item=name,
        state=", ".join(filter(None, words)),
        incarnation=str(batch.queued_at.ToNanoseconds()),
    )

    def decision(verb: str, branch: str = "") -> pb.ControlBacklogRequest:
        return pb.ControlBacklogRequest(table=table, batch=name, action=verb, branch=branch)

    if state == "approval":
        branch = staged.branch if staged is not None else ""
        line = command("approve-branch", table, name, branch) if branch else ""
        yield action("approve-batch", decision("approve", branch), line=line)
    if state == "failed" or (staged is not None and not ordering.running):
        yield action("retry-batch", decision("retry"))
        yield action("skip-batch", decision("skip"))
    if batch.state in ("waiting", "failed") and not batch.operation:
        yield action("remove-batch", decision("remove"))
    if batch.state == "applied" and batch.type:
        request = pb.EnqueueBatchRequest(table=table, batch=name, type=batch.type, replace=True)
        yield action("replace-batch", request)


def of_schedule(schedule: pb.Schedule, now: float) -> Iterator[Action]:
    """What can be done with a schedule at this time, in seconds since the Unix epoch."""
    table, name, paused = schedule.table, schedule.name, schedule.HasField("pause")
    last = seconds_of(schedule.last_at)
    tick = datetime.fromtimestamp(last, UTC).isoformat()
    action = partial(
        Action,
        name=table,
        item=name,
        state=f"{'paused' if paused else 'not paused'}, last time {tick if last else 'never'}",
        incarnation=str(schedule.added_at.ToNanoseconds()),
    )
    verb = "resume" if paused else "pause"
    yield action(f"{verb}-schedule", pb.ControlScheduleRequest(table=table, name=name, action=verb))
    if schedule.cron and last > now - MADE_UP_S:
        request = pb.RunScheduleRequest(table=table, name=name, tick=tick)
        yield action("run-schedule", request, line=command("run-schedule", table, name, tick))
