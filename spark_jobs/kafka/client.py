"""Access to a Kafka cluster: the partitions of a topic, their offsets, and a consumer.

distop stores offsets in the transaction that publishes the rows. So nothing is ever committed to Kafka, and
no group is joined: partitions are assigned. Every call has a timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from distop.errors import DistopError, KafkaUnavailable, SourceUnreadable, library
from distop.proto.secret import revealed
from distop.spark_jobs.kafka.config import Config, consumer_settings
from distop.spark_jobs.kafka.offsets import Reach, Topic

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

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
        # Two requests each, one after the other: with many partitions that adds up.
        with ThreadPoolExecutor(OFFSET_READERS, thread_name_prefix="offsets") as pool:
            reaches = list(pool.map(lambda number: self.reach(name, number, deadline), partitions))
        return Topic(metadata.cluster_id or "", name, dict(zip(partitions, reaches, strict=True)))

    def reach(self, name: str, partition: int, deadline: float | None = None) -> Reach:
        """The offsets of one partition. Raises as :meth:`topic` does."""
        from confluent_kafka import TopicPartition

        left = self.timeout_s if deadline is None else deadline - self._clock()
        what = f"partition {partition} of topic {name!r}"
        if left <= 0:
            raise self.unavailable(what)
        with self.explained(what):
            # With isolation.level=read_committed, the upper one is the last stable offset.
            found = self.consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=left)
        if found is None:
            raise self.unavailable(what)
        return Reach(*found)

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
        # Connection errors are reported to a callback, which is called only from here.
        self.consumer.poll(0)
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
        self.consumer.poll(0)
        reasons = dict.fromkeys([*([reason] if reason else []), *list(self._reasons.values())[-2:]])
        said = "; ".join(reasons) or f"no answer within {self.timeout_s:g} s"
        return KafkaUnavailable(f"{what} on {self.servers} cannot be read now: {said}")

    def _note(self, error: KafkaError) -> None:
        self._reasons.pop(error.name(), None)
        self._reasons[error.name()] = error.str()


def kafka_library() -> Any:
    """The client library.

    Raises :class:`~distop.errors.ExtraMissing` if it is not installed.
    """
    return library("confluent_kafka", "kafka", "reading from Kafka")
