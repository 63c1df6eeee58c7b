"""Kafka brokers of a test's own, in a process of their own, spoken to over the real protocol."""

from __future__ import annotations

import itertools
import json
import secrets
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from support.sources.servers import served_by

if TYPE_CHECKING:
    from confluent_kafka import Producer

KEPT_BYTES = 5 << 20
"""How much the brokers keep of each partition."""
_names = itertools.count(1)


@dataclass
class Brokers:
    """A running cluster."""

    servers: str
    _process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """It is gone, as are all its topics."""
        self._process.kill()
        self._process.communicate()

    def topic(self, partitions: int = 3, name: str = "") -> KafkaTopic:
        """A new, empty topic."""
        made = name or f"topic{next(_names)}-{secrets.token_hex(3)}"
        self._send(f"create {made} {partitions}")
        return KafkaTopic(self.servers, made, partitions)

    def anew(self, topic: KafkaTopic) -> KafkaTopic:
        """Delete a topic, and create another one of the same name."""
        self._send(f"delete {topic.name}")
        return self.topic(topic.partitions, topic.name)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Nobody can connect; what the topics hold is kept."""
        self._send("down")
        try:
            yield
        finally:
            self._send("up")

    def _send(self, command: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()
        assert self._process.stdout.readline() == b"done\n", command


@dataclass
class KafkaTopic:
    """A topic to be produced to."""

    servers: str
    name: str
    partitions: int
    _producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": self.servers, "log_level": 2})

    def produce(
        self, values: Iterable[Any], partition: int = 0, *, key: bytes | None = None, **more: Any
    ) -> None:
        """Append records, acknowledged on return. What is neither bytes nor ``None`` is sent as JSON."""
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for value in values:
            sent = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            self._producer.produce(
                self.name, sent, partition=partition, key=key, on_delivery=delivered, **more
            )
            self._producer.poll(0)
        assert self._producer.flush(20) == 0
        assert not failed, failed

    def ids(self, start: int, count: int) -> None:
        """``{"id": n, "kind": "k<n % 3>"}`` for ``count`` numbers, spread over the partitions."""
        for partition in range(self.partitions):
            numbers = range(start + partition, start + count, self.partitions)
            self.produce([{"id": number, "kind": f"k{number % 3}"} for number in numbers], partition)

    def forget(self, partition: int = 0) -> None:
        """Produce so much that nothing is kept of what was there before."""
        filler = b'{"id": -1, "filler": "' + b"x" * 200_000 + b'"}'
        self.produce(itertools.repeat(filler, 2 * KEPT_BYTES // len(filler)), partition)

    def append(self, batch: bytes, partition: int = 0) -> None:
        """Append a batch that was made by hand, see ``support/sources/kafka_batches.py``."""
        from support.sources.kafka_batches import send

        metadata = self._producer.list_topics(self.name, timeout=10)
        leader = metadata.brokers[metadata.topics[self.name].partitions[partition].leader]
        send(f"{leader.host}:{leader.port}", self.name, partition, batch)

    def argument(self, **more: Any) -> dict[str, Any]:
        """What ``ingest`` takes below ``kafka``."""
        return {"servers": self.servers, "topic": self.name, "timeout_s": 10, **more}


@contextmanager
def running_brokers() -> Iterator[Brokers]:
    """Brokers, for as long as the context is open."""
    with served_by("kafka_main.py") as (servers, process):
        yield Brokers(servers, process)


@pytest.fixture(scope="session")
def brokers() -> Iterator[Brokers]:
    """One cluster for the whole run; tests have topics of their own in it."""
    with running_brokers() as running:
        yield running
