"""What a job sees of the world while it runs."""

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

    A job returns its result, or raises; whether that is what counts is decided by etcd when the attempt
    is marked. So an attempt may write only to places of its own (:meth:`staging_path`), and nothing it
    writes is visible until the operation is published.
    """

    operation: OperationArg
    """The operation's argument, options, table and location."""
    partition: str
    """Which job this is."""
    attempt: str
    """Unique among all attempts at all jobs: letters, digits and dashes. The fencing token for files."""
    run_token: int
    """Grows with every runner that takes the operation over. The fencing token for external systems."""

    @abstractmethod
    def load_checkpoint(self) -> bytes | None:
        """What an earlier attempt saved last, or ``None``."""

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
        """Whether the result of this attempt is no longer wanted. Set by push; look often."""

    def raise_if_cancelled(self) -> None:
        """Raise :class:`~distop.errors.Cancelled` once the attempt is not wanted any more."""
        if self.cancelled:
            raise Cancelled(f"job {self.partition} of {self.operation.id} was cancelled")

    def rows(self) -> Iterator[Any]:
        """Of a dynamic plan: the rows of this partition, as Arrow record batches. Once."""
        raise NotImplementedError(
            f"job {self.partition} of {self.operation.id} is no partition of a DataFrame"
        )

    def scratch_path(self) -> Path:
        """A folder on this host's own disk, for files that need not outlive the job.

        Of types that are resumed it is the job's: the next attempt on the same host finds what this one has
        left, as long as the job's checkpoint is the one it was left with. (An attempt on another host begins
        with an empty folder, and so does one here after it.) Give different progress different checkpoints.
        Otherwise the folder is private to the attempt. It is removed once the job has its result; what killed
        processes leave is removed by the host's sidecar.

        Raises
        ------
        Cancelled
            This attempt no longer owns the job.
        """
        raise NotImplementedError(f"{type(self).__name__} has no scratch")

    def staging_path(self, suffix: str, *, folder: str = "data") -> str:
        """A path below the table's location that belongs to this attempt alone.

        Parameters
        ----------
        suffix:
            End of the file name, such as ``.parquet`` or ``-3.parquet``.
        folder:
            Top folder below the table's location; ``data`` or ``metadata``.
        """
        name = f"{staging_stem(self.partition, self.attempt)}{suffix}"
        return f"{staging_folder(self.operation, folder)}/{name}"


def staging_folder(operation: OperationArg, folder: str = "data") -> str:
    """The folder that all attempts of an operation write into; nobody else ever does.

    Files are published where they lie, so this is also their final place.
    """
    return f"{operation.location}/{folder}/{operation.type}-{operation.uuid}"


def staging_stem(partition: str, attempt: str) -> str:
    """What the names of all files of one attempt begin with.

    The partition is in it for people only, cut and cleaned to what every file system and URL takes as it
    stands (``?`` and ``#`` would end a path); names are unique by the attempt.
    """
    return f"{_NOT_IN_FILE_NAMES.sub('_', partition)[:64]}-{attempt}"
