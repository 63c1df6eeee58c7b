"""The context of a running job."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distop.errors import Cancelled
from distop.metastore.records.operation import OperationArg

_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9_=-]")


class JobContext(ABC):
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
        """
        name = f"{staging_stem(self.partition, self.attempt)}{suffix}"
        return f"{staging_folder(self.operation, folder)}/{name}"


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
