"""The context of a running job."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, Self

from distop.errors import Cancelled, InvalidArgument
from distop.metastore.records.operation import OperationArg
from distop.operations.plans import INPUTS, A, recorded_argument

_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9_=-]")


class RowsWriter(Protocol):
    """Takes the rows of one attempt, as a context manager, which removes them if its block raises."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...

    def write(self, data: Any) -> None:
        """Write a ``pyarrow.RecordBatch`` with the columns of the plan, in bounded memory.

        Raises
        ------
        BadRow
            A row does not match the columns of the table.
        """

    def finish(self) -> dict[str, Any]:
        """End it; the result of the job (``rows``, ``files``, ``bytes``, its manifest)."""


class JobContext(ABC, Generic[A]):
    """One attempt at one job of an operation.

    A job returns its result, or raises; etcd decides whether the attempt counts when it is marked. So an
    attempt may write only to places of its own (:meth:`staging_path`), and nothing it writes is visible until
    the operation is published.
    """

    operation: OperationArg
    """The operation's argument, options, table and location."""
    partition: str
    """The partition of this job."""
    attempt: str
    """Unique among all attempts at all jobs: letters, digits and dashes. The fencing token for files."""
    run_token: int
    """Grows with every runner that takes over the operation. The fencing token for external systems."""
    argument_type: type[A] | None = None
    """The class of the type's argument."""

    @cached_property
    def argument(self) -> A:
        """The argument of the plan, as the type declares it."""
        return recorded_argument(self.operation, self.argument_type)

    @property
    def input(self) -> Any:
        """What this job works on: its input in :meth:`distop.Plan.of`."""
        inputs = self.operation.argument[INPUTS]
        return inputs[self.partition if isinstance(inputs, dict) else int(self.partition)]

    @abstractmethod
    def load_checkpoint(self) -> bytes | None:
        """The last checkpoint of an earlier attempt, or ``None``."""

    @abstractmethod
    def save_checkpoint(self, value: bytes) -> None:
        """Save progress that a later attempt resumes from (1 KiB at most).

        Raises
        ------
        Cancelled
            This attempt no longer owns the job; nothing was saved.
        """

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the result of this attempt is no longer needed. Set by push; check it often."""

    def raise_if_cancelled(self) -> None:
        """Raise :class:`~distop.errors.Cancelled` once the attempt is no longer needed."""
        if self.cancelled:
            raise Cancelled(f"job {self.partition} of {self.operation.id} was cancelled")

    def rows(self) -> Iterator[Any]:
        """Of a dynamic plan: the rows of this partition, as Arrow record batches. Can be read once."""
        raise NotImplementedError(
            f"job {self.partition} of {self.operation.id} is not a partition of a DataFrame"
        )

    def writer(self) -> RowsWriter:
        """Takes the rows of this attempt; for plans with rows (:meth:`distop.Plan.rows`).

        The job returns the result of ``finish()``. The rows are invisible until the operation is published.
        """
        raise NotImplementedError(f"{type(self).__name__} writes no rows")

    def scratch_path(self) -> Path:
        """A folder on this host's own disk, for files that need not outlive the job.

        If jobs are resumed it belongs to the job: the next attempt on the same host finds the files of this
        one, as long as the job's checkpoint is the one they belong to. (An attempt on another host begins
        with an empty folder, and so does one here after it.) Use different checkpoints for different
        progress. Otherwise the folder is private to the attempt. It is removed once the job has its result;
        the host's sidecar removes what killed processes leave.

        Raises
        ------
        Cancelled
            This attempt no longer owns the job.
        """
        raise NotImplementedError(f"{type(self).__name__} has no scratch")

    def staging_path(self, suffix: str, *, folder: str = "data") -> str:
        """A path below the table's location that belongs only to this attempt.

        Parameters
        ----------
        suffix:
            Suffix of the file name, such as ``.parquet`` or ``-3.parquet``.
        folder:
            Top folder below the table's location; ``data`` or ``metadata``.

        Raises
        ------
        InvalidArgument
            The type does not say that it stages files, so nothing would sweep them.
        """
        if not self.operation.stages_files:
            raise InvalidArgument(
                f"nothing would sweep the files that jobs of {self.operation.type} stage",
                hint="set stages_files = True in the operation type",
            )
        name = f"{staging_stem(self.partition, self.attempt)}{suffix}"
        return f"{staging_folder(self.operation, folder)}/{name}"


def result_of(job: JobContext, returned: Mapping[str, Any] | Iterator[Any] | None) -> Mapping[str, Any]:
    """The result of a job whose code has returned this; writes the rows that it yields."""
    if not isinstance(returned, Generator):
        assert not isinstance(returned, Iterator)
        return returned or {}
    with job.writer() as writer:
        for batch in returned:
            job.raise_if_cancelled()
            writer.write(batch)
        return writer.finish()


def staging_folder(operation: OperationArg, folder: str = "data") -> str:
    """The folder for all attempts of an operation; nothing else writes there.

    Files are published where they are, so this is also their final place.
    """
    return f"{operation.location}/{folder}/{operation.type}-{operation.uuid}"


def staging_stem(partition: str, attempt: str) -> str:
    """The prefix of the names of all files of one attempt.

    It contains the partition for people only, shortened and restricted to characters that every file system
    and URL accepts (``?`` and ``#`` would end a path); the attempt makes names unique.
    """
    return f"{_NOT_IN_FILE_NAMES.sub('_', partition)[:64]}-{attempt}"
