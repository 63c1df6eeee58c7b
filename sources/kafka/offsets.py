"""Offsets of a topic: what it holds, and ranges of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

SKIP_HINT = (
    "missing records are lost: set kafka.on_gap to skip to continue after them; for the "
    "future, ingest more often than the topic's retention removes"
)


@dataclass(frozen=True, slots=True)
class Reach:
    """The offsets that a partition of a topic holds: ``low`` to ``high`` (exclusive).

    ``high`` is the last stable offset: records of open transactions come after it.
    """

    low: int
    high: int
    held: int = 0
    """How many offsets the partition has from ``high`` on: those of an open transaction, and all behind."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The present state of a topic.

    Parameters
    ----------
    cluster:
        The cluster's own id; empty if it has none.
    id:
        The topic's own id, which a topic of the same name that is made later does not have; empty if the
        brokers know none (before Kafka 2.8).
    """

    cluster: str
    name: str
    reach: dict[int, Reach]
    id: str = ""

    @property
    def url(self) -> str:
        """Identifies the topic among those of all clusters."""
        return f"kafka://{self.cluster}/{self.name}" if self.cluster else f"kafka:{self.name}"


class OffsetRange(msgspec.Struct, array_like=True, frozen=True):
    """``[partition, start, end]``: the offsets from ``start`` to (without) ``end``."""

    partition: int
    start: int
    end: int

    @property
    def length(self) -> int:
        """The number of offsets; of a compacted topic, not all of them are records."""
        return self.end - self.start


def offsets_text(start: int, end: int) -> str:
    """A range of offsets, for people."""
    return f"offsets {start} to {end - 1}" if end > start + 1 else f"offset {start}"
