"""Runs: a runner's hold on an operation, and the fence that everything its jobs write carries.

Every transaction of a job compares *the run is held*: the operation is ``running`` and its ``.runner`` key is
the very one this run created. Such conditions only ever go from true to false: a state never comes back to
``running``, create revisions are never used twice, a job's result is written once. So a transaction may be
sent twice, and a copy that was delayed in the network finds its condition false and changes nothing.
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
    # Workers that only send marks through a sidecar import this module, and must not pay for gRPC.
    from distop.metastore.etcd.client import EtcdClient

RUNNER_GONE = "its runner is gone"
"""Why a run is over when the operation itself is not: another runner may take it."""

PAUSED = "the operation is paused, or its table is"
"""Why a run is over when somebody holds the operation."""

_LISTED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Run:
    """One runner's hold on one operation. Whatever its jobs write carries :meth:`held`."""

    keys: OperationKeys
    token: int
    """The create revision of ``.runner``. Grows with every runner that takes the operation over."""

    def __post_init__(self) -> None:
        # A create revision of 0 means "absent" to etcd: such a fence would hold when nobody runs it.
        if self.token <= 0:
            raise InvalidArgument(f"{self.token} is no run token", details={"field": "run_token"})

    @property
    def key(self) -> tuple[bytes, int]:
        """Equal for equal runs."""
        return self.keys.root, self.token

    def held(self) -> tuple[Compare, Compare]:
        """The fence: holds as long as the operation is running and this run is the one that runs it."""
        return equals(self.keys.state, RUNNING), created_at(self.keys.runner, self.token)

    def why_over(self, state: KeyValue, runner: KeyValue) -> str:
        """Why the run is not held any more, in words; empty while it is."""
        if not state.exists:
            return "the operation is over"
        if state.value != RUNNING:
            return f"the operation is {state.value.decode(errors='replace')}"
        return "" if runner.create_revision == self.token else RUNNER_GONE


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
    revision: int
    """What the run was held at; changes after it are to be watched."""
    standing: list[KeyValue] = field(default_factory=list)
    """The keys of its jobs, without values."""


async def take_runner(
    client: EtcdClient, keys: OperationKeys, record: RunnerRecord, lease: int
) -> Taken | None:
    """IF ``.state = running`` AND nobody runs it AND nobody has paused it or its table THEN ``.runner`` under
    ``lease``, and its entry among those that wait goes; ``None`` if not so.

    A repeat after a lost reply finds its own key by member and lease.

    Raises
    ------
    CorruptRecord
        This version does not understand the argument. The operation is left to others.
    """
    txn = Txn(
        (equals(keys.state, RUNNING), absent(keys.runner), *not_paused(keys)),
        (
            Put(keys.runner, encode(record), lease),
            *_reads_of_taken(keys),
            _few_jobs(keys),
            Delete(keys.waiting),
        ),
        (Get(keys.state), *_reads_of_taken(keys), Get(keys.waiting)),
        lane=keys.table_prefix,
    )
    reached("take.before")
    result = await settle(client, txn, patience_s=PATIENCE_S, replied=lambda: reached("take.after"))
    runner = result.one(1, keys.runner)
    if not result.succeeded:
        running = result.one(0, keys.state).value == RUNNING
        if not running and result.got(3):
            # Its keys were removed by hand. It never runs again, so nobody waits for anything there.
            await settle(client, Txn(then=(Delete(keys.waiting),)), patience_s=PATIENCE_S)
        ours = running and runner.exists and runner.lease == lease
        if not ours or decode(runner.value, RunnerRecord, runner.key).member != record.member:
            return None
    run, value = Run(keys, runner.create_revision), result.one(2, keys.arg).value
    jobs = result.results[3] if result.succeeded else None
    listed = jobs.got(0) if isinstance(jobs, TxnResult) and jobs.succeeded else None
    try:
        arg = decode(value, OperationArg, keys.arg)
    except CorruptRecord:
        await release_runner(client, run, again=True)  # a runner of another version may understand it
        raise
    if listed is None or len(listed) == _LISTED_AT_ONCE:
        listed = (await client.scan(keys.prefix, keys_only=True)).kvs
    return Taken(run, value, arg, without_result(keys, arg, listed), result.revision, listed)


def _reads_of_taken(keys: OperationKeys) -> tuple[Get, Get]:
    return Get(keys.runner), Get(keys.arg)


def _few_jobs(keys: OperationKeys) -> Txn:
    """Reads the keys of jobs, unless the leader has written down a count: then there are many, and etcd would
    go over all of them while nobody can write."""
    jobs = Get(keys.prefix, prefix_end(keys.prefix), keys_only=True, limit=_LISTED_AT_ONCE)
    return Txn((absent(keys.job_counts),), (jobs,))


def without_result(keys: OperationKeys, arg: OperationArg, kvs: Iterable[KeyValue]) -> list[str]:
    """The partitions that have no result among the keys of an operation, in the order of the plan."""
    finished = set()
    for kv in kvs:
        found = keys.partition_of(kv.key)
        if found is not None and found[1] == "state":
            finished.add(found[0])
    return [name for name in arg.partition_names() if name not in finished]


async def release_runner(client: EtcdClient, run: Run, *, again: bool = False) -> None:
    """Let go of an operation; of one that is lost already: nothing happens. ``again``: there is work left,
    so that it waits for a runner from now on, if it still runs."""
    runner = created_at(run.keys.runner, run.token)
    gone: tuple[Op, ...] = (Delete(run.keys.runner),)
    if again:
        gone += (Txn((equals(run.keys.state, RUNNING),), index_puts(run.keys)[1:]),)
    reached("release.before")
    await settle(
        client, Txn((runner,), gone), patience_s=PATIENCE_S, replied=lambda: reached("release.after")
    )
