"""What the processes of the model do: the product's own code, from one thing to remember to the next.

A phase is a coroutine; what it returns says how the process goes on, and with what it remembers. All else it
knows it has read from etcd in this phase.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from distop.catalog.pointers import FOREIGN, Pointers, Swap
from distop.coordinator.api.operations import OperationService
from distop.coordinator.completion.completion import Completion
from distop.coordinator.leading.driver import TableDriver
from distop.coordinator.starting.services import Services, Term
from distop.coordinator.state.tracker import Nothing, decide
from distop.coordinator.views.following import Following
from distop.coordinator.work.work import Work
from distop.errors import DistopError, LeadershipLost, LeaseLost, OutcomeUnknown, Unavailable
from distop.executor.ledger.ledger import MarkBatcher
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.members.lease import Epoch, campaign
from distop.metastore.operations.ending import request_cancel, request_resolve
from distop.metastore.operations.jobs import (
    Claimed,
    Mark,
    Occupied,
    Outcome,
    Verdict,
    claim,
    release_claim,
    success_record,
)
from distop.metastore.operations.pausing import pause_operation, resume_operation
from distop.metastore.operations.runs import Run, give_back, release_runner, take_operation
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import (
    ABORT,
    RUNNING,
    CancelRecord,
    ClaimRecord,
    OperationArg,
    PauseRecord,
    ResolveRecord,
    RunnerRecord,
)
from distop.metastore.records.record import decode, encode_plain
from distop.metastore.records.table import Head
from distop.metastore.tables.audit import audit_put
from distop.metastore.tables.watermarks import fold
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json
from explore.process import NOW, Env
from explore.search import Actor, Next
from explore.store import Store
from explore.table import KEYS, REMOVED, TABLE, is_parked, operations, registry
from support.services.sharing import services_of

NOTHING_RECENT = encode_plain({})


class _Call:
    """As much of the context of a call as the service asks for."""

    def time_remaining(self) -> None:
        return None


@dataclass(frozen=True)
class Wanted:
    """A request to start an operation."""

    type: str
    run: str
    jobs: int = 0
    watermark: bool = False
    tries: int = 2
    """How often it is sent while nobody knows what came of it."""


async def starts(env: Env, wanted: Wanted, tried: int = 0) -> Any:
    """A caller of ``StartOperation``, at a coordinator that does not lead the table."""
    service = _service(services_of(env.client, _work()))
    try:
        return (await service.StartOperation(_request(wanted), _Call())).name  # type: ignore[arg-type]
    except (OutcomeUnknown, Unavailable):
        if tried + 1 == wanted.tries:
            raise
        return Next(starts, (wanted, tried + 1))


def _request(wanted: Wanted) -> pb.StartOperationRequest:
    argument = {"jobs": wanted.jobs, "watermark": wanted.watermark, "uuid": wanted.run}
    return pb.StartOperationRequest(
        table=TABLE,
        type=wanted.type,
        argument_json=to_json(argument, "argument"),
        run=wanted.run,
        started_by="caller",
    )


@dataclass(frozen=True)
class _Session:
    """A lease that its process believes in whatever happens: it wakes up and does not look at the clock."""

    lease_id: int
    ttl_s: int = 2

    def check(self) -> None:
        pass


async def campaigns(env: Env, name: str, lease: int) -> Any:
    """A coordinator, once the table has work."""
    await env.until("the table has work", lambda store: True if operations(store) else None)
    try:
        epoch = await campaign(env.client, KEYS, _Session(lease), LeaderRecord(member=name))  # type: ignore[arg-type]
    except LeaseLost:
        return "lease lost"
    except DistopError:
        return Next(campaigns, (name, lease))
    return Next(yields, (name, lease)) if epoch is None else Next(leads, (name, lease, epoch.revision))


async def serves(env: Env, name: str, lease: int) -> Any:
    """A coordinator that leads the table and starts two operations of it, the second one on what it knows
    since the first, instead of reading; and goes on leading."""
    try:
        epoch = await campaign(env.client, KEYS, _Session(lease), LeaderRecord(member=name))  # type: ignore[arg-type]
    except DistopError as error:
        return error.code
    if epoch is None:
        return "does not lead"
    services = _services(env)
    driver = _driver(services, lease, epoch.revision)
    service = _service(services)
    with contextlib.suppress(DistopError):
        await driver._list()
        for number in (1, 2):
            request = _request(Wanted("append", f"{name}/{number}", watermark=True))
            request.call_id = request.run
            await service.StartOperation(request, _Call())  # type: ignore[arg-type]
            await driver._list()
            await _act(env, driver)
    return Next(leads, (name, lease, epoch.revision))


async def yields(env: Env, name: str, lease: int) -> Any:
    """As ``until_absent``: a look, and then the first change. A key of its own is as good as none."""
    leader = await env.client.get(KEYS.coordinator)
    if leader.exists and leader.lease != lease:
        created = leader.create_revision

        def gone(store: Store) -> bool | None:
            return True if store.get(KEYS.coordinator).create_revision != created else None

        await env.until("the leader's key is gone", gone)
    return Next(campaigns, (name, lease))


async def leads(env: Env, name: str, lease: int, epoch: int) -> Any:
    """List the table, act on what stands there until nothing is left to do about it, and list it again."""
    driver = _driver(_services(env), lease, epoch)
    again = Next(leads, (name, lease, epoch))
    try:
        await driver._list()
        listed = await env.look("the table", _of_interest)
        acted = await _act(env, driver)
    except (LeadershipLost, LeaseLost) as error:
        return error.code
    except DistopError:
        return again  # as the driver does after a pause
    if not acted:
        await env.until("the table changes", lambda store: True if _of_interest(store) != listed else None)
    return again


def _services(env: Env) -> Services:
    return services_of(env.client, _work(), clock=lambda: 0.0, wall=lambda: NOW)


def _service(services: Services) -> OperationService:
    return OperationService(services, Following(services.client, services.caches.leaders), asyncio.Event())


def _driver(services: Services, lease: int, epoch: int) -> TableDriver:
    term = Term(KEYS, Epoch(KEYS.coordinator, epoch), _Session(lease))  # type: ignore[arg-type]
    return TableDriver(services, term, Completion(services))


async def _act(env: Env, driver: TableDriver) -> bool:
    """Do what is due, by what was listed and what came of it; whether there was anything."""
    acted = False
    while True:
        open_ = [each for each in driver.tracked() if not each.gone]
        due = [(each, decide(each, deadline_passed=False, paused=each.pause is not None)) for each in open_]
        due = [(each, action) for each, action in due if not isinstance(action, Nothing)]
        if not due:
            return acted
        acted = True
        tracked, action = due[await env.choose(len(due))]
        await driver._perform(tracked, action)


def _work() -> Work:
    return Work(registry(), None)  # the loop of the model needs no threads


def _of_interest(store: Store) -> int:
    """What a leader acts upon: its own key, and what stands of operations but for claims and checkpoints."""
    parts = [store.get(KEYS.coordinator).create_revision]
    for keys in operations(store):
        parts += [
            hash(kv) for kv in store.under(keys.prefix) if not kv.key.endswith((b".claim", b".progress"))
        ]
    return hash(tuple(parts))


async def takes(env: Env, name: str, lease: int) -> Any:
    """A runner, once an operation runs that nobody runs."""

    def free(store: Store) -> str | None:
        for keys in operations(store):
            if store.get(keys.runner).lease == lease:
                return ""
            if store.get(keys.pause).exists:
                continue
            if store.get(keys.state).value == RUNNING and not store.get(keys.runner).exists:
                return str(keys.operation)
        return None

    operation = await env.until("an operation has no runner", free)
    if not operation:  # by a take that it does not know of: its reply was lost, or a copy came late
        with contextlib.suppress(DistopError):
            await give_back(env.client, lease, lambda run: False)
        return Next(takes, (name, lease))
    keys = KEYS.operation(OperationId.parse(operation))
    try:
        taken = await take_operation(env.client, keys, RunnerRecord(member=name), lease)
    except LeaseLost:
        return "lease lost"
    except DistopError:
        return Next(takes, (name, lease))
    if taken is None:
        return Next(takes, (name, lease))
    return Next(holds, (name, lease, operation, taken.run.token))


async def holds(env: Env, name: str, lease: int, operation: str, token: int) -> Any:
    """A runner that has an operation, until that is over or somebody pauses it."""
    keys = KEYS.operation(OperationId.parse(operation))

    def over(store: Store) -> bool | None:
        mine = store.get(keys.runner).create_revision == token and not store.get(keys.pause).exists
        return True if not mine or store.get(keys.state).value != RUNNING else None

    await env.until(f"{operation} does not run any more", over)
    try:
        await release_runner(env.client, Run(keys, token))
    except DistopError:
        return "not released"
    return Next(takes, (name, lease))


async def attempts(env: Env, name: str, partition: str, lease: int = 0) -> Any:
    """A task slot: does one job of whatever operation runs, under the run that stands then."""

    def open_(store: Store) -> tuple[str, int] | None:
        for keys in operations(store):
            runner = store.get(keys.runner)
            taken = (keys.job_state(partition), keys.claim(partition))
            if not runner.exists or any(store.get(key).exists for key in taken):
                continue
            arg = decode(store.get(keys.arg).value, OperationArg, keys.arg)
            if partition in arg.partition_names() and store.get(keys.state).value == RUNNING:
                return str(keys.operation), runner.create_revision
        return None

    operation, token = await env.until(f"job {partition} has a runner and no result", open_)
    return Next(works, (name, partition, lease, operation, token))


async def works(env: Env, name: str, partition: str, lease: int, operation: str, token: int) -> Any:
    """One attempt: claim, mark, and remove the files if they count for nothing."""
    run = Run(KEYS.operation(OperationId.parse(operation)), token)
    attempt = f"{name}@{token}"
    held = 0
    if operation.split("/")[1] == "owned":
        try:
            got = await claim(env.client, run, partition, ClaimRecord(attempt=attempt), lease)
        except LeaseLost:
            return "lease lost"
        except DistopError:
            return "claim unknown"
        if isinstance(got, Occupied):
            return Next(waits, (name, partition, lease, operation, token, got.existing.create_revision))
        if isinstance(got, Claimed):
            held = got.claim
        verdict = got
    if held or not lease:
        mark = Mark(partition, attempt, success_record(attempt, {}, NOW), claim=held)
        try:
            verdict = (await MarkBatcher(env.client)._answers(run, [mark]))[0]
        except DistopError as error:
            return f"{operation} {attempt} {error.code}"
    assert isinstance(verdict, Verdict)
    if verdict.outcome in (Outcome.LOST, Outcome.GONE):
        await env.client.txn(Txn(then=(Put(REMOVED + f"{operation}.{attempt}".encode(), b""),)))
        if held:  # as ClaimDesk does when a run is over
            try:
                await release_claim(env.client, run.keys.claim(partition), held)
            except DistopError:
                return "claim not released"
        return Next(attempts, (name, partition, lease))
    return f"{operation} {attempt} {verdict.outcome.value}"


async def waits(
    env: Env, name: str, partition: str, lease: int, operation: str, token: int, claimed: int
) -> Any:
    """An attempt at a job that another one has claimed: until that has changed, or the job is over."""
    keys = KEYS.operation(OperationId.parse(operation))

    def changed(store: Store) -> bool | None:
        is_claimed = store.get(keys.claim(partition)).create_revision == claimed
        runs = store.get(keys.runner).create_revision == token and store.get(keys.state).value == RUNNING
        return None if is_claimed and runs and not store.get(keys.job_state(partition)).exists else True

    await env.until("the claim is gone", changed)
    return Next(works, (name, partition, lease, operation, token))


async def commits(env: Env, name: str, tries: int = 3) -> Any:
    """Another program that commits to the table through the catalog: reads the head, and moves it."""
    entry = f"foreign/{name}"
    base = await env.blocking(lambda etcd: Pointers(etcd).read(TABLE))
    before = base.head.metadata_location if base.head is not None else ""
    head = Head(metadata_location=f"{before} {entry}".strip(), operation=FOREIGN)

    def landed(head: Head | None) -> bool:
        return head is not None and entry in head.metadata_location.split()

    def move(etcd: SyncEtcd) -> Swap:
        pointers = Pointers(etcd)
        return pointers.send([pointers.moved(base, head, landed)])

    swap = await env.blocking(move)
    if swap is Swap.LOST and tries > 1:
        return Next(commits, (name, tries - 1))
    return swap.value


async def cancels(env: Env, name: str) -> Any:
    """Somebody who cancels the first operation there is."""

    def there(store: Store) -> str | None:
        return next((str(keys.operation) for keys in operations(store)), None)

    operation = await env.until("there is an operation", there)
    keys = KEYS.operation(OperationId.parse(operation))
    audit = audit_put(KEYS, "cancel", by=name, target=operation, at=NOW)
    first = await request_cancel(env.client, keys, CancelRecord(by=name, at=NOW), audit)
    return f"{operation} {'cancelled' if first else 'too late'}"


async def pauses(env: Env, name: str) -> Any:
    """Somebody who pauses the first operation there is, and then lets it go on."""

    def there(store: Store) -> str | None:
        return next((str(keys.operation) for keys in operations(store)), None)

    operation = await env.until("there is an operation", there)
    keys = KEYS.operation(OperationId.parse(operation))
    audit = audit_put(KEYS, "pause", by=name, target=operation, at=NOW)
    await pause_operation(env.client, keys, PauseRecord(by=name, at=NOW), audit)
    return Next(resumes, (name, operation))


async def resumes(env: Env, name: str, operation: str) -> Any:
    """Somebody who resumes an operation that :func:`pauses` has paused."""
    audit = audit_put(KEYS, "resume", by=name, target=operation, at=NOW)
    await resume_operation(env.client, KEYS.operation(OperationId.parse(operation)), audit)
    return f"{operation} resumed"


async def folds(env: Env, times: int) -> Any:
    """A leader that makes room: puts the watermarks that were written lately into their chunks."""

    def recent(store: Store) -> bool | None:
        return True if len(store.get(KEYS.watermarks).value) > len(NOTHING_RECENT) else None

    await env.until("there are watermarks to fold", recent)
    with contextlib.suppress(OutcomeUnknown):
        await fold(env.client, KEYS)
    return Next(folds, (times - 1,)) if times > 1 else "folded"


async def resolves(env: Env, name: str) -> Any:
    """Somebody who aborts the first operation that is parked."""

    def parked(store: Store) -> str | None:
        return next((str(keys.operation) for keys in operations(store) if is_parked(store, keys)), None)

    operation = await env.until("an operation is parked", parked)
    decision = ResolveRecord(action=ABORT, by=name, at=NOW)
    keys = KEYS.operation(OperationId.parse(operation))
    await request_resolve(env.client, keys, decision, request=name)
    return f"{operation} aborted"


def starter(number: int, wanted: Wanted) -> Actor:
    return Actor(f"starter-{number}", Next(starts, (wanted,)))


def leader(number: int) -> Actor:
    name, lease = f"leader-{number}", 100 + number
    return Actor(name, Next(campaigns, (name, lease)), lease)


def coordinator(number: int) -> Actor:
    name, lease = f"coordinator-{number}", 400 + number
    return Actor(name, Next(serves, (name, lease)), lease)


def runner(number: int) -> Actor:
    name, lease = f"runner-{number}", 200 + number
    return Actor(name, Next(takes, (name, lease)), lease)


def attempt(number: int, partition: int = 0, *, claims: bool = False) -> Actor:
    name, lease = f"attempt-{number}", 300 + number if claims else 0
    return Actor(name, Next(attempts, (name, str(partition), lease)), lease)


def foreign(number: int) -> Actor:
    return Actor(f"foreign-{number}", Next(commits, (str(number),)), mortal=False)


def folder(times: int) -> Actor:
    return Actor("folder", Next(folds, (times,)))


def pauser() -> Actor:
    return Actor("pauser", Next(pauses, ("pauser",)), mortal=False)


def resolver() -> Actor:
    return Actor("resolver", Next(resolves, ("resolver",)), mortal=False)


def canceller() -> Actor:
    return Actor("canceller", Next(cancels, ("canceller",)), mortal=False)
