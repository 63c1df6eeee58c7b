"""Runs: a runner's hold on an operation, and the fence in everything that its jobs write.

Every transaction of a job compares *the run is held*: the operation is ``running`` and its ``.runner`` key is
the one that this run created. These conditions only ever change from true to false: a state never returns to
``running``, create revisions are never reused, a job's result is written once. So such a transaction may be
sent twice, and a delayed copy finds its condition false and changes nothing.

What a take compares can become true again: a runner lets go of an operation, a pause ends. A delayed copy may
then take the operation for a runner that does not know of it, as a take does whose outcome stays unknown. So
each runner looks from time to time at what is bound to its lease: see :func:`give_back`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distop.errors import InvalidArgument, OutcomeUnknown
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.named import named
from distop.metastore.etcd.txn import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    Txn,
    TxnResult,
    absent,
    created_at,
    equals,
)
from distop.metastore.etcd.update import PATIENCE_S, settle
from distop.metastore.operations.active import waiting_puts
from distop.metastore.records.components import prefix_end
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.operation import RUNNING, OperationArg, RunnerRecord
from distop.metastore.records.record import decode, encode

if TYPE_CHECKING:
    # Workers that only send marks through a sidecar import this module, and must not load gRPC.
    from distop.metastore.etcd.client import EtcdClient

log = logging.getLogger(__name__)

RUNNER_GONE = "its runner is gone"
"""Why a run is over when the operation itself is not: another runner may take it."""

PAUSED = "the operation is paused, or its table is"
"""Why a run is over when the operation is paused."""

_LISTED_AT_ONCE = 1000


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
        """Equal for equal runs."""
        return self.keys.root, self.token

    def held(self) -> tuple[Compare, Compare]:
        """The fence: holds as long as the operation is running under this run."""
        return equals(self.keys.state, RUNNING), created_at(self.keys.runner, self.token)

    def why_over(self, state: KeyValue, runner: KeyValue) -> str:
        """Why the run is no longer held, in words; empty while it is."""
        if not state.exists:
            return "the operation is over"
        if state.value != RUNNING:
            return f"the operation is {state.value.decode(errors='replace')}"
        return "" if runner.create_revision == self.token else RUNNER_GONE


async def why_over(client: EtcdClient, run: Run) -> tuple[str, int]:
    """Why the run is over at present, in words, also :data:`PAUSED`; empty while it is held. With the
    revision at which this was read.
    """
    keys = run.keys
    wanted = (keys.state, keys.runner, keys.pause, keys.table_pause)
    result = await settle(client, Txn(then=tuple(Get(key) for key in wanted)), patience_s=PATIENCE_S)
    state, runner, *pauses = (result.one(index, key) for index, key in enumerate(wanted))
    paused = PAUSED if any(pause.exists for pause in pauses) else ""
    return run.why_over(state, runner) or paused, result.revision


def not_paused(keys: OperationKeys) -> tuple[Compare, Compare]:
    """Holds while neither the operation nor its table is paused."""
    return absent(keys.pause), absent(keys.table_pause)


@dataclass(frozen=True, slots=True)
class Taken:
    """An operation that this runner runs from now on."""

    run: Run
    arg_value: bytes
    arg: OperationArg
    unfinished: list[str]
    """Partitions without a result, in the order of the plan."""
    standing: list[KeyValue] = field(default_factory=list)
    """The keys of its jobs, without values."""


async def take_runner(
    client: EtcdClient, keys: OperationKeys, record: RunnerRecord, lease: int
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
    txn = Txn(
        (equals(keys.state, RUNNING), absent(keys.runner), *not_paused(keys)),
        (
            Put(keys.runner, encode(record), lease),
            Get(keys.runner),
            Get(keys.arg),
            _few_jobs(keys),
            Delete(keys.waiting),
        ),
        (Get(keys.state), Get(keys.waiting)),
        lane=keys.table_prefix,
    )
    reached("take.before")
    result = await settle(client, txn, patience_s=PATIENCE_S, replied=lambda: reached("take.after"))
    if not result.succeeded:
        if result.got(1) and result.one(0, keys.state).value != RUNNING:
            # Its keys were removed by hand. It never runs again, so its waiting entry is useless.
            await settle(client, Txn(then=(Delete(keys.waiting),)), patience_s=PATIENCE_S)
        if result.doubt:
            raise OutcomeUnknown(f"an earlier copy of the request may have taken {keys.operation}")
        return None
    run, value = Run(keys, result.one(1, keys.runner).create_revision), result.one(2, keys.arg).value
    arg = decode(value, OperationArg, keys.arg)
    jobs = result.results[3]
    listed = jobs.got(0) if isinstance(jobs, TxnResult) and jobs.succeeded else None
    if listed is None or len(listed) == _LISTED_AT_ONCE:
        listed = (await client.scan(keys.prefix, keys_only=True)).kvs
    return Taken(run, value, arg, without_result(keys, arg, listed), listed)


def _few_jobs(keys: OperationKeys) -> Txn:
    """Reads the keys of jobs, unless the leader has written a count: then there are many, and etcd would
    block all writes while it reads them."""
    jobs = Get(keys.prefix, prefix_end(keys.prefix), keys_only=True, limit=_LISTED_AT_ONCE)
    return Txn((absent(keys.job_counts),), (jobs,))


def without_result(keys: OperationKeys, arg: OperationArg, kvs: Iterable[KeyValue]) -> list[str]:
    """The partitions without a result among the keys of an operation, in the order of the plan."""
    finished = set()
    for kv in kvs:
        found = keys.partition_of(kv.key)
        if found is not None and found[1] == "state":
            finished.add(found[0])
    return [name for name in arg.partition_names() if name not in finished]


async def release_runner(client: EtcdClient, run: Run, *, again: bool = False) -> None:
    """Release an operation; does nothing if it is already lost. ``again``: work is left, so if the operation
    still runs, it waits for another runner."""
    runner = created_at(run.keys.runner, run.token)
    gone: tuple[Op, ...] = (Delete(run.keys.runner),)
    if again:
        gone += (Txn((equals(run.keys.state, RUNNING),), waiting_puts(run.keys, "given back")),)
    reached("release.before")
    await settle(
        client, Txn((runner,), gone), patience_s=PATIENCE_S, replied=lambda: reached("release.after")
    )


async def give_back(client: EtcdClient, lease: int, keep: Callable[[Run], bool]) -> list[Run]:
    """Release what is held under ``lease``, except for the runs that ``keep`` holds for; returns all of them.

    So no operation is held by a runner that does not work on it, whatever was lost, late or doubled: a take,
    a release. Those that have ended are released, too: their staged files are swept only then.
    """
    space, end, bound = client.keyspace, b".runner", await client.lease_keys(lease)
    roots = (KeyValue.missing(key.removesuffix(end)) for key in bound if key.endswith(end))
    keys = [space.operation(operation) for operation, _ in named(roots, space.parse_root)]
    if not keys:
        return []
    read = await client.read_many([Get(one.runner, keys_only=True) for one in keys])
    runners = (read.one(index, one.runner) for index, one in enumerate(keys))
    held = [
        Run(one, runner.create_revision)
        for one, runner in zip(keys, runners, strict=True)
        if runner.lease == lease
    ]
    for run in held:
        if not keep(run):  # asked last: a take may have ended meanwhile
            log.info("run_given_back", extra={"operation": str(run.keys.operation), "run_token": run.token})
            await release_runner(client, run, again=True)
    return held
