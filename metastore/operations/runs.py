"""Runs: a runner's hold on an operation, and the fence in everything that its jobs write.

Every transaction of a job compares *the run is held*: the operation is ``running`` and its ``.runner`` key is
the one that this run created. Such conditions only ever change from true to false: a state never returns to
``running``, create revisions are never reused, a job's result is written once. So a transaction may be sent
twice, and a delayed copy finds its condition false and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distop.errors import CorruptRecord, InvalidArgument
from distop.metastore.crashpoints import reached
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
from distop.metastore.operations.active import index_puts
from distop.metastore.records.components import prefix_end
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.operation import RUNNING, OperationArg, RunnerRecord
from distop.metastore.records.record import decode, encode

if TYPE_CHECKING:
    # Workers that only send marks through a sidecar import this module, and must not load gRPC.
    from distop.metastore.etcd.client import EtcdClient

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

    A repetition after a lost reply finds its own key by member and lease.

    Raises
    ------
    CorruptRecord
        This version cannot read the argument. The operation is left to others.
    """
    txn = Txn(
        (equals(keys.state, RUNNING), absent(keys.runner), *not_paused(keys)),
        (
            Put(keys.runner, encode(record), lease),
            *_reads_of_taken(keys),
            _few_jobs(keys),
            Delete(keys.waiting),
        ),
        (
            Get(keys.state),
            *_reads_of_taken(keys),
            Get(keys.waiting),
            *(Get(compare.key) for compare in not_paused(keys)),
        ),
        lane=keys.table_prefix,
    )
    reached("take.before")
    result = await settle(client, txn, patience_s=PATIENCE_S, replied=lambda: reached("take.after"))
    runner = result.one(1, keys.runner)
    if not result.succeeded:
        running = result.one(0, keys.state).value == RUNNING
        if not running and result.got(3):
            # Its keys were removed by hand. It never runs again, so its waiting entry is useless.
            await settle(client, Txn(then=(Delete(keys.waiting),)), patience_s=PATIENCE_S)
        ours = running and runner.exists and runner.lease == lease
        if not ours or decode(runner.value, RunnerRecord, runner.key).member != record.member:
            return None
    run, value = Run(keys, runner.create_revision), result.one(2, keys.arg).value
    if not result.succeeded and (result.got(4) or result.got(5)):
        await release_runner(client, run, again=True)  # it was paused after the copy whose reply was lost
        return None
    jobs = result.results[3] if result.succeeded else None
    listed = jobs.got(0) if isinstance(jobs, TxnResult) and jobs.succeeded else None
    try:
        arg = decode(value, OperationArg, keys.arg)
    except CorruptRecord:
        await release_runner(client, run, again=True)  # a runner of another version may understand it
        raise
    if listed is None or len(listed) == _LISTED_AT_ONCE:
        listed = (await client.scan(keys.prefix, keys_only=True)).kvs
    return Taken(run, value, arg, without_result(keys, arg, listed), listed)


def _reads_of_taken(keys: OperationKeys) -> tuple[Get, Get]:
    return Get(keys.runner), Get(keys.arg)


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
        gone += (Txn((equals(run.keys.state, RUNNING),), index_puts(run.keys)[1:]),)
    reached("release.before")
    await settle(
        client, Txn((runner,), gone), patience_s=PATIENCE_S, replied=lambda: reached("release.after")
    )
