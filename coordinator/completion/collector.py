"""Cleans up after a finished operation: sweeps its staged files, lets its type sweep files elsewhere, and
removes its keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from distop.commit.contract import NOT_UNDONE
from distop.coordinator.completion.attempts import Parking, hook
from distop.coordinator.completion.publication import read_jobs, token_of
from distop.coordinator.starting.services import Services, Term
from distop.coordinator.state.tracker import Tracked
from distop.errors import OF_THE_WORLD
from distop.metastore.etcd.watch import until_absent
from distop.metastore.operations.ending import collect
from distop.metastore.operations.retention import prune_after
from distop.metastore.records.operation import ErrorRecord, HistoryRecord, JobRecord
from distop.metastore.records.record import decode
from distop.operations.api import OperationView, overrides

log = logging.getLogger(__name__)


class Collector:
    """Collects for the drivers of one coordinator."""

    def __init__(self, services: Services, parking: Parking) -> None:
        self._client, self._work, self._wall = services.client, services.publishing, services.wall
        self._parking = parking

    async def collect(self, term: Term, tracked: Tracked) -> None:
        """Sweep the files and remove the keys of a finished operation."""
        if tracked.arg.stages_files:
            # While its runner's key exists attempts may still be writing; its owner or its lease removes it.
            await until_absent(self._client, tracked.keys.runner)
            await self._sweep(term, tracked)
        await collect(self._client, term.keys, tracked.keys)
        tracked.gone = True
        await prune_after(self._client, term.keys, tracked.arg.id, now=self._wall())

    async def _sweep(self, term: Term, tracked: Tracked) -> None:
        """Remove staged files that were not published. Without a record of the outcome nothing is removed:
        nor with one of another operation of this name, whose table was made after this one's was gone."""
        from distop.lake.cleanup.staged import sweep

        keys = term.keys
        kv = await self._client.get(keys.history(tracked.arg.id))
        if not kv.exists:
            return
        history = decode(kv.value, HistoryRecord, kv.key)
        if history.uuid != tracked.arg.uuid:
            return
        jobs = await read_jobs(self._client, tracked.keys) if history.outcome == "success" else {}
        label = f"sweeping the files of {tracked.arg.id}"
        removed = await self._work.blocking(keys.name, label, sweep, tracked.arg, history, jobs)
        if removed:
            fields = {"table": keys.name, "operation": str(tracked.arg.id), "files": removed}
            log.info("staged_files_swept", extra=fields)
        await self._sweep_elsewhere(term, tracked, history, jobs)

    async def _sweep_elsewhere(
        self, term: Term, tracked: Tracked, history: HistoryRecord, jobs: Mapping[str, JobRecord]
    ) -> None:
        """Have the type remove files of attempts that do not count from places of its own.

        Raises its error: it is called again, with the pauses of its type's retries and without an end, since
        without the keys of the operation nobody would know what to remove.
        """
        from distop.lake.cleanup.staged import all_known

        arg, error = tracked.arg, None
        if history.outcome != "success":
            error = ErrorRecord(code=history.error_code, message=history.error, at=history.finished_at)
        elif not all_known(arg, history, jobs):
            return  # a collector that swept everything is already removing the records
        try:
            kind = self._work.registry.get(arg.type)
            if not overrides(kind, "cleanup") or history.facts.get(NOT_UNDONE):
                return
            view = OperationView(arg=arg, jobs=jobs, token=token_of(arg), error=error)
            label, call = f"cleanup of {arg.id}", partial(hook, "cleanup", view)
            await self._work.user(kind, arg.table, label, call, check=term.check)
        except OF_THE_WORLD:
            raise
        except Exception as raised:
            await self._parking.keep_trace(tracked, raised)
            raise
