"""Reads for the page, through the same services that answer gRPC calls, shared by several requests.

Every view is bounded: tables, operations and lines of history have limits. What changes rarely (names of
tables, history, watermarks) is cached for some seconds; running operations are followed. Many open pages cost
etcd as much as one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from google.protobuf.message import Message

from distop.coordinator.access.callers import caller
from distop.coordinator.api.backlog import BacklogService
from distop.coordinator.api.cluster import ClusterService
from distop.coordinator.api.operations import OperationService
from distop.coordinator.api.schedules import ScheduleService
from distop.coordinator.api.tables import TableService
from distop.coordinator.starting.services import Services
from distop.coordinator.state.grid import CLAIMED, FAILED, SUCCEEDED, WAITING, JobGrid, Outcomes
from distop.coordinator.views.following import Following
from distop.coordinator.views.listing import LOOKED, MAX_PAGE, first_tables
from distop.coordinator.views.operations import from_ended, not_found, read_finished
from distop.coordinator.views.tables import with_schedules
from distop.coordinator.views.why import Mood, Need, Reason, executors_among, need_of, short_name, why
from distop.coordinator.web.charts import first_shown
from distop.coordinator.work.work import Work
from distop.errors import CorruptRecord, DistopError, InvalidArgument, Unavailable, as_distop
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import within
from distop.metastore.etcd.txn import Get, named
from distop.metastore.operations.jobs import read_tries
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.names import OperationId, check_name, prefix_end
from distop.metastore.records.operation import ClaimRecord, JobRecord, RunnerRecord
from distop.metastore.records.record import decode
from distop.proto import distop_pb2 as pb

STATES = {"waiting": WAITING, "running": CLAIMED, "done": SUCCEEDED, "failed": FAILED}
"""The states of a job, and the cell of each in a grid. Only exclusive jobs are ever ``running``."""

JOBS = 30
"""Jobs on one page: each takes three reads, and all of them are one request."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of an operation, as a page shows it."""

    partition: str
    state: str
    """One of :data:`STATES`."""
    attempts: int = 0
    """Those that have begun, as far as it is known: the failed ones, and the one with a result or a claim."""
    member: str = ""
    """Who runs it, or has run it, as far as the keys say: of a claim the sidecar; of a result the executor,
    as long as that runs the operation."""
    at: float = 0.0
    """When it finished, by the clock of its executor, in seconds since the epoch; 0: it has not."""
    error: str = ""
    """Of a failed one why; of another one why its last attempt failed."""


async def read_jobs(
    client: EtcdClient, keys: OperationKeys, grid: JobGrid, *, state: str = "", start: int = 0
) -> tuple[list[Job], int]:
    """The first jobs in a state (empty: in any) from a position of the plan on, and the position behind
    them; 0 at the end."""
    cells, after = grid.some(STATES.get(state, ""), start, JOBS)
    names = [partition for partition, _ in cells]
    wanted = [(keys.job_state(name), keys.claim(name), keys.tries(name)) for name in names]
    read = await client.read_many([*(Get(key) for job in wanted for key in job), Get(keys.runner)])
    kvs = [
        [read.single(3 * number + at, key) for at, key in enumerate(job)] for number, job in enumerate(wanted)
    ]
    runner = read.single(3 * len(wanted), keys.runner)
    tries = await read_tries(client, keys, (tried for _, _, tried in kvs if tried.exists))
    words = {cell: word for word, cell in STATES.items()}
    jobs = []
    for (name, cell), (ended, claimed, _) in zip(cells, kvs, strict=True):
        failed = tries[name].tries if name in tries else 0
        job = Job(name, words[cell], failed, error=tries[name].error if name in tries else "")
        try:
            if ended.exists and cell in (SUCCEEDED, FAILED):
                record = decode(ended.value, JobRecord, ended.key)
                # An attempt begins with the token of its run, which is when its executor took the operation.
                is_present = runner.exists and record.attempt.startswith(f"{runner.create_revision}-")
                member = decode(runner.value, RunnerRecord, runner.key).member if is_present else ""
                error = record.error or job.error
                job = Job(name, words[cell], failed + 1, member, record.at, error)
            elif claimed.exists:
                member = decode(claimed.value, ClaimRecord, claimed.key).member
                job = Job(name, words[cell], failed + 1, member, error=job.error)
        except CorruptRecord as corrupt:
            job = Job(name, words[cell], failed, error=str(corrupt))
        jobs.append(job)
    return jobs, after


@dataclass(frozen=True, slots=True)
class Failure:
    """What some jobs have failed with."""

    error: str
    partitions: Sequence[str]


def grouped(errors: Mapping[str, str]) -> list[Failure]:
    """Failures of jobs by their message, the most frequent first; the keys are partitions.

    Messages that name their partition count as equal.
    """
    groups: dict[str, list[str]] = {}
    for partition, error in errors.items():
        alike = error.replace(partition, "…") if len(partition) > 2 else error
        groups.setdefault(alike, []).append(partition)
    failures = [Failure(alike if names[1:] else errors[names[0]], names) for alike, names in groups.items()]
    return sorted(failures, key=lambda failure: -len(failure.partitions))


T = TypeVar("T")
M = TypeVar("M", bound=Message)

MAX_ANSWERS = 512
"""Most cached answers; the oldest is dropped."""

REST, MAX_REST_S = 10, 5.0
"""An answer is cached for this many times the duration of making it, up to a limit: a view of much data uses
a tenth of the time of this process, not all of it."""

ERROR_S = 0.2
"""Seconds an error is cached: a service that is back must be visible soon."""


class Answers:
    """Makes an answer once for all requests while it is being made, and for a moment afterwards."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, _Answer] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]], *, keep_s: float) -> T:
        """The answer of ``key``; ``make`` is called if none is fresh. Errors are answers, too. It is shared
        by callers who may see the same.

        A cancelled request does not take the answer away from the others.
        """
        loop = asyncio.get_running_loop()
        key = (caller().held, key)
        answer = self._answers.get(key)
        if answer is None or answer.fresh_until <= loop.time():
            answer = _Answer(make, keep_s)
            self._answers.pop(key, None)
            self._answers[key] = answer
            if len(self._answers) > MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
        value: T = await asyncio.shield(answer.task)
        return value

    async def close(self) -> None:
        """Stop making what is being made."""
        tasks = [answer.task for answer in self._answers.values()]
        self._answers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Answer:
    def __init__(self, make: Callable[[], Awaitable[Any]], keep_s: float) -> None:
        self.fresh_until = float("inf")
        self._keep_s = keep_s
        self.task: asyncio.Task[Any] = asyncio.create_task(self._make(make))
        self.task.add_done_callback(_retrieve)

    async def _make(self, make: Callable[[], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        began = loop.time()
        keep_s = ERROR_S
        try:
            value = await make()
            keep_s = max(self._keep_s, min(REST * (loop.time() - began), MAX_REST_S))
        finally:
            self.fresh_until = loop.time() + keep_s
        return value


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the error: all requests for it may be gone."""
    if not task.cancelled():
        task.exception()


TABLES = 25
"""Tables on one page."""
LIVE = 12
"""Running operations shown on one page."""
LIVE_PER_TABLE = 2
"""Running operations of a table that its line on the overview summarises."""
RECENT = 15
"""Finished operations on the overview."""
RECENT_PER_TABLE = 5
HISTORY = 50
"""Finished operations on one page of a table."""
WATERMARKS = 200
"""Watermarks on one page of a table."""
MAX_ACTIVE = 1000
"""Active operations that are counted."""

SELDOM_S = 3.0
"""Seconds that names of tables, history and watermarks are cached."""
PUBLISHED_S = 30.0
"""Seconds that what is published is cached, unless something was published since."""
MEMBERS_S = 0.5
"""Seconds that members and leaders are cached."""
BACKLOG_S = 1.0
"""Seconds that waiting batches are cached."""

# Services and handlers take arguments that only some calls need; reads use no gRPC context.
ASK_S = 4.0
"""Deadline of one call of the API, in seconds: less than that of a page, which then shows the error."""


class AskContext:
    """What handlers ask of a call: how long its caller waits, in seconds."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def time_remaining(self) -> float:
        return self._limit_s


NO_CONTEXT: Any = AskContext(ASK_S)

EXAMINED_S = 60.0
"""Seconds from one examination by the doctor to the next one, as long as somebody looks."""
EXAMINING_S = 300.0
"""Seconds that an examination may take."""
FINDINGS = 200
"""Findings that are shown."""
MOST_MATCHES = 50
"""Tables on one page of a search."""
BATCHES = 1000
"""Most applied batches of a calendar."""
MOST_WAITING = 100
"""Waiting batches on one page."""


@dataclass(frozen=True, slots=True)
class Live:
    """One running operation."""

    operation: pb.Operation
    grid: JobGrid


@dataclass(frozen=True, kw_only=True)
class TablePage:
    """One table, as far as it could be read."""

    name: str
    table: pb.Table = field(default_factory=pb.Table)
    reason: Reason
    watermarks: int = 0
    """Up to :data:`WATERMARKS`, however many there are."""
    history: Sequence[pb.Operation] = ()
    live: Sequence[Live] = ()


@dataclass(frozen=True, kw_only=True)
class OperationPage:
    """One operation. Once it is over it has no list of jobs, and nothing to explain."""

    operation: pb.Operation
    grid: JobGrid | None = None
    outcomes: Outcomes | None = None
    """Of one that is over, how its jobs have ended."""
    reason: Reason | None = None
    need: Need | None = None
    """What it needs next to come to its end."""
    jobs: Sequence[Job] = ()
    next_job: int = 0
    """Where the next page of jobs begins; 0: nowhere."""


@dataclass(kw_only=True)
class Examined:
    """What the doctor has found so far."""

    findings: list[pb.Finding] = field(default_factory=list)
    more: int = 0
    """Further findings, which are not shown."""
    tables: int = 0
    operations: int = 0
    ended: float = 0.0
    """When, in seconds since the epoch; 0: it has not."""
    error: DistopError | None = None
    """Why it has ended early."""


class Reads:
    """Reads for pages; belongs to one event loop."""

    def __init__(
        self,
        client: EtcdClient,
        work: Work,
        following: Following,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.client = client
        services = Services(client=client, planning=work, publishing=work, answering=work)
        self.operations = OperationService(services, following, asyncio.Event())
        self.tables = TableService(client, work)
        self.backlog = BacklogService(client, work.registry)
        self.schedules = ScheduleService(services, self.operations)
        self.cluster = ClusterService(client, work)
        self.following = following
        self.wall = wall
        self._answers = Answers()
        self._examined = Examined()
        self._examining: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Ends the reading that goes on in the background."""
        await self._answers.close()
        if self._examining is not None:
            self._examining.cancel()
            await asyncio.gather(self._examining, return_exceptions=True)

    async def ask(
        self, call: Callable[[M, Any], Awaitable[T]], request: M, *parts: object, keep_s: float = SELDOM_S
    ) -> T:
        """The answer of a call of the API, shared by equal requests while it is fresh. ``parts``: what it
        depends on; where these are others, it is another answer."""

        async def made() -> T:
            with within(ASK_S):
                return await call(request, NO_CONTEXT)

        key = call.__qualname__, request.SerializeToString(deterministic=True), *parts
        return await self._answers.get(key, made, keep_s=keep_s)

    async def content(self, table: pb.Table) -> pb.TableContent:
        """Columns and size of a table, and its last load."""
        request = pb.GetTableRequest(name=table.name)
        return await self.ask(self.tables.DescribeTable, request, *_version_of(table), keep_s=PUBLISHED_S)

    async def snapshots(self, table: pb.Table, token: str = "") -> pb.ListSnapshotsResponse:
        """A page of the snapshots of a table. Raises :class:`~distop.errors.PreconditionFailed` if its
        storage does not have them."""
        request = pb.ListSnapshotsRequest(table=table.name, page_token=token)
        return await self.ask(self.tables.ListSnapshots, request, *_version_of(table), keep_s=PUBLISHED_S)

    async def last_operations(self, table: pb.Table) -> pb.ListOperationsResponse:
        """The last operations of a table, as many as one call lists, the newest first."""
        request = pb.ListOperationsRequest(table=table.name, page_size=MAX_PAGE)
        return await self.ask(self.operations.ListOperations, request, *_version_of(table))

    async def batches(self, name: str, token: str = "") -> dict[str, pb.ListBacklogResponse]:
        """The batches of a table: a page of the ``waiting`` ones; of the ``applied`` ones those of the last
        months, if their names have days; and the ``unordered`` ones."""
        request = pb.ListBacklogRequest(table=name, page_size=MOST_WAITING, page_token=token)
        waiting = await self.ask(self.backlog.ListBacklog, request, keep_s=BACKLOG_S)
        last = waiting.ordering.last
        done = pb.ListBacklogRequest(table=name, page_size=BATCHES, applied=True)
        if first := first_shown(last):
            done.MergeFrom(pb.ListBacklogRequest(first=first, last=last))
        unordered = pb.ListBacklogRequest(table=name, page_size=MOST_WAITING, unordered=True)
        applied, others = await asyncio.gather(
            self.ask(self.backlog.ListBacklog, done), self.ask(self.backlog.ListBacklog, unordered)
        )
        return {"waiting": waiting, "applied": applied, "unordered": others}

    async def names(self, after: str, count: int, part: str = "") -> tuple[list[str], str]:
        """Names of up to ``count`` tables behind ``after``, with ``part`` in them, and where the next page
        begins; see :func:`first_tables`."""
        if after:
            check_name(after, "after")

        async def read() -> tuple[list[str], str]:
            now = await self.client.revision()
            return await first_tables(self.client, count, revision=now, after=after, part=part)

        return await self._answers.get(("names", after, count, part), read, keep_s=SELDOM_S)

    def examined(self) -> Examined:
        """What the doctor has found; it begins to look if it has not done so lately.

        For callers who may see everything.
        """
        if self._examining is None or (
            self._examining.done() and self.wall() - self._examined.ended > EXAMINED_S
        ):
            self._examining = asyncio.create_task(self._examine(), name="examining")
        return self._examined

    async def _examine(self) -> None:
        examined = Examined()
        if not self._examined.ended:
            self._examined = examined  # nothing better is known meanwhile
        try:
            async with asyncio.timeout(EXAMINING_S):
                async with aclosing(self.cluster.Diagnose(pb.DiagnoseRequest(), NO_CONTEXT)) as progress:
                    async for report in progress:
                        room = FINDINGS - len(examined.findings)
                        examined.findings += report.findings[:room]
                        examined.more += max(0, len(report.findings) - room)
                        examined.tables, examined.operations = report.tables, report.operations
        except Exception as error:
            examined.error = as_distop(error)
        examined.findings.sort(key=lambda finding: -finding.severity)
        examined.ended = self.wall()
        self._examined = examined

    async def overview(self, after: str) -> dict[str, Any]:
        """The first page, with the tables after ``after``; ``active``: operations that have keys in etcd,
        counted up to :data:`MAX_ACTIVE`; ``next_after``: empty on the last page."""
        members = await self.members()
        active = await self._active()
        names, last = await self.names(after, TABLES + 1)
        shown = names[:TABLES]
        lines, (live, _) = await asyncio.gather(
            asyncio.gather(*(self._line(name, members) for name in shown)), self._live(active[:LIVE])
        )
        recent = [operation for line in lines for operation in line.history]
        recent.sort(key=lambda operation: operation.finished_at.ToNanoseconds(), reverse=True)
        return {
            "tables": lines,
            "next_after": shown[-1] if len(names) > TABLES else last,
            "live": live,
            "active": len(active),
            "members": members,
            "recent": recent[:RECENT],
        }

    async def table(self, name: str, *, page: int) -> TablePage:
        """One table with its running operations and the ``page``-th page of its history.

        Raises :class:`~distop.errors.TableNotFound`.
        """
        table = await self.tables.GetTable(pb.GetTableRequest(name=name), NO_CONTEXT)
        members = await self.members()
        shown = await self._view(table, members, live=LIVE, history=(page + 1) * HISTORY + 1)
        reason = await with_schedules(self.client, table, shown.reason, now=self.wall())
        return replace(shown, reason=reason)

    async def operation(self, operation: OperationId, *, jobs: str = "", start: int = 0) -> OperationPage:
        """One operation, live or finished, with what has happened to it, and a page of its jobs: those in the
        state ``jobs`` (empty: in any) from the position ``start`` on.

        Raises :class:`~distop.errors.OperationNotFound`.
        """
        if jobs and jobs not in STATES:
            raise InvalidArgument(f"{jobs[:50]!r} is no state of a job", details={"field": "jobs"})
        # Read again: a followed operation would look fine while etcd does not answer.
        keys = self.client.keyspace.operation(operation)
        known = None
        if (await self.client.get(keys.state)).exists:
            known = await self.following.look(operation, events=True)
        if known is not None:
            message, grid = known
            table = await self.tables.GetTable(pb.GetTableRequest(name=operation.table), NO_CONTEXT)
            members = await self.members()
            shown, following = await read_jobs(self.client, keys, grid, state=jobs, start=start)
            return OperationPage(
                operation=message,
                grid=grid,
                reason=self._why(table, [Live(message, grid)], members, None),
                need=need_of(message, executors_among(members)),
                jobs=shown,
                next_job=following,
            )
        if (finished := await read_finished(self.client, operation, events=True)) is None:
            raise not_found(operation)
        outcomes = Outcomes.of(finished.job_outcomes, finished.jobs.total)
        return OperationPage(operation=finished, outcomes=outcomes)

    async def members(self) -> list[pb.Member]:
        """All live members, coordinators first."""
        listed = await self.ask(self.cluster.ListMembers, pb.ListMembersRequest(), keep_s=MEMBERS_S)
        return sorted(listed.members, key=lambda member: (member.role, member.id))

    async def leaders(self) -> Sequence[pb.Leader]:
        """The leaders of tables."""
        listed = await self.ask(self.cluster.ListLeaders, pb.ListLeadersRequest(), keep_s=MEMBERS_S)
        return listed.leaders

    async def watermarks(self, table: pb.Table, after: str = "") -> pb.GetWatermarksResponse:
        """A page of the watermarks of a table, by source and partition."""
        request = pb.GetWatermarksRequest(table=table.name, page_size=WATERMARKS, page_token=after)
        return await self.ask(self.tables.GetWatermarks, request, *_version_of(table))

    async def _active(self) -> list[OperationId]:
        """Those that the caller may see, as far as they are counted, among the first :data:`LOOKED`."""
        keyspace, sees = self.client.keyspace, caller().sees
        led: list[OperationId] = []
        looked = 0
        pages = self.client.pages(
            keyspace.active, prefix_end(keyspace.active), keys_only=True, limit=MAX_ACTIVE
        )
        async with aclosing(pages):
            async for page in pages:
                active = named(page.kvs, keyspace.parse_active)
                led += [operation for operation, _ in active if sees(operation.table)]
                looked += len(page.kvs)
                if len(led) >= MAX_ACTIVE or looked >= LOOKED:
                    break
        return led[:MAX_ACTIVE]

    async def _line(self, name: str, members: Sequence[pb.Member]) -> TablePage:
        """A table's line on the overview; an unreadable one shows its error, and the others are shown."""
        try:
            table = await self.tables.GetTable(pb.GetTableRequest(name=name), NO_CONTEXT)
            return await self._view(table, members, live=LIVE_PER_TABLE, history=RECENT_PER_TABLE)
        except Unavailable:
            raise
        except DistopError as error:
            return TablePage(name=name, reason=_unreadable(error))

    async def _view(
        self, table: pb.Table, members: Sequence[pb.Member], *, live: int, history: int
    ) -> TablePage:
        running = [OperationId.parse(name) for name in table.running[:live]]
        shown, errors = await self._live(running)
        finished = await self._history(table, history)
        watermarks = (await self.watermarks(table)).watermarks
        if errors:
            reason = _unreadable(errors[0])
        else:
            last = finished[0] if finished else None
            more = max(0, len(table.running) - live)
            reason = self._why(table, shown, members, last, also_running=more)
        return TablePage(
            name=table.name,
            table=table,
            reason=reason,
            watermarks=len(watermarks),
            history=finished,
            live=shown,
        )

    def _why(
        self,
        table: pb.Table,
        live: Sequence[Live],
        members: Sequence[pb.Member],
        last: pb.Operation | None,
        *,
        also_running: int = 0,
    ) -> Reason:
        if counting := [short_name(line.operation) for line in live if not line.grid.complete]:
            return Reason(Mood.MOVING, f"{counting[0]} is large: its jobs are being counted")
        return why(
            running=[entry.operation for entry in live],
            also_running=also_running,
            leader=table.leader,
            table=table,
            members=members,
            last=last,
            now=self.wall(),
        )

    async def _live(self, operations: Iterable[OperationId]) -> tuple[list[Live], list[DistopError]]:
        """The active operations among these, and why others cannot be shown.

        One that this version cannot read must not hide the others.
        """
        looks = (self.following.look(operation) for operation in operations)
        live: list[Live] = []
        errors: list[DistopError] = []
        for outcome in await asyncio.gather(*looks, return_exceptions=True):
            if isinstance(outcome, DistopError):
                errors.append(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            elif outcome is not None:
                live.append(Live(*outcome))
        return live, errors

    async def _history(self, table: pb.Table, count: int) -> list[pb.Operation]:
        """The operations of a table that finished last, the last one first."""
        keyspace = self.client.keyspace
        prefix = keyspace.table(table.name).history_prefix

        async def read() -> list[pb.Operation]:
            page = await self.client.get_range(prefix, prefix_end(prefix), limit=count, newest_first=True)
            ended = named(page.kvs, keyspace.parse_history)
            return [from_ended(operation, kv) for operation, kv in ended]

        return await self._answers.get(("history", count, *_version_of(table)), read, keep_s=SELDOM_S)


def _unreadable(error: DistopError) -> Reason:
    return Reason(Mood.STUCK, f"cannot be read: {error.code}: {error.message}")


def _version_of(table: pb.Table) -> tuple[object, ...]:
    """Changes with every operation that ends (or publishes): cached data is then stale."""
    return table.name, table.snapshot_id, tuple(table.running)
