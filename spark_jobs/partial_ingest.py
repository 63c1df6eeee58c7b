"""Ingests some of whose jobs may fail: which jobs each watermark depends on. Pure.

Such an ingest cuts its files so that no job reads files of two paths: then a job that fails holds back the
path it belongs to and no other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate

import msgspec

from distop.metastore.records import OperationOptions, WatermarkMove
from distop.spark_jobs.ingest_argument import IngestArgument, invalid
from distop.spark_jobs.sources import FoundSource
from distop.spark_jobs.splits import Extent


def may_fail_in_part(argument: IngestArgument, options: OperationOptions) -> bool:
    """Whether what succeeds is to be published although other jobs fail.

    Raises :class:`~distop.errors.InvalidArgument` for modes that would replace rows by part of the new ones.
    """
    if options.max_failed_partitions == 0:
        return False
    if argument.mode in ("overwrite", "overwrite_partitions"):
        raise invalid(
            "mode",
            f"mode {argument.mode} replaces rows, and jobs that may fail would leave gaps in their place",
            "allow no failed partitions, or append",
        )
    return True


def first_files(found: FoundSource) -> Collection[int]:
    """The place of each path's first file among all files."""
    ends = accumulate(len(files) for files in found.partitions.values())
    return frozenset(ends) | {0}


def with_jobs(
    moves: dict[str, dict[str, WatermarkMove]],
    found: FoundSource,
    extents: Sequence[Extent],
    cuts: Sequence[int],
) -> dict[str, dict[str, WatermarkMove]]:
    """The moves, each with the jobs that read files of its path."""
    line = [0, *accumulate(extent.units for extent in extents)]
    jobs: dict[str, list[tuple[int, int]]] = {}
    file = 0
    for path, files in found.partitions.items():
        begin, end = line[file], line[file + len(files)]
        jobs[path] = [(bisect_right(cuts, begin) - 1, bisect_left(cuts, end))]
        file += len(files)
    return {
        source: {path: msgspec.structs.replace(move, jobs=jobs[path]) for path, move in partitions.items()}
        for source, partitions in moves.items()
    }
