"""Reads exactly the records at offsets ``start`` to ``end`` of a partition.

A range has been read when the position has reached its end, however many records there were: a compacted
topic lacks some, and markers of transactions have offsets but are not records. A record, or the end of the
partition, gives the position. Both come in the order of the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from distop.errors import OffsetsLost
from distop.sources.formats.lines import BLOCK_BYTES
from distop.sources.kafka.client import Cluster
from distop.sources.kafka.offsets import SKIP_HINT, OffsetRange, offsets_text

if TYPE_CHECKING:
    from confluent_kafka import Message

logger = logging.getLogger(__name__)

BLOCK_RECORDS = 50_000
"""Records are returned in blocks of about this number, or of 8 MiB."""
FETCH_RECORDS = 500
"""Records taken from the client at a time; those that wait there are bounded in bytes."""
LOOK_EVERY_S = 0.5
"""How often a waiting job checks whether it is still needed."""


class RangeReader:
    """Reads ranges of one topic, one after the other.

    Parameters
    ----------
    skip_gaps:
        Whether offsets that are no longer in the topic are skipped; otherwise they are an error.
    look:
        Called between records; raises if they are no longer needed.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        skip_gaps: bool = False,
        look: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._skip_gaps = skip_gaps
        self._look = look
        self._clock = clock
        self.skipped = 0
        """How many offsets were skipped, since they no longer exist."""

    def blocks(self, wanted: OffsetRange) -> Iterator[list[Message]]:
        """The records of a range, in order, in blocks of bounded size.

        Raises
        ------
        OffsetsLost
            Some are no longer in the topic.
        KafkaUnavailable
            Nothing arrived for the cluster's ``timeout_s``, and the end is not reached.
        """
        block: list[Message] = []
        size = 0
        for message in self.records(wanted):
            block.append(message)
            size += len(message)
            if size >= BLOCK_BYTES or len(block) >= BLOCK_RECORDS:
                yield block
                block, size = [], 0
        if block:
            yield block

    def records(self, wanted: OffsetRange) -> Iterator[Message]:
        """The same, one by one."""
        from confluent_kafka import KafkaError

        consumer = self._cluster.consumer
        position = wanted.start
        self._assign(wanted.partition, position)
        # Only waiting counts: processing the records in between may take any time.
        silent_s = 0.0
        reason = ""
        while position < wanted.end:
            self._look()
            began, before = self._clock(), position
            fetched = self._fetch()
            silent_s += self._clock() - began
            for message in fetched:
                error = message.error()
                if error is None:
                    offset = message.offset()
                    if offset is None or message.partition() != wanted.partition or offset < position:
                        continue
                    position = offset + 1
                    if offset < wanted.end:
                        yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    if message.partition() == wanted.partition:
                        position = max(position, message.offset() or 0)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    position = self._behind_gap(wanted, position)
                    self._assign(wanted.partition, position)
                    break
                elif error.fatal() or error.name() in _HOPELESS:
                    raise self._cluster.error_of(error, self._name(wanted))
                else:
                    reason = error.str()
            if position > before:
                silent_s = 0.0
            elif silent_s > self._cluster.timeout_s:
                raise self._cluster.unavailable(
                    f"{self._name(wanted)} from offset {position} on (to {wanted.end})",
                    reason or f"no record came for {self._cluster.timeout_s:g} s",
                )
        consumer.unassign()

    def _assign(self, partition: int, offset: int) -> None:
        from confluent_kafka import TopicPartition

        with self._cluster.explained(f"topic {self._topic!r}"):
            self._cluster.consumer.assign([TopicPartition(self._topic, partition, offset)])

    def _fetch(self) -> list[Message]:
        """The next records; waits for the first one only."""
        consumer = self._cluster.consumer
        first = consumer.poll(LOOK_EVERY_S)
        return [] if first is None else [first, *consumer.consume(FETCH_RECORDS, timeout=0)]

    def _behind_gap(self, wanted: OffsetRange, position: int) -> int:
        """The first existing offset, if ``position`` does not exist."""
        reach = self._cluster.reach(self._topic, wanted.partition)
        if position > reach.high:
            raise OffsetsLost(
                f"{self._name(wanted)} ends at offset {reach.high}, and reached {wanted.end} before: "
                "it was created again, or has lost records",
                hint="see what happened to the topic; start again with a source of another name",
                details={"topic": self._topic, "partition": str(wanted.partition)},
            )
        there = min(max(position, reach.low), wanted.end)
        if there == position:
            return position
        lost = offsets_text(position, there)
        if not self._skip_gaps:
            raise OffsetsLost(
                f"{self._name(wanted)} no longer has {lost}, it begins at {reach.low}",
                hint=SKIP_HINT,
                details={
                    "topic": self._topic,
                    "partition": str(wanted.partition),
                    "missingFrom": str(position),
                    "missingTo": str(there),
                },
            )
        logger.warning("offsets_skipped", extra={"range": self._name(wanted), "offsets": lost})
        self.skipped += there - position
        return there

    def _name(self, wanted: OffsetRange) -> str:
        return f"partition {wanted.partition} of topic {self._topic!r}"


_HOPELESS = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "UNKNOWN_TOPIC_OR_PART",
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
        "MSG_SIZE_TOO_LARGE",
    }
)
"""Errors that are permanent."""
