"""Runs: a runner's hold on an operation, the fence in everything that its jobs write, and who waits for one.

Every transaction of a job compares *the run is held*: the operation is ``running`` and its ``.runner`` key is
the one that this run created. These conditions only ever change from true to false: a state never returns to
``running``, create revisions are never reused, a job's result is written once. So such a transaction may be
sent twice, and a delayed copy finds its condition false and changes nothing.

What a take compares can become true again: a runner lets go of an operation, a pause ends. A delayed copy may
then take the operation for a runner that does not know of it, as a take does whose outcome stays unknown. So
each runner looks from time to time at what is bound to its lease: see :func:`give_back`.

Two indexes list operations: those that still have keys, running, or ended and not collected yet; and those
of them that run and that no executor has. The entry of one that waits goes with the transaction that takes
it, or seals it. It comes back when its executor lets go of it. An executor that dies leaves no entry behind:
others make it, see :func:`wait_again`. So every running operation has a runner, has an entry, or is given one
by the next look of an executor.

The jobs of a dynamic plan are the partitions of a DataFrame. When it is computed again they may be cut
differently, so the results of two computations must never be mixed: rows would be duplicated or lost. So the
results of exactly one run count, the one that ``<root>.run`` names, and each result contains its run: see
:class:`DynamicRun`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from distop.errors import InvalidArgument, OutcomeUnknown
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.update import PATIENCE_S, settle
from distop.metastore.records import operation as records
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.names import escape, prefix_end
from distop.metastore.records.record import decode, encode

if TYPE_CHECKING:
    # Workers that only send marks through a sidecar import this module, and must not load gRPC.
    from distop.metastore.etcd.client import EtcdClient

log = logging.getLogger(__name__)

_AT_ONCE = 60

RUNNER_GONE = "its runner is gone"
"""Why a run is over when the operation itself is not: another runner may take it."""

PAUSED = "the operation is paused, or its table is"
"""Why a run is over when the operation is paused."""

_LISTED_AT_ONCE = 1000

REMOVED_AT_ONCE = 2000
"""Results of an earlier run that one transaction removes."""

GIVE_BACK_S = 1.0
"""How long it may take to stop counting a released run: its process is about to end."""


def index_puts(keys: OperationKeys, *, waits: bool = True) -> tuple[etcd.Put, ...]:
    """The entries of a new operation; ``waits``: for an executor."""
    entry = encode(records.ActiveRecord(type=keys.operation.type))
    active = etcd.Put(keys.keyspace.active_operation(keys.operation), entry)
    return (active, etcd.Put(keys.waiting, entry)) if waits else (active,)


def waiting_puts(keys: OperationKeys, why: str) -> tuple[etcd.Put, etcd.Put]:
    """The entries that let an operation wait for an executor again; ``why``: see :class:`QueuedRecord`."""
    return index_puts(keys)[1], etcd.Put(keys.queued, encode(records.QueuedRecord(why=why, at=time.time())))


async def active_operations(client: EtcdClient, keys: TableKeys) -> list[records.OperationArg]:
    """The arguments of a table's operations that still have keys: running ones, and ended ones to collect.

    Raises :class:`~distop.errors.CorruptRecord` if one was started by a version that this one does not
    understand: the caller would take its files for nobody's.
    """
    prefix = keys.keyspace.active + escape(keys.name).encode() + b"."
    active = []
    for kv in (await client.scan(prefix, keys_only=True)).kvs:
        operation = keys.operation(keys.keyspace.parse_active(kv.key))
        arg = await client.get(operation.arg)
        if arg.exists:  # collected meanwhile, otherwise
            active.append(decode(arg.value, records.OperationArg, arg.key))
    return active


def _wait_txn(keys: OperationKeys) -> etcd.Txn:
    """IF ``.state = running`` AND nobody runs it AND it has no entry THEN an entry."""
    compares = etcd.equals(keys.state, records.RUNNING), etcd.absent(keys.runner), etcd.absent(keys.waiting)
    return etcd.Txn(compares, waiting_puts(keys, "lost"))


async def wait_again(client: EtcdClient, operations: Sequence[OperationKeys]) -> None:
    """Let those wait that run and that nobody has, such as the ones of an executor that died.

    May be called at any time and sent twice: one that is taken, sealed or over meanwhile gets no entry.
    """
    for start in range(0, len(operations), _AT_ONCE):
        reached("wait.before")
        txn = etcd.Txn(then=tuple(_wait_txn(keys) for keys in operations[start : start + _AT_ONCE]))
        await settle(client, txn, patience_s=PATIENCE_S, replied=lambda: reached("wait.after"))


@dataclass(frozen=True, slots=True)
class Run:
    """One runner's hold on one operation. Everything its jobs write carries :meth:`held`."""

    keys: OperationKeys
    token: int
    """The create revision of ``.runner``. Grows with every runner that takes over the operation."""

    def __post_init__(self) -> None:
        # A create revision of 0 means "absent" to etcd: such a fence would hold when no runner exists.
        if self.token <= 0:
            raise InvalidArgument(f"{self.token} is not a run token", details={"field": "run_token"})

    @property
    def key(self) -> tuple[bytes, int]:
        """Identifies the run: the operation's root and the run token."""
        return self.keys.root, self.token

    def held(self) -> tuple[etcd.Compare, etcd.Compare]:
        """The fence: holds as long as the operation is running under this run."""
        return etcd.equals(self.keys.state, records.RUNNING), etcd.created_at(self.keys.runner, self.token)

    def why_over(self, state: etcd.KeyValue, runner: etcd.KeyValue) -> str:
        """Why the run is no longer held, in words; empty while it is."""
        if not state.exists:
            return "the operation is over"
        if state.value != records.RUNNING:
            return f"the operation is {state.value.decode(errors='replace')}"
        return "" if runner.create_revision == self.token else RUNNER_GONE


async def why_over(client: EtcdClient, run: Run) -> tuple[str, int]:
    """Why the run is over at present, in words, also :data:`PAUSED`; empty while it is held. With the
    revision at which this was read.
    """
    keys = run.keys
    wanted = (keys.state, keys.runner, keys.pause, keys.table_pause)
    result = await settle(
        client, etcd.Txn(then=tuple(etcd.Get(key) for key in wanted)), patience_s=PATIENCE_S
    )
    state, runner, *pauses = result.each(wanted)
    paused = PAUSED if any(pause.exists for pause in pauses) else ""
    return run.why_over(state, runner) or paused, result.revision


def not_paused(keys: OperationKeys) -> tuple[etcd.Compare, etcd.Compare]:
    """Holds while neither the operation nor its table is paused."""
    return etcd.absent(keys.pause), etcd.absent(keys.table_pause)


@dataclass(frozen=True, slots=True)
class Taken:
    """An operation that this runner runs from now on."""

    run: Run
    arg_value: bytes
    arg: records.OperationArg
    unfinished: list[str]
    """Partitions without a result, in the order of the plan."""
    job_keys: list[etcd.KeyValue] = field(default_factory=list)
    """The keys of its jobs, without values."""


async def take_operation(
    client: EtcdClient, keys: OperationKeys, record: records.RunnerRecord, lease: int
) -> Taken | None:
    """IF ``.state = running`` AND no runner has it AND neither it nor its table is paused THEN ``.runner``
    under ``lease``, and its entry among the waiting ones is deleted; ``None`` otherwise.

    Raises
    ------
    CorruptRecord
        This version cannot read the argument.
    DistopError
        It is unknown whether it was taken, or what its jobs are.

    After an error it may be held all the same: :func:`give_back` finds it.
    """
    txn = etcd.Txn(
        (etcd.equals(keys.state, records.RUNNING), etcd.absent(keys.runner), *not_paused(keys)),
        (
            etcd.Put(keys.runner, encode(record), lease),
            etcd.Get(keys.runner),
            etcd.Get(keys.arg),
            _few_jobs(keys),
            etcd.DeleteRange(keys.waiting),
        ),
        (etcd.Get(keys.state), etcd.Get(keys.waiting)),
        lane=keys.table_prefix,
    )
    reached("take.before")
    result = await settle(client, txn, patience_s=PATIENCE_S, replied=lambda: reached("take.after"))
    if not result.succeeded:
        if result.got(1) and result.single(0, keys.state).value != records.RUNNING:
            # Its keys were removed by hand. It never runs again, so its waiting entry is useless.
            await settle(client, etcd.Txn(then=(etcd.DeleteRange(keys.waiting),)), patience_s=PATIENCE_S)
        if result.doubt:
            raise OutcomeUnknown(f"an earlier copy of the request may have taken {keys.operation}")
        return None
    run, value = Run(keys, result.single(1, keys.runner).create_revision), result.single(2, keys.arg).value
    arg = decode(value, records.OperationArg, keys.arg)
    jobs = result.results[3]
    listed = jobs.got(0) if isinstance(jobs, etcd.TxnResult) and jobs.succeeded else None
    if listed is None or len(listed) == _LISTED_AT_ONCE:
        listed = (await client.scan(keys.prefix, keys_only=True)).kvs
    return Taken(run, value, arg, without_result(keys, arg, listed), listed)


def _few_jobs(keys: OperationKeys) -> etcd.Txn:
    """Reads the keys of jobs, unless the leader has written a count: then there are many, and etcd would
    block all writes while it reads them."""
    jobs = etcd.Get(keys.prefix, prefix_end(keys.prefix), keys_only=True, limit=_LISTED_AT_ONCE)
    return etcd.Txn((etcd.absent(keys.job_counts),), (jobs,))


def without_result(keys: OperationKeys, arg: records.OperationArg, kvs: Iterable[etcd.KeyValue]) -> list[str]:
    """The partitions without a result among the keys of an operation, in the order of the plan."""
    finished = set()
    for kv in kvs:
        job = keys.partition_of(kv.key)
        if job is not None and job[1] == "state":
            finished.add(job[0])
    return [name for name in arg.partition_names() if name not in finished]


async def release_runner(client: EtcdClient, run: Run, *, again: bool = False) -> None:
    """Release an operation; does nothing if it is already lost. ``again``: work is left, so if the operation
    still runs, it waits for another runner."""
    runner = etcd.created_at(run.keys.runner, run.token)
    gone: tuple[etcd.Op, ...] = (etcd.DeleteRange(run.keys.runner),)
    if again:
        gone += (
            etcd.Txn((etcd.equals(run.keys.state, records.RUNNING),), waiting_puts(run.keys, "given back")),
        )
    reached("release.before")
    await settle(
        client, etcd.Txn((runner,), gone), patience_s=PATIENCE_S, replied=lambda: reached("release.after")
    )


async def give_back(client: EtcdClient, lease: int, keep: Callable[[Run], bool]) -> list[Run]:
    """Release what is held under ``lease``, except for the runs that ``keep`` holds for; returns all of them.

    So no operation is held by a runner that does not work on it, whatever was lost, late or doubled: a take,
    a release. Those that have ended are released, too: their staged files are swept only then.
    """
    space, end, bound = client.keyspace, b".runner", await client.lease_keys(lease)
    roots = (etcd.KeyValue.missing(key.removesuffix(end)) for key in bound if key.endswith(end))
    keys = [space.operation(operation) for operation, _ in etcd.named(roots, space.parse_root)]
    if not keys:
        return []
    read = await client.read_many([etcd.Get(operation.runner, keys_only=True) for operation in keys])
    runners = (read.single(index, operation.runner) for index, operation in enumerate(keys))
    held = [
        Run(operation, runner.create_revision)
        for operation, runner in zip(keys, runners, strict=True)
        if runner.lease == lease
    ]
    for run in held:
        if not keep(run):  # asked last: a take may have ended meanwhile
            log.info("run_given_back", extra={"operation": str(run.keys.operation), "run_token": run.token})
            await release_runner(client, run, again=True)
    return held


class DynamicRun:
    """Decides which results of a dynamic plan count, and when they are complete. Belongs to the holder of the
    run.

    A run that takes over the operation writes its own token to ``<root>.run``, in the transaction that
    removes the results of the one before; from then on nothing of that one counts, wherever it may still be
    cached.
    Once all results of a run exist, its runner *seals the count*. No run starts again after that, and no
    leader commits before.

    All methods return ``False`` when the run is over: then nothing was written, and nothing ever will be.
    """

    def __init__(self, client: EtcdClient, run: Run) -> None:
        self.run = run
        self._client = client
        self._existing = etcd.KeyValue.missing(run.keys.run)

    @property
    def count(self) -> int | None:
        """How many results there are, if that is sealed; perhaps by an earlier run."""
        return self._record.count if self._existing.exists else None

    @property
    def begun(self) -> int:
        """How many runs have begun it, this one included, and have not ended in order."""
        return self._record.begun

    @property
    def _record(self) -> records.RunRecord:
        return decode(self._existing.value, records.RunRecord, self._existing.key)

    async def begin(self) -> bool:
        """Let only the results of this run count; unless a count is sealed, which is left unchanged.

        IF the run is held AND ``.run`` is as read THEN ``.run`` names this run, and results of earlier ones
        are deleted (in steps, if there are many). None can follow: their marks compare a runner that is gone.
        """
        keys = self.run.keys
        self._existing = await self._client.get(keys.run)
        start, end = keys.numbered_jobs
        more = True
        while more and self.count is None:
            page = await self._client.get_range(start, end, keys_only=True, limit=REMOVED_AT_ONCE)
            more = page.more
            gone = (etcd.DeleteRange(page.kvs[0].key, page.kvs[-1].key + b"\0"),) if page.kvs else ()
            record = encode(self._mine())
            txn = etcd.Txn(
                (*self.run.held(), etcd.unchanged(self._existing)),
                (etcd.Put(keys.run, record), *gone),
                (etcd.Get(keys.run), etcd.Get(keys.state), etcd.Get(keys.runner)),
            )
            reached("run.begin.before")
            result = await settle(
                self._client, txn, patience_s=PATIENCE_S, replied=lambda: reached("run.begin.after")
            )
            if result.succeeded:
                created = self._existing.create_revision or result.revision
                self._existing = etcd.KeyValue(keys.run, record, result.revision, created)
                continue
            if self.run.why_over(result.single(1, keys.state), result.single(2, keys.runner)):
                return False
            # Only the holder of the run writes it: this is our own write, whose reply was lost. Its step is
            # done, too.
            self._existing = result.single(0, keys.run)
        return True

    async def seal(self, count: int) -> bool:
        """Record that all results exist: exactly ``count`` of this run.

        IF the run is held AND ``.run`` is as this run left it THEN the count is final. Call it when each of
        these results is known to have been written.
        """
        return await self._write(seals=True, count=count)

    async def note(self, tasks: int, done: int) -> bool:
        """Record Spark's progress, for display. Nothing depends on it."""
        return self._mine(tasks=tasks, done=done) == self._record or await self._write(tasks=tasks, done=done)

    async def give_back(self) -> bool:
        """Do not count this run any more, unless its count is sealed: its process lives and releases it. Call
        it once; a process that dies before is counted, since the operation may have killed it."""
        begun, given = self._record.begun - 1, None
        while given is None and self.count is None:
            value = encode(msgspec.structs.replace(self._record, begun=begun))
            given = await self._put(value, patience_s=GIVE_BACK_S)
        return bool(given)

    def _mine(self, **says: int) -> records.RunRecord:
        """The record of this run, apart from its number."""
        begun = 1
        if self._existing.exists:
            begun = self._record.begun + (self._record.token != self.run.token)
        return records.RunRecord(token=self.run.token, begun=begun, **says)

    async def _write(self, *, seals: bool = False, **says: int) -> bool:
        """Write this run's record, with retries: a note of its own may come between. A sealed count is never
        removed."""
        written = None
        while written is None and self.count is None:
            written = await self._put(encode(self._mine(**says)), seals=seals)
        return bool(written)

    async def _put(self, value: bytes, *, seals: bool = False, patience_s: float = PATIENCE_S) -> bool | None:
        """IF the run is held AND ``.run`` is as read THEN it gets this value. ``None``: the run is held, but
        its record has another value of its own, which is read now."""
        keys = self.run.keys
        txn = etcd.Txn(
            (*self.run.held(), etcd.unchanged(self._existing)),
            (etcd.Put(keys.run, value),),
            (etcd.Get(keys.run), etcd.Get(keys.state), etcd.Get(keys.runner)),
        )
        if seals:
            reached("count.seal.before")
            result = await settle(
                self._client, txn, patience_s=patience_s, replied=lambda: reached("count.seal.after")
            )
        else:
            result = await settle(self._client, txn, patience_s=patience_s)
        if result.succeeded:
            self._existing = etcd.KeyValue(keys.run, value, result.revision, self._existing.create_revision)
            return True
        existing = result.single(0, keys.run)
        if existing.exists and existing.value == value:
            # An earlier copy of this, whose reply was lost; a sealed count is final, whatever happened to the
            # run.
            self._existing = existing
            return True
        if self.run.why_over(result.single(1, keys.state), result.single(2, keys.runner)):
            return False
        # Ours, too: from a concurrent call, or a note whose outcome was unknown when it was given up.
        self._existing = existing
        return None
