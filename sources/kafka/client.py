"""Access to a Kafka cluster: the partitions of a topic, their offsets, and a consumer.

distop stores offsets in the transaction that publishes the rows. So nothing is ever committed to Kafka, and
no group is joined: partitions are assigned. Every call has a timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from distop.errors import DistopError, KafkaUnavailable, SourceUnreadable, library
from distop.process.secret import revealed
from distop.sources.kafka.config import Config, consumer_settings
from distop.sources.kafka.offsets import Reach, Topic

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka.admin import AdminClient

logger = logging.getLogger(__name__)

OFFSET_READERS = 16
"""Partitions that are examined concurrently."""

_DENIED = frozenset(
    {
        "_AUTHENTICATION",
        "CLUSTER_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
    }
)
# Not those of TLS, which a broker that leaves during a handshake also causes; nor those of a consumer group,
# which is not needed.
_UNKNOWN = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})


class Cluster:
    """A connection to the brokers of a cluster. Close it.

    Parameters
    ----------
    servers:
        ``host:port``, several separated by commas.
    timeout_s:
        Longest examination of a topic.

    Raises
    ------
    InvalidArgument
        A setting is invalid, or a secret is missing.
    ExtraMissing
        The package ``confluent-kafka`` is not installed.
    """

    def __init__(
        self,
        servers: str,
        config: Config,
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        kafka = kafka_library()
        self.servers = servers
        self.timeout_s = timeout_s
        self._clock = clock
        self._settings = consumer_settings(servers, config)
        self._reasons: dict[str, str] = {}
        try:
            self.consumer: Consumer = kafka.Consumer(
                revealed(self._settings) | {"error_cb": self._note}, logger=logger
            )
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise SourceUnreadable(
                f"the Kafka client refuses its settings: {error}", details={"field": "kafka.config"}
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        vars(self).pop("_admin", None)  # it has no other way to close
        self.consumer.close()

    def topic(self, name: str) -> Topic:
        """The topic's partitions, and their offsets.

        Raises
        ------
        SourceUnreadable
            There is no such topic, or it may not be read.
        KafkaUnavailable
        """
        deadline = self._clock() + self.timeout_s
        with self.explained(f"topic {name!r}"):
            metadata = self.consumer.list_topics(name, timeout=self.timeout_s)
        found = metadata.topics[name]
        if found.error is not None:
            raise self.error_of(found.error, f"topic {name!r}")
        partitions = sorted(found.partitions)
        # The id comes before the offsets: if the topic is created again in between, the next ingest refuses
        # the old id. The other way round nobody would notice.
        own_id = self.topic_id(name, deadline)
        # Before the stable offsets: what is produced in between is not held back.
        ends = self._ends(name, partitions, deadline)
        # Two requests each, one after the other: with many partitions that adds up.
        with ThreadPoolExecutor(OFFSET_READERS, thread_name_prefix="offsets") as pool:
            stable = pool.map(lambda number: self.reach(name, number, deadline), partitions)
            reaches = {
                number: replace(reach, held=max(0, ends[number] - reach.high))
                for number, reach in zip(partitions, stable, strict=True)
            }
        return Topic(metadata.cluster_id or "", name, reaches, own_id)

    def topic_id(self, name: str, deadline: float | None = None) -> str:
        """The topic's own id, see :class:`Topic`. Raises as :meth:`topic` does."""
        from confluent_kafka import TopicCollection, Uuid

        what = f"topic {name!r}"
        left = self._left(what, deadline)
        with self.explained(what):
            asked = self._admin.describe_topics(TopicCollection([name]), request_timeout=left)
            found = asked[name].result().topic_id
        return "" if found == Uuid(0, 0) else str(found)

    def _ends(self, name: str, partitions: Sequence[int], deadline: float) -> dict[int, int]:
        """The first offset of each partition that no record has, stable or not."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        what = f"topic {name!r}"
        left = self._left(what, deadline)
        with self.explained(what):
            asked = self._admin.list_offsets(
                dict.fromkeys([TopicPartition(name, number) for number in partitions], latest),
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=left,
            )
            return {where.partition: found.result().offset for where, found in asked.items()}

    def reach(self, name: str, partition: int, deadline: float | None = None) -> Reach:
        """The offsets of one partition. Raises as :meth:`topic` does."""
        from confluent_kafka import TopicPartition

        what = f"partition {partition} of topic {name!r}"
        left = self._left(what, deadline)
        with self.explained(what):
            # With isolation.level=read_committed, the upper one is the last stable offset.
            found = self.consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=left)
        if found is None:
            raise self.unavailable(what)
        return Reach(*found)

    def _left(self, what: str, deadline: float | None) -> float:
        """The seconds that are left for a request."""
        left = self.timeout_s if deadline is None else deadline - self._clock()
        if left <= 0:
            raise self.unavailable(what)
        return left

    @cached_property
    def _admin(self) -> AdminClient:
        # The consumer can ask neither for the id of a topic nor for offsets that are not stable.
        from confluent_kafka.admin import AdminClient

        return AdminClient(revealed(self._settings) | {"error_cb": self._note}, logger=logger)

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Converts errors of the client."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.error_of(error.args[0], what) from None

    def error_of(self, error: KafkaError, what: str) -> DistopError:
        """The error of distop for an error of the client."""
        self._poll()
        denied = _DENIED.intersection([error.name(), *self._reasons])
        if denied:
            name = min(denied)
            return SourceUnreadable(
                f"{what} on {self.servers} may not be read: {self._reasons.get(name, error.str())}",
                hint="correct config: security.protocol, sasl.*, ssl.*; or the rights of its user",
                details={"field": "kafka.config"},
            )
        if error.name() in _UNKNOWN:
            return SourceUnreadable(f"there is no {what} on {self.servers}", details={"field": "kafka.topic"})
        return self.unavailable(what, error.str())

    def unavailable(self, what: str, reason: str = "") -> KafkaUnavailable:
        """Brokers that do not answer, or lack something that is needed."""
        self._poll()
        reasons = dict.fromkeys([*([reason] if reason else []), *list(self._reasons.values())[-2:]])
        said = "; ".join(reasons) or f"no answer within {self.timeout_s:g} s"
        return KafkaUnavailable(f"{what} on {self.servers} cannot be read now: {said}")

    def _poll(self) -> None:
        """Have the callback called with errors of connections: it is called only from here."""
        self.consumer.poll(0)
        if "_admin" in vars(self):
            self._admin.poll(0)

    def _note(self, error: KafkaError) -> None:
        self._reasons.pop(error.name(), None)
        self._reasons[error.name()] = error.str()


def kafka_library() -> Any:
    """The client library.

    Raises :class:`~distop.errors.ExtraMissing` if it is not installed.
    """
    return library("confluent_kafka", "kafka", "reading from Kafka")
