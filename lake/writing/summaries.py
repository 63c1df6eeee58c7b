"""The ranges of partition values in a manifest, for manifest lists and results of jobs."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import PartitionFieldStats, PartitionFieldSummary
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType


class PartitionSummaries:
    """The range of partition values in a manifest, one summary per partition field."""

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        kinds = [field.field_type for field in spec.partition_type(schema).fields]
        self._kinds = [kind for kind in kinds if isinstance(kind, PrimitiveType)]
        self._stats = [PartitionFieldStats(kind) for kind in self._kinds]

    def add(self, values: Iterable[Any]) -> None:
        """Include one file's partition values."""
        for stats, value in zip(self._stats, values, strict=True):
            stats.update(value)

    def merge(self, others: Sequence[PartitionFieldSummary]) -> None:
        """Include another manifest's summaries."""
        for kind, stats, other in zip(self._kinds, self._stats, others, strict=True):
            for bound in (other.lower_bound, other.upper_bound):
                if bound is not None:
                    stats.update(from_bytes(kind, bound))
            if other.contains_null:
                stats.update(None)
            if other.contains_nan:
                stats.update(float("nan"))

    def build(self) -> list[PartitionFieldSummary]:
        return [stats.to_summary() for stats in self._stats]


def summaries_to_json(summaries: Sequence[PartitionFieldSummary]) -> list[list[Any]]:
    """``[[contains null, contains NaN, lower bound, upper bound], ...]``, bounds in base 64 or ``None``."""
    return [
        [bool(s.contains_null), bool(s.contains_nan), _text(s.lower_bound), _text(s.upper_bound)]
        for s in summaries
    ]


def summaries_from_json(value: Sequence[Sequence[Any]]) -> list[PartitionFieldSummary]:
    return [
        PartitionFieldSummary(null, nan, _bytes(lower), _bytes(upper)) for null, nan, lower, upper in value
    ]


def _bytes(bound: str | None) -> bytes | None:
    # An empty string is a bound: the empty text.
    return None if bound is None else b64decode(bound)


def _text(bound: bytes | None) -> str | None:
    return None if bound is None else b64encode(bound).decode()
