"""The jobs of one operation that is under way, a page at a time, and failures by what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distop.coordinator.state.grid import CLAIMED, FAILED, SUCCEEDED, WAITING, JobGrid
from distop.errors import CorruptRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get
from distop.metastore.operations.jobs import read_tries
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.operation import ClaimRecord, JobRecord, RunnerRecord
from distop.metastore.records.record import decode

STATES = {"waiting": WAITING, "running": CLAIMED, "done": SUCCEEDED, "failed": FAILED}
"""The states of a job, and the cell of each in a grid. Only exclusive jobs are ever ``running``."""

PAGE = 30
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
    cells, after = grid.some(STATES.get(state, ""), start, PAGE)
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
