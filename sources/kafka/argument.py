"""The argument of an ingest from Kafka, below ``kafka``."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

import msgspec

from distop.errors import InvalidArgument
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
        raise wrong("max_records_per_partition", "kafka.max_records_per_partition must be at least 1")
    if argument.records_per_job < 1:
        raise wrong("records_per_job", "kafka.records_per_job must be at least 1")
    if not 0.1 <= argument.timeout_s <= MAX_TIMEOUT_S:
        raise wrong("timeout_s", f"kafka.timeout_s must lie between 0.1 and {MAX_TIMEOUT_S:.0f}")
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
