"""Ingests some of whose jobs may fail: which jobs each watermark depends on. Pure.

Such an ingest splits its files so that no job reads files of two paths: then a failed job withholds only its
own path.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, islice

import msgspec

from distop.metastore.records.operation import OperationOptions, WatermarkMove
from distop.operations.arguments import invalid
from distop.sources.formats.files import FoundSource
from distop.spark_jobs.ingest.argument import IngestArgument
from distop.spark_jobs.ingest.splits import Extent, jobs_reading


def may_fail_in_part(argument: IngestArgument, options: OperationOptions) -> bool:
    """Whether the successful part is published although other jobs fail.

    Raises :class:`~distop.errors.InvalidArgument` for modes that would replace rows by a part of the new
    ones.
    """
    if options.max_failed_partitions == 0:
        return False
    if argument.mode in ("overwrite", "overwrite_partitions", "merge"):
        raise invalid(
            "mode",
            f"--mode {argument.mode} replaces rows, and failed jobs would leave gaps in their place",
            "leave out --max-failed, or append",
        )
    return True


def first_files(found: FoundSource) -> Collection[int]:
    """The position of each path's first file among all files."""
    ends = accumulate(len(files) for files in found.partitions.values())
    return frozenset(ends) | {0}


def with_jobs(
    moves: Mapping[str, WatermarkMove], lengths: Mapping[str, int], cuts: Sequence[int]
) -> dict[str, WatermarkMove]:
    """The moves of a source, each with the jobs that read its partition.

    Parameters
    ----------
    lengths:
        Partition -> its units on the line that was split, in order. One without units has no job.
    """
    jobs = jobs_reading(lengths, cuts)
    return {
        partition: msgspec.structs.replace(move, jobs=jobs.get(partition, []))
        for partition, move in moves.items()
    }


def lengths_of_paths(found: FoundSource, extents: Sequence[Extent]) -> dict[str, int]:
    """Path -> the units of its files together."""
    units = iter(extent.units for extent in extents)
    return {path: sum(islice(units, len(files))) for path, files in found.partitions.items()}
