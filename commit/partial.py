"""What an operation publishes when some of its jobs have failed within the allowed number.

Rows and watermarks stay together: if a job of a watermark has failed, the watermark does not move, and then
no row that it covers may be published, or ingesting the rows again would duplicate them. So jobs that share a
watermark with a failed one are *withheld*, and so are those that share one with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from distop.errors import PreconditionFailed
from distop.metastore.records.operation import JobRecord, OperationArg, WatermarkMove

Moves = dict[str, dict[str, WatermarkMove]]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The part of an operation that is published."""

    moves: Moves
    """The watermarks that move."""
    jobs: Mapping[str, JobRecord]
    """The jobs whose output is published, by partition."""
    withheld: frozenset[str] = field(default_factory=frozenset)
    """Successful jobs whose output is not published."""

    def counted(self) -> dict[str, int]:
        """Rows, files and bytes that are published, from the jobs' records alone."""
        names = ("rows", "files", "bytes")
        return {name: sum(int(job.result.get(name, 0)) for job in self.jobs.values()) for name in names}


def selection(arg: OperationArg, jobs: Mapping[str, JobRecord]) -> Selection:
    """What is published of a sealed operation.

    Parameters
    ----------
    jobs:
        The records of all its jobs; if empty, all have succeeded.

    Raises
    ------
    PreconditionFailed
        Jobs have succeeded, and every one of them is withheld: there is nothing to publish.
    """
    if all(job.state == "success" for job in jobs.values()):
        return Selection(moves=arg.watermarks, jobs=jobs)
    names = arg.partition_names()
    blocked = [name not in jobs or jobs[name].state != "success" for name in names]
    failed = list(blocked)
    waiting = [
        (source, partition, move)
        for source, partitions in arg.watermarks.items()
        for partition, move in partitions.items()
    ]
    settled = False
    while not settled:
        settled = True
        moving = []
        for source, partition, move in waiting:
            ranges = [(0, len(names))] if move.jobs is None else move.jobs
            if not any(any(blocked[start:end]) for start, end in ranges):
                moving.append((source, partition, move))
                continue
            settled = False
            for start, end in ranges:
                blocked[start:end] = [True] * len(blocked[start:end])
        waiting = moving
    withheld = {
        name
        for name, is_blocked, has_failed in zip(names, blocked, failed, strict=True)
        if is_blocked and not has_failed
    }
    if all(blocked):
        raise PreconditionFailed(
            f"{arg.id}: {sum(failed)} of {len(names)} jobs failed, and the {len(withheld)} others share a "
            "watermark with them: nothing can be published",
            hint="start it again, on parts that have watermarks of their own",
        )
    moves: Moves = {}
    for source, partition, move in waiting:
        moves.setdefault(source, {})[partition] = move
    published = {name: job for name, job in jobs.items() if job.state == "success" and name not in withheld}
    return Selection(moves=moves, jobs=published, withheld=frozenset(withheld))
