"""What an ingest from Kafka asks for, which offsets of the topic it reads, and how its watermarks move. Pure.

The watermark of a partition is the first offset that was not ingested. So an operation reads from the
watermark, and ends where the next one begins: no gap, no overlap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from distop.errors import AlreadyIngested, InvalidArgument, OffsetsLost
from distop.metastore.records.operation import WatermarkMove
from distop.operations.arguments import invalid, parse

Metadata: TypeAlias = Literal["key", "partition", "offset", "timestamp", "headers"]

DEFAULT_RECORDS_PER_JOB = 250_000
MAX_OFFSET = 2**63 - 1
MAX_TIMEOUT_S = 600.0

_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class KafkaArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which records of a topic to ingest, and how to reach them."""

    servers: str
    """``host:port``, several separated by commas."""
    topic: str
    format: Literal["json", "csv", "raw"] = "json"
    """What a record's value is: one JSON object, one CSV record (``header`` names its columns), or bytes."""
    from_: Literal["watermark", "earliest"] | dict[str, int] = msgspec.field(default="watermark", name="from")
    """Where to begin: at the watermark (the earliest offset if there is none yet), at the earliest offset, or
    partition -> offset (partitions that are not named: at the watermark)."""
    to: Literal["latest"] | dict[str, int] = "latest"
    """Where to end: at the end of the topic at the start, or partition -> first offset that is not read
    (partitions that are not named: latest)."""
    max_records_per_partition: int | None = None
    """Most offsets of each partition that one operation reads; the next one continues after them."""
    records_per_job: int = DEFAULT_RECORDS_PER_JOB
    """About how many offsets one job reads."""
    on_gap: Literal["fail", "skip"] = "fail"
    """What to do if offsets to read are no longer in the topic."""
    tombstones: Literal["skip", "keep"] = "skip"
    """Whether a record without a value becomes a row whose columns are NULL, except those of ``metadata``."""
    metadata: dict[Metadata, str] = {}
    """What to write in addition to the value: ``key``, ``partition``, ``offset``, ``timestamp`` or
    ``headers`` -> name of its column."""
    value_column: str = "value"
    """Name of the column of ``raw`` values."""
    timeout_s: float = 30.0
    """How long an attempt waits for the brokers."""
    config: dict[str, str | int | float | bool | dict[str, str]] = {}
    """Settings of the client. Secrets are references: ``{"env": NAME}``,
    ``{"file": NAME}``."""


def parse_kafka(raw: Any) -> KafkaArgument:
    """Check what can be checked without a broker.

    Raises
    ------
    InvalidArgument
        ``details["field"]`` names the field.
    """
    argument = parse(raw, KafkaArgument, "ingest: kafka", below="kafka")
    _check_place(argument)
    for field, offsets in (("from", argument.from_), ("to", argument.to)):
        for partition, offset in offsets.items() if isinstance(offsets, dict) else ():
            if not _PARTITION.fullmatch(partition):
                raise wrong(field, f"{partition!r} is not the number of a partition")
            if not 0 <= offset <= MAX_OFFSET:
                raise wrong(field, f"{offset} is not an offset")
    if argument.max_records_per_partition is not None and argument.max_records_per_partition < 1:
        raise wrong("max_records_per_partition", "--kafka-max-records-per-partition must be at least 1")
    if argument.records_per_job < 1:
        raise wrong("records_per_job", "--kafka-records-per-job must be at least 1")
    if not 0.1 <= argument.timeout_s <= MAX_TIMEOUT_S:
        raise wrong("timeout_s", f"--kafka-timeout-s must lie between 0.1 and {MAX_TIMEOUT_S:.0f}")
    _check_columns(argument)
    return argument


def wrong(field: str, message: str, hint: str = "", **details: str) -> InvalidArgument:
    """The error for one field below ``kafka``."""
    return invalid(f"kafka.{field}", message, hint, **details)


def _check_place(argument: KafkaArgument) -> None:
    if not _TOPIC.fullmatch(argument.topic) or argument.topic in (".", ".."):
        raise wrong("topic", f"{argument.topic!r} is not the name of a topic")
    for server in argument.servers.split(","):
        if not re.fullmatch(r"\s*[^\s:/@]+:\d{1,5}\s*|\s*\[[0-9A-Fa-f:.]+\]:\d{1,5}\s*", server):
            raise wrong(
                "servers", f"{server.strip()!r} is not an address", "write host:port, several with commas"
            )


def _check_columns(argument: KafkaArgument) -> None:
    names = [*argument.metadata.values(), *([argument.value_column] if argument.format == "raw" else [])]
    if not all(names):
        raise wrong("metadata", "the name of a column is empty")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise wrong("metadata", f"two columns have the name {twice!r}")


SKIP_HINT = (
    "missing records are lost: give --kafka-on-gap skip to continue after them; for the "
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


TOPIC_ID = "topic-id"
"""The name, in addition to the numbers of partitions, of the watermark that is the topic's own id."""
ANEW_HINT = (
    "to ingest the new topic from its beginning, give it another --source, or remove the old one: "
    "distop watermark forget TABLE SOURCE; if it has the same records at the same offsets, as a mirror has: "
    f"distop watermark forget TABLE SOURCE {TOPIC_ID}"
)


@dataclass(frozen=True, slots=True)
class Ranges:
    """What to read.

    Parameters
    ----------
    ranges:
        One for each partition with something new, in order.
    moves:
        Partition -> how its watermark moves.
    skipped:
        How many offsets are skipped since the topic no longer has them.
    """

    ranges: list[OffsetRange]
    moves: dict[str, WatermarkMove]
    skipped: int


def new_ranges(
    argument: KafkaArgument, topic: Topic, watermarks: Mapping[str, str], *, reingest: bool = False
) -> Ranges:
    """The ranges of an argument, for the present state of a topic.

    Parameters
    ----------
    watermarks:
        Of this topic: partition -> the first offset that was not ingested; and its id.
    reingest:
        Whether offsets before the watermark may be read again. The watermark never goes back.

    Raises
    ------
    AlreadyIngested
        Offsets before a watermark are requested.
    OffsetsLost
        The topic no longer has the next offsets, or is not the topic of the watermarks.
    InvalidArgument
        A partition or an offset that the topic does not have.
    """
    for field, offsets in (("from", argument.from_), ("to", argument.to)):
        for name in offsets if isinstance(offsets, dict) else ():
            if int(name) not in topic.reach:
                raise wrong(field, f"the topic {topic.name!r} has no partition {name}")
    noted = watermarks.get(TOPIC_ID)
    if noted is not None and topic.id and topic.id != noted:
        raise OffsetsLost(
            f"the topic {topic.name!r} has the id {topic.id}, but had {noted} when it was ingested: it was "
            "created again",
            hint=ANEW_HINT,
            details={"source": topic.url, "watermark": noted, "topicId": topic.id},
        )
    for name in watermarks:
        if name != TOPIC_ID and (not name.isdecimal() or int(name) not in topic.reach):
            raise _another_topic(f"has no partition {name}, whose watermark is at {watermarks[name]}", topic)
    ranges, skipped = [], 0
    moves = {TOPIC_ID: WatermarkMove(after=topic.id)} if noted is None and topic.id else {}
    for partition, reach in sorted(topic.reach.items()):
        partition_range = _PartitionRange(
            argument, topic, partition, reach, watermarks.get(str(partition)), reingest
        )
        start, lost = partition_range.start()
        end = partition_range.end(start)
        skipped += lost
        if end > start:
            ranges.append(OffsetRange(partition, start, end))
        # A partition without records is recorded as well, to notice later losses.
        if (move := partition_range.move(end)) is not None:
            moves[str(partition)] = move
    return Ranges(ranges, moves, skipped)


def held_back(topic: Topic) -> tuple[int, list[str]]:
    """How many offsets open transactions hold back, and a sentence that says so, if there are any."""
    held = {number: reach for number, reach in sorted(topic.reach.items()) if reach.held}
    if not held:
        return 0, []
    number, reach = next(iter(held.items()))
    more = len(held) - 1
    others = f", and those of {more:,} other partition{'s' * (more > 1)}" if more else ""
    sentence = (
        f"partition {number} of {topic.url}: an open transaction holds back the {reach.held:,} offsets from "
        f"{reach.high} on{others}; if that lasts, look for it with kafka-transactions.sh find-hanging"
    )
    return sum(partition.held for partition in held.values()), [sentence]


@dataclass(frozen=True, slots=True)
class _PartitionRange:
    argument: KafkaArgument
    topic: Topic
    number: int
    reach: Reach
    watermark: str | None
    reingest: bool

    @property
    def _ingested(self) -> int | None:
        return None if self.watermark is None else int(self.watermark)

    def start(self) -> tuple[int, int]:
        """Where to begin, and how many offsets before that are skipped."""
        wanted, ingested = self._wanted(), self._ingested
        if ingested is not None and not self.reingest:
            if wanted < ingested:
                raise AlreadyIngested(
                    f"{self._name} was already ingested, up to offset {ingested}: {wanted} is before it",
                    hint="leave --kafka-from out to continue there, or ingest it again: --reingest",
                    details=self._details(field="kafka.from", watermark=str(ingested)),
                )
            if wanted > ingested and self.argument.on_gap == "fail":
                raise wrong(
                    "from",
                    f"{self._name} was ingested up to offset {ingested}: {wanted} leaves a gap",
                    "leave --kafka-from out, or give --kafka-on-gap skip if that is intended",
                    **self._details(watermark=str(ingested)),
                )
        if wanted > self.reach.high:
            raise _another_topic(
                f"ends at offset {self.reach.high} in partition {self.number}, but {wanted} comes next",
                self.topic,
            )
        if wanted < self.reach.low and self.argument.on_gap == "fail":
            raise OffsetsLost(
                f"{self._name} no longer has {offsets_text(wanted, self.reach.low)}, "
                f"it begins at {self.reach.low}",
                hint=SKIP_HINT,
                details=self._details(missingFrom=str(wanted), missingTo=str(self.reach.low)),
            )
        start = max(wanted, self.reach.low)
        return start, start - (wanted if ingested is None or self.reingest else ingested)

    def _wanted(self) -> int:
        given = self.argument.from_
        if isinstance(given, dict) and str(self.number) in given:
            return given[str(self.number)]
        if self._ingested is None or (given == "earliest" and self.reingest):
            return self.reach.low
        return min(self.reach.low, self._ingested) if given == "earliest" else self._ingested

    def end(self, start: int) -> int:
        """The first offset that is not read."""
        end = self.reach.high
        given = self.argument.to
        if isinstance(given, dict) and str(self.number) in given:
            end = given[str(self.number)]
            if end > self.reach.high:
                raise wrong("to", f"{self._name} ends at offset {self.reach.high}, and {end} is after that")
            if end < start:
                ingested = self._ingested
                if ingested is None or end > ingested:
                    raise wrong("to", f"{self._name}: {end} is before the start {start}")
                raise AlreadyIngested(
                    f"{self._name} was already ingested, up to offset {ingested}",
                    details=self._details(field="kafka.to", watermark=str(ingested)),
                )
        limit = self.argument.max_records_per_partition
        return end if limit is None else min(end, start + limit)

    def move(self, end: int) -> WatermarkMove | None:
        """The move of the watermark; ``None`` if it stays."""
        ingested = self._ingested
        if ingested is not None and end <= ingested:
            return None
        return WatermarkMove(before=self.watermark, after=str(end))

    @property
    def _name(self) -> str:
        return f"partition {self.number} of {self.topic.url}"

    def _details(self, **more: str) -> dict[str, str]:
        return {"source": self.topic.url, "partition": str(self.number), **more}


def _another_topic(subject: str, topic: Topic) -> OffsetsLost:
    return OffsetsLost(
        f"the topic {topic.name!r} {subject}: it was created again, or has lost records",
        hint="the new topic is another source: give it another name, --source NAME",
        details={"source": topic.url},
    )
