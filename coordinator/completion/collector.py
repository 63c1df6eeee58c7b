"""What a finished operation has left behind: its staged files are swept, and its keys removed."""

from __future__ import annotations

import logging
from collections.abc import Callable

from distop.coordinator.completion.publication import read_jobs
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.work.work import Work
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.watch import until_absent
from distop.metastore.operations import retention
from distop.metastore.operations.ending import collect
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import decode

log = logging.getLogger(__name__)


class Collector:
    """Collects for the drivers of one coordinator."""

    def __init__(self, client: EtcdClient, work: Work, wall: Callable[[], float]) -> None:
        self._client, self._work, self._wall = client, work, wall

    async def collect(self, keys: TableKeys, tracked: Tracked) -> None:
        """Sweep the files and remove the keys that a finished operation has left behind."""
        if tracked.arg.stages_files:
            # While its runner's key stands attempts may still be writing; its owner or its lease removes it.
            await until_absent(self._client, tracked.keys.runner)
            await self._sweep(keys, tracked)
        await collect(self._client, keys, tracked.keys)
        tracked.gone = True
        if tracked.arg.instance % retention.EVERY == 0:
            await retention.prune(self._client, keys, now=self._wall())

    async def _sweep(self, keys: TableKeys, tracked: Tracked) -> None:
        """Remove staged files that were not published. Without a record of the outcome nothing is removed."""
        from distop.commit.cleanup.staged import sweep

        kv = await self._client.get(keys.history(tracked.arg.id))
        if not kv.exists:
            return
        history = decode(kv.value, HistoryRecord, kv.key)
        jobs = await read_jobs(self._client, tracked.keys) if history.outcome == "success" else {}
        what = f"sweeping the files of {tracked.arg.id}"
        removed = await self._work.blocking(keys.name, what, sweep, tracked.arg, history, jobs)
        if removed:
            fields = {"table": keys.name, "operation": str(tracked.arg.id), "files": removed}
            log.info("staged_files_swept", extra=fields)
