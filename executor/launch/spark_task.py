"""The code that Spark ships to its workers: one task of an operation."""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pyspark import TaskContext

from distop.executor.host.scratch import Scratch
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.sidecar.client import SidecarClient, client_of_this_process
from distop.executor.task.task import TaskSummary, TaskWork, run_task
from distop.lake.storage.allowed import adopt, lists
from distop.metastore.etcd.config import PASSWORD_FILE, EtcdConfig
from distop.metastore.operations.jobs import Tried
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import decode
from distop.operations import Registry

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SparkTask:
    """A function over packs of partition names. Small, since every task of the stage contains it.

    Parameters
    ----------
    arg_value:
        The operation's argument as stored in etcd.
    types:
        Operation types without a package, as of ``DISTOP_OPERATIONS``.
    etcd:
        The environment for etcd, for a sidecar that must be started. Without a password: every user of
        Spark's page may see it. The sidecar takes that from the environment of the worker, or from the file
        named here.
    allowed:
        The lists of the driver; see :mod:`distop.lake.storage.allowed`.
    """

    arg_value: bytes
    run_token: int
    tried: Mapping[str, Tried]
    types: str
    etcd: dict[str, str]
    allowed: Mapping[str, str] = field(default_factory=lists)

    def __call__(self, packs: Iterable[list[str]]) -> Iterator[TaskSummary]:
        # Read at once: Spark does not reuse a worker that leaves its input unread.
        partitions = [partition for pack in packs for partition in pack]
        client, work = self.begin()
        context = TaskContext.get()
        name = f"s{context.taskAttemptId()}" if context is not None else "s"
        summary = run_task(client, work, partitions, name, _end_worker)
        settle_worker(os.getpid(), len(sys.modules))
        yield summary

    def begin(self) -> tuple[SidecarClient, TaskWork]:
        """The connection to etcd, and the task's context; in a worker."""
        # To stderr, in the form that a sidecar's log has. Where somebody has set up a log, that stays.
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
        adopt(self.allowed)
        arg = _decoded(self.arg_value)
        # The password's file is not needed here if the host has a sidecar.
        config = EtcdConfig.from_env({**self.etcd, PASSWORD_FILE: ""})
        folder = SidecarFolder.of(config.endpoints, config.prefix)
        work = TaskWork(
            operation=_registry(self.types).get(arg.type),
            arg=arg,
            run_token=self.run_token,
            scratch=Scratch(folder),
            tried=self.tried,
        )
        return client_of_this_process(folder, self.etcd), work


def _end_worker() -> None:
    """An attempt hangs. Nothing else ends it: Spark starts another worker and retries its task."""
    log.error("attempt_hangs")
    os._exit(70)


@functools.lru_cache(maxsize=4)
def _decoded(value: bytes) -> OperationArg:
    """An operation's argument; cached for the next task of the same operation, since it may be large."""
    return decode(value, OperationArg)


@functools.lru_cache(maxsize=8)
def _registry(types: str) -> Registry:
    return Registry(types.split(","))


@functools.lru_cache(maxsize=1)
def settle_worker(pid: int, modules: int) -> None:
    """Exclude what is loaded by now from garbage collection: Spark's worker loop runs a full collection after
    each task, which otherwise costs more than a small one. Once per process, and again after
    a task that has loaded more, such as what its type writes with."""
    gc.collect()
    gc.freeze()
