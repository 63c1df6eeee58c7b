"""Offsets of a topic: what it holds, and ranges of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

SKIP_HINT = (
    "what is missing is gone for good: set kafka.on_gap to skip to leave it out and go on behind it; for the "
    "future, ingest more often than the topic's retention removes"
)


@dataclass(frozen=True, slots=True)
class Reach:
    """The offsets that a partition of a topic holds: ``low`` to ``high`` (exclusive).

    ``high`` is the last stable offset: behind it stand records of transactions that are still open.
    """

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now.

    Parameters
    ----------
    cluster:
        The cluster's own id; empty if it has none.
    """

    cluster: str
    name: str
    reach: dict[int, Reach]

    @property
    def url(self) -> str:
        """Names the topic among those of all clusters."""
        return f"kafka://{self.cluster}/{self.name}" if self.cluster else f"kafka:{self.name}"


class OffsetRange(msgspec.Struct, array_like=True, frozen=True):
    """``[partition, start, end]``: the offsets from ``start`` on that lie before ``end``."""

    partition: int
    start: int
    end: int

    @property
    def length(self) -> int:
        """How many offsets there are; of a compacted topic, not all of them are records."""
        return self.end - self.start


def offsets_text(start: int, end: int) -> str:
    """A range of offsets, for people."""
    return f"offsets {start} to {end - 1}" if end > start + 1 else f"offset {start}"
