"""Removes unneeded scratch: of operations gone, jobs done or moved to another host, dead attempts.

What may still be used or resumed from is kept; and, in doubt (etcd does not answer, a folder is not
understood), everything.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from distop.errors import DistopError, InvalidName
from distop.executor.host.scratch import kept_by, private_to, read_note
from distop.executor.host.sidecar_folder import SCRATCH_OWNER
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue
from distop.metastore.members.registration import is_of_this_host
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import RUNNING, ClaimRecord
from distop.metastore.records.record import readable

log = logging.getLogger(__name__)

EVERY_S = 60.0
"""Interval of sweeps, randomised. Nothing but disk space depends on it."""


async def keep_swept(client: EtcdClient, scratch: Path, *, rng: random.Random | None = None) -> None:
    """Sweep periodically, until cancelled."""
    rng = rng or random.Random()
    while True:
        await sweep_scratch(client, scratch)
        await asyncio.sleep(EVERY_S * rng.uniform(0.5, 1.0))


async def sweep_scratch(client: EtcdClient, scratch: Path) -> list[Path]:
    """Remove unneeded folders; return them."""
    removed: list[Path] = []
    for folder, operation in await asyncio.to_thread(lambda: list(_operations(scratch))):
        keys = client.keyspace.operation(operation)
        try:
            state = await client.get(keys.state)
            if state.value != RUNNING:
                removed.append(folder)
            else:
                removed += await _of_jobs(client, keys, folder)
        except (DistopError, OSError) as error:
            log.warning("scratch_not_swept", extra={"operation": str(operation), "error": str(error)})
    for folder in removed:
        reached("scratch.before")
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        reached("scratch.after")
    if removed:
        log.info("scratch_swept", extra={"folders": len(removed)})
    return removed


async def _of_jobs(client: EtcdClient, keys: OperationKeys, folder: Path) -> list[Path]:
    """The unneeded folders of jobs and attempts of a running operation."""
    removed: list[Path] = []
    for job, partition in await asyncio.to_thread(lambda: list(_jobs(folder))):
        # Before etcd is read: later folders may belong to an attempt that has begun since.
        attempts = await asyncio.to_thread(_listing, job)
        wanted = (keys.runner, keys.job_state(partition), keys.claim(partition))
        read = await client.read_at_once([Get(key) for key in wanted])
        runner, state, claim = read.each(wanted)
        if state.exists:
            removed.append(job)
        else:
            removed += [path for path in attempts if _is_over(path.name, runner, claim)]
    return removed


def _is_over(name: str, runner: KeyValue, claim: KeyValue) -> bool:
    """Whether the attempt of a folder is over, and no attempt here will resume from it."""
    if attempt := private_to(name):
        # An attempt's name begins with its run.
        return attempt.split("-", 1)[0] != str(runner.create_revision)
    kept = kept_by(name)
    if kept is None or not claim.exists or claim.create_revision == kept[0]:
        return False
    record = readable(claim.value, ClaimRecord)
    # An attempt of this host is about to take it over.
    return record is not None and not is_of_this_host(record.member)


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:  # there is none, or the attempt that needed it has removed it
        return []


def _operations(scratch: Path) -> Iterator[tuple[Path, OperationId]]:
    for folder in _listing(scratch):
        try:
            yield folder, OperationId.parse((folder / SCRATCH_OWNER).read_text())
        except (OSError, ValueError, InvalidName):
            log.warning("scratch_of_nobody", extra={"folder": str(folder)})


def _jobs(operation: Path) -> Iterator[tuple[Path, str]]:
    for folder in _listing(operation):
        note = read_note(folder) if folder.is_dir() else None
        if note is not None:
            yield folder, note.partition
