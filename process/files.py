"""Small files that others replace while we run: what they hold is read again when they have changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Generic, TypeVar

from distop.errors import DistopError, InvalidArgument

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BYTES = 4 << 20


class Reread(Generic[T]):
    """What some files hold, as ``make`` reads it.

    Files that are being replaced, or that make no sense, change nothing: what was read last goes on to hold.

    Parameters
    ----------
    paths:
        All are read again when one has changed.
    make:
        From their contents. Raises :class:`~distop.errors.InvalidArgument`.

    Raises
    ------
    InvalidArgument
        They cannot be read, or make no sense, at the start.
    """

    def __init__(self, paths: tuple[str, ...], make: Callable[..., T]) -> None:
        self._paths = paths
        self._make = make
        self._state = self._look()
        self._value = make(*(self._read(path) for path in paths))

    def now(self) -> T:
        """What they hold at present. Cheap while they stay as they are."""
        try:
            if (state := self._look()) != self._state:
                self._state = state  # also if it makes no sense: the error is raised once
                self._value = self._make(*(self._read(path) for path in self._paths))
                log.info("files_read_again", extra={"files": self._paths})
        except DistopError as error:
            log.warning("files_not_read_again", extra={"files": self._paths, "error": str(error)})
        return self._value

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        try:
            stats = [os.stat(path) for path in self._paths]
        except OSError as error:
            raise _unreadable(error) from None
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)

    def _read(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise _unreadable(error) from None
        if len(content) > MAX_BYTES:
            raise InvalidArgument(f"{path} is larger than {MAX_BYTES:,} bytes")
        return content


def _unreadable(error: OSError) -> InvalidArgument:
    return InvalidArgument(f"{error.filename} cannot be read: {error.strerror}")
