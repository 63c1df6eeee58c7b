"""``distop operation``: start, list, show, follow and end operations, whatever their type."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import typer

from distop.cli.options.bundles import Bundle, command
from distop.cli.options.parsing import parse_assignments, parse_duration, parse_limit, parse_since
from distop.cli.options.session import (
    Connected,
    JsonArgument,
    Limit,
    Reason,
    Session,
    TableName,
    TypeName,
    Wait,
    complete_operation,
    complete_table,
    complete_type,
    page_size,
)
from distop.cli.output.base import Output
from distop.client import (
    Client,
    FollowUp,
    Operation,
    OperationHandle,
    OperationState,
    OperationUpdate,
    StartOptions,
)
from distop.errors import AlreadyIngested, InvalidArgument, PreconditionFailed

group = typer.Typer()


class State(StrEnum):
    """The states that operations can be found by: those of the client that this version knows."""

    RUNNING = "running"
    COMMITTING = "committing"
    ABORTING = "aborting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


Name = Annotated[
    str,
    typer.Argument(metavar="OPERATION", help="Such as flights/ingest/17.", autocompletion=complete_operation),
]


@dataclass
class HowToStart:
    """How to start an operation."""

    deadline: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Abort the operation after this time, such as 10m."),
    ] = None
    attempts: Annotated[
        int | None,
        typer.Option(min=1, max=100, help="Attempts at one job (default: as its type says, 3)."),
    ] = None
    backoff: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Back-off before a job's retry, doubled each time up to 30s "
            "(default: as its type says, 100ms).",
        ),
    ] = None
    attempt_timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Timeout of one attempt; it then counts as failed."),
    ] = None
    max_failed: Annotated[
        str,
        typer.Option(
            metavar="N|any", help="How many jobs may fail; the results of the others are published."
        ),
    ] = "0"
    retry_for: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long its completion is tried again while it fails, before it is parked "
            "(default: as its type says, 30m); 0: not at all.",
        ),
    ] = None
    then: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            help="Start this on the table in the transaction that publishes its result.",
            autocompletion=complete_type,
        ),
    ] = ""
    then_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Part of the argument of --then. Repeatable."),
    ] = None
    then_object: Annotated[str, typer.Option(metavar="NAME", help="The object of --then.")] = ""
    run: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Names this run, so that the command may be repeated: only a failed operation starts again.",
        ),
    ] = None
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="With --run: if it has succeeded, run it anew, in place of the rows of that run.",
        ),
    ] = False
    if_new: Annotated[bool, typer.Option("--if-new", help="Succeed if the source was ingested already.")] = (
        False
    )
    wait: Wait = False

    def __post_init__(self) -> None:
        if not self.then and (self.then_arg or self.then_object):
            raise InvalidArgument("--then-arg and --then-object belong to --then", details={"field": "then"})
        argument = parse_assignments(self.then_arg or ())
        then = FollowUp(type=self.then, argument=argument, object=self.then_object)
        self._given: StartOptions = {
            "deadline_s": parse_duration(self.deadline, "deadline"),
            "max_job_attempts": self.attempts,
            "job_backoff_s": parse_duration(self.backoff, "backoff"),
            "attempt_timeout_s": parse_duration(self.attempt_timeout, "attempt_timeout"),
            "max_failed_partitions": parse_limit(self.max_failed, "max_failed"),
            "retry_for_s": parse_duration(self.retry_for, "retry_for"),
            "then": then if self.then else None,
            "again": self.again,
        }

    def given(self, *, run: str | None = None) -> StartOptions:
        """The options of a start. ``run``: the name of its run, if none was given."""
        run = self.run or run
        if self.again and not run:
            raise InvalidArgument("--again belongs to --run", details={"field": "again"})
        return {**self._given, "run": run}


Starting = Annotated[HowToStart, Bundle(HowToStart)]


@command(group)
def start(
    argument: JsonArgument,
    options: Starting,
    session: Connected,
    table: TableName,
    type: TypeName,
    object: Annotated[
        str, typer.Option(metavar="NAME", help="For types with one operation per object, such as an index.")
    ] = "",
    partition: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this partition. Repeatable.")
    ] = None,
) -> None:
    """Start an operation on a table.

    Example: distop operation start hits access_logs --arg folder=/data/logs --deadline 10m --wait
    """
    how = options.given() | {"object": object, "partitions": partition or ()}
    follow_started(session, options, lambda: session.client.start(table, type, argument, **how))


@command(group, "list")
def list_operations(
    session: Connected,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Only of this table.", autocompletion=complete_table)
    ] = "",
    state: Annotated[list[State] | None, typer.Option(help="Only in this state. Repeatable.")] = None,
    type: Annotated[
        str, typer.Option(metavar="TYPE", help="Only of this type.", autocompletion=complete_type)
    ] = "",
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|DURATION",
            help="Only those that run or have ended since then, such as 2h, sorted by time.",
        ),
    ] = None,
    limit: Limit = 100,
) -> None:
    """List operations, running and finished, the newest of a table first.

    Example: distop operation list --since 24h --state failed
    """
    begin = parse_since(since, "since") if since is not None else None

    states = [OperationState(name) for name in state or ()]
    size = page_size(limit)
    matching = session.client.operations(table, type=type, states=states, since=begin, page_size=size)
    session.listed("operations", matching, limit)


@command(group)
def show(
    session: Connected,
    operation: Name,
    events: Annotated[
        bool, typer.Option("--events", help="Show also what has happened to it, from its start to its end.")
    ] = False,
) -> None:
    """Show one operation.

    Example: distop operation show flights/ingest/17 --events
    """
    session.out.show(session.client.operation(operation).get(events=events))


@command(group)
def logs(session: Connected, operation: Name) -> None:
    """Show what user code in an operation has printed and logged, and the stack traces of what it raised: in
    its jobs, and in its completion.

    Some are stored, in the storage of the table: those of ten jobs that failed, and of ten others that have
    written something.

    Example: distop operation logs flights/ingest/17
    """
    session.listed("traces", iter(session.client.operation(operation).logs()), 0)


@command(group)
def watch(session: Connected, operation: Name) -> None:
    """Follow an operation to its end; Ctrl-C leaves it running. Exits with code 23 if it is parked.

    With --output json: one document per line for every change.

    Example: distop operation watch flights/ingest/17
    """
    with _leaving_it_running(session, operation):
        ended = session.out.updates(until_settled(session.client, session.out, operation))
    ended.raise_for_outcome()


@command(group)
def cancel(
    session: Connected,
    operation: Name,
    reason: Reason = "",
    wait: Wait = False,
) -> None:
    """Cancel an operation.

    With --wait, fails if the operation ended in another way before it could be cancelled.

    Example: distop operation cancel flights/ingest/17 --reason 'wrong folder' --wait
    """
    asked = session.client.operation(operation).cancel(reason)
    if not wait or asked.done:
        session.out.show(asked)
        if asked.done:
            _check_cancelled(asked)
        return
    with _leaving_it_running(session, operation):
        ended = session.out.progress(until_settled(session.client, session.out, operation))
    if ended.parked:
        ended.raise_for_outcome()
    _check_cancelled(ended)


@command(group)
def pause(session: Connected, operation: Name, reason: Reason = "") -> None:
    """Pause an operation: finished work stays, no new jobs are launched, and nothing is published.

    Its deadline keeps counting. Idempotent: the first reason stays.

    Example: distop operation pause flights/ingest/17
    """
    session.out.show(session.client.operation(operation).pause(reason))


@command(group)
def resume(session: Connected, operation: Name, reason: Reason = "") -> None:
    """Resume a paused operation. Idempotent.

    Example: distop operation resume flights/ingest/17
    """
    session.out.show(session.client.operation(operation).resume(reason))


@command(group)
def resolve(
    session: Connected,
    operation: Name,
    action: Annotated[
        Literal["retry", "skip", "abort"],
        typer.Argument(
            help="retry: try again. skip: skip the commit step that fails. abort: end the operation and undo "
            "what can be undone.",
        ),
    ],
    reason: Reason = "",
    wait: Wait = False,
) -> None:
    """Decide about an operation whose completion fails, whether it is parked or still tried again.

    Example: distop operation resolve flights/ingest/17 retry --wait
    """
    handle = session.client.operation(operation)
    {"retry": handle.retry, "skip": handle.skip, "abort": handle.abort}[action](reason)
    if not wait:
        session.out.show(handle.get())
        return
    with _leaving_it_running(session, operation):
        ended = session.out.progress(until_settled(session.client, session.out, operation))
    if action != "abort" or ended.parked:
        ended.raise_for_outcome()


def follow_started(session: Session, options: HowToStart, start: Callable[[], OperationHandle]) -> None:
    """Start an operation; show it, or follow it to its end."""
    try:
        started = start().started
    except AlreadyIngested as error:
        if not options.if_new:
            raise
        session.out.facts("nothing to do", {"code": error.code, "message": error.message})
        return
    show_started(session, started, wait=options.wait)


def show_started(session: Session, started: Operation, *, wait: bool) -> None:
    """Show an operation that was started, or follow it to its end."""
    if not wait:
        session.out.started(started)
        return
    with _leaving_it_running(session, started.name):
        ended = session.out.progress(until_settled(session.client, session.out, started.name))
    ended.raise_for_outcome()


def _check_cancelled(operation: Operation) -> None:
    if operation.state.value != "cancelled":
        raise PreconditionFailed(
            f"{operation.name} was not cancelled: it had already {operation.state.value}",
            details={"operation": operation.name},
        )


@contextmanager
def _leaving_it_running(session: Session, name: str) -> Iterator[None]:
    """Prints on Ctrl-C that the operation goes on."""
    try:
        yield
    except KeyboardInterrupt:
        session.out.note(f"{name} goes on: distop operation watch {name}")
        raise


LOOK_EVERY_S = 5.0
"""Interval between requests for the reason why an operation does not begin."""


def until_settled(client: Client, out: Output, name: str) -> Iterator[OperationUpdate]:
    """The updates of an operation until it ends or is parked; a parked one needs a decision to end."""
    latest: list[Operation] = []
    over = threading.Event()
    threading.Thread(target=_say_why, args=(client, out, latest, over), daemon=True).start()
    try:
        for update in client.operation(name).watch():
            latest[:] = [update.operation]
            yield update
            if update.operation.parked:
                return
    finally:
        over.set()


def _say_why(client: Client, out: Output, latest: list[Operation], over: threading.Event) -> None:
    """While no executor runs the operation, print why its table does not move; each reason once."""
    printed = ""
    while not over.wait(LOOK_EVERY_S):
        if not latest or latest[0].runner or latest[0].done:
            continue
        try:
            why = client.table(latest[0].table).why()
        except Exception:  # the follower reports outages, and the client may be closed
            continue
        if why.mood in ("waiting", "stuck") and why.sentence != printed and not over.is_set():
            printed = why.sentence
            out.note(f"{latest[0].table}: {printed}")
