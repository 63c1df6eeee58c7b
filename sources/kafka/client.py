"""Access to a Kafka cluster: settings, the partitions of a topic and their offsets, and reading ranges of
them.

distop stores offsets in the transaction that publishes the rows. So nothing is ever committed to Kafka, and
no group is joined: partitions are assigned. Every call has a timeout.

A caller's settings are stored in etcd, where operators can read them, and used by processes with rights of
their own. So only listed settings are accepted, and none that runs a program or loads a library. Secrets are
references, and only to values that were put there for this purpose: otherwise every caller that may start an
operation could have any variable of the coordinator sent to its own server.

Exactly the records at offsets ``start`` to ``end`` of a partition are read. A range has been read when the
position has reached its end, however many records there were: a compacted topic lacks some, and markers of
transactions have offsets but are not records. A record, or the end of the partition, gives the position. Both
come in the order of the log.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from distop.errors import DistopError, KafkaUnavailable, OffsetsLost, SourceUnreadable, library
from distop.lake.storage.allowed import check_source
from distop.process.secret import Secret, revealed
from distop.sources.formats.text_file import BLOCK_BYTES
from distop.sources.kafka.ranges import SKIP_HINT, OffsetRange, Reach, Topic, offsets_text, wrong

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message
    from confluent_kafka.admin import AdminClient


SECRET_VARIABLES = "DISTOP_KAFKA_"
"""Prefix of the environment variables that settings may refer to."""
SECRET_FOLDER = "DISTOP_KAFKA_SECRETS"
"""The environment variable with the folder of the files that settings may refer to."""
MAX_SECRET_BYTES = 64 << 10

SECRETS = frozenset({"sasl.password", "sasl.oauthbearer.client.secret", "ssl.key.password"})
SETTINGS = SECRETS | {
    "broker.address.family",
    "check.crcs",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "fetch.max.bytes",
    "fetch.message.max.bytes",
    "fetch.wait.max.ms",
    "group.id",
    "receive.message.max.bytes",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.username",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
}
"""Settings allowed in ``config``."""

FILES = frozenset({"sasl.kerberos.keytab", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"})
"""Settings whose values are paths of files."""

Config = Mapping[str, Any]


def check_config(config: Config) -> None:
    """Refuse settings that are not allowed, and literal secrets.

    Raises
    ------
    InvalidArgument
    """
    for name, value in config.items():
        if name not in SETTINGS:
            raise wrong(
                "config", f"{name!r} is not an allowed setting", f"known: {', '.join(sorted(SETTINGS))}"
            )
        is_reference = isinstance(value, dict)
        if name in SECRETS and not is_reference:
            raise wrong(
                "config",
                f"{name} is a secret, but arguments are stored where operators can read them",
                f"refer to it: --kafka-config {name}=env:{SECRET_VARIABLES}PASSWORD, or {name}=file:password",
            )
        if is_reference and name not in SECRETS:
            raise wrong(
                "config", f"{name} is not a secret: the client shows its value in errors and in its log"
            )
        if is_reference:
            _check_reference(name, value)


def _check_reference(name: str, reference: Mapping[str, str]) -> None:
    match dict(reference):
        case {"env": variable, **others} if not others:
            if not variable.startswith(SECRET_VARIABLES):
                raise wrong(
                    "config",
                    f"{name}: the variable {variable!r} may not be used",
                    f"only those whose names begin with {SECRET_VARIABLES}",
                )
        case {"file": file, **others} if not others:
            if not file or "/" in file or file in (".", ".."):
                raise wrong(
                    "config",
                    f"{name}: {file!r} is not the name of a file alone",
                    f"files must be in the folder that {SECRET_FOLDER} names",
                )
        case _:
            raise wrong("config", f"{name}: a reference is env:NAME or file:NAME")


def resolved(config: Config) -> dict[str, str | Secret]:
    """The settings for the client after revealing secrets, with those of this process's
    environment.

    Raises
    ------
    InvalidArgument
        One does not exist.
    """
    check_config(config)
    return {name: _resolved(name, value) for name, value in config.items()}


def _resolved(name: str, value: Any) -> str | Secret:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, dict):
        return str(value)
    if "env" in value:
        secret = os.environ.get(str(value["env"]))
        if secret is None:
            raise wrong(
                "config",
                f"{name}: the environment has no {value['env']}",
                "set it for coordinators, executors and Spark's workers",
            )
        return Secret(secret)
    folder = os.environ.get(SECRET_FOLDER, "")
    if not folder:
        raise wrong("config", f"{name}: {SECRET_FOLDER} is not set")
    try:
        with (Path(folder) / str(value["file"])).open("rb") as file:
            return Secret(file.read(MAX_SECRET_BYTES).decode().rstrip("\r\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise wrong("config", f"{name}: {value['file']} cannot be read: {error}") from None


def consumer_settings(servers: str, config: Config) -> dict[str, Any]:
    """All settings of a consumer that reads by offset, commits nothing and belongs to no group.

    Raises
    ------
    InvalidArgument
    """
    bounds = {
        # Limit of the data that waits here, whatever is written to the topic; a single larger record still
        # passes.
        "queued.max.messages.kbytes": 16 << 10,
        "fetch.max.bytes": 8 << 20,
        "fetch.message.max.bytes": 4 << 20,
        # The client requires a name; nothing is stored under it.
        "group.id": "distop",
        "client.id": "distop",
        "socket.nagle.disable": True,
        # The records to read exist already. A longer request would only delay the next partition's.
        "fetch.wait.max.ms": 50,
        # Its log messages about missing brokers, ten times a second, are also reported to a callback.
        "log_level": 2,
    }
    fixed = {
        "bootstrap.servers": servers,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # A missing offset is an error, never silently another one.
        "auto.offset.reset": "error",
        # Markers of transactions and compacted records have offsets, too: only the end of the partition shows
        # them.
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        # A slow consumer does not leave a group, since there is none.
        "max.poll.interval.ms": 86_400_000,
    }
    given = resolved(config)
    # The client would send them its settings, with the secrets that it was given.
    for server in servers.split(","):
        check_source(f"kafka://{server.strip()}")
    if tokens := given.get("sasl.oauthbearer.token.endpoint.url"):
        check_source(str(tokens))
    for name in sorted(FILES & given.keys()):
        _check_file(name, str(given[name]))
    return {**bounds, **given, **fixed}


def _check_file(name: str, path: str) -> None:
    """A caller that names a key uses it: keys of this host are not for callers, nor other kinds of paths."""
    if path == "probe":
        return  # librdkafka's name for the CAs of the system
    if not os.path.isabs(path):
        raise wrong("config", f"{name}: {path!r} is not an absolute path")
    folder = os.environ.get(SECRET_FOLDER, "")
    if not folder or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        check_source(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise wrong("config", f"{name}: {path!r} is not a file")


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
        self.kafka = library("confluent_kafka", "kafka", "reading from Kafka")
        self._admin_api = import_module("confluent_kafka.admin")
        self.servers = servers
        self.timeout_s = timeout_s
        self._clock = clock
        self._settings = consumer_settings(servers, config)
        self._reasons: dict[str, str] = {}
        try:
            self.consumer: Consumer = self.kafka.Consumer(
                revealed(self._settings) | {"error_cb": self._note}, logger=logger
            )
        except (self.kafka.KafkaException, ValueError, TypeError) as error:
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
        details = metadata.topics[name]
        if details.error is not None:
            raise self.error_of(details.error, f"topic {name!r}")
        partitions = sorted(details.partitions)
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
        subject = f"topic {name!r}"
        left = self._left(subject, deadline)
        with self.explained(subject):
            asked = self._admin.describe_topics(self.kafka.TopicCollection([name]), request_timeout=left)
            own_id = asked[name].result().topic_id
        return "" if own_id == self.kafka.Uuid(0, 0) else str(own_id)

    def _ends(self, name: str, partitions: Sequence[int], deadline: float) -> dict[int, int]:
        """The first offset of each partition that no record has, stable or not."""
        latest = self._admin_api.OffsetSpec.latest()
        subject = f"topic {name!r}"
        left = self._left(subject, deadline)
        with self.explained(subject):
            asked = self._admin.list_offsets(
                dict.fromkeys([self.kafka.TopicPartition(name, number) for number in partitions], latest),
                isolation_level=self.kafka.IsolationLevel.READ_UNCOMMITTED,
                request_timeout=left,
            )
            return {where.partition: offset.result().offset for where, offset in asked.items()}

    def reach(self, name: str, partition: int, deadline: float | None = None) -> Reach:
        """The offsets of one partition. Raises as :meth:`topic` does."""
        subject = f"partition {partition} of topic {name!r}"
        left = self._left(subject, deadline)
        with self.explained(subject):
            # With isolation.level=read_committed, the upper one is the last stable offset.
            offsets = self.consumer.get_watermark_offsets(
                self.kafka.TopicPartition(name, partition), timeout=left
            )
        if offsets is None:
            raise self.unavailable(subject)
        return Reach(*offsets)

    def _left(self, subject: str, deadline: float | None) -> float:
        """The seconds that are left for a request."""
        left = self.timeout_s if deadline is None else deadline - self._clock()
        if left <= 0:
            raise self.unavailable(subject)
        return left

    @cached_property
    def _admin(self) -> AdminClient:
        # The consumer can ask neither for the id of a topic nor for offsets that are not stable.
        admin: AdminClient = self._admin_api.AdminClient(
            revealed(self._settings) | {"error_cb": self._note}, logger=logger
        )
        return admin

    @contextmanager
    def explained(self, subject: str) -> Iterator[None]:
        """Converts errors of the client."""
        try:
            yield
        except self.kafka.KafkaException as error:
            raise self.error_of(error.args[0], subject) from None

    def error_of(self, error: KafkaError, subject: str) -> DistopError:
        """The error of distop for an error of the client."""
        self._poll()
        denied = _DENIED.intersection([error.name(), *self._reasons])
        if denied:
            name = min(denied)
            return SourceUnreadable(
                f"{subject} on {self.servers} may not be read: {self._reasons.get(name, error.str())}",
                hint="correct --kafka-config: security.protocol, sasl.*, ssl.*; or the rights of its user",
                details={"field": "kafka.config"},
            )
        if error.name() in _UNKNOWN:
            return SourceUnreadable(
                f"there is no {subject} on {self.servers}", details={"field": "kafka.topic"}
            )
        return self.unavailable(subject, error.str())

    def unavailable(self, subject: str, reason: str = "") -> KafkaUnavailable:
        """Brokers that do not answer, or lack something that is needed."""
        self._poll()
        reasons = dict.fromkeys([*([reason] if reason else []), *list(self._reasons.values())[-2:]])
        message = "; ".join(reasons) or f"no answer within {self.timeout_s:g} s"
        return KafkaUnavailable(f"{subject} on {self.servers} cannot be read now: {message}")

    def _poll(self) -> None:
        """Have the callback called with errors of connections: it is called only from here."""
        self.consumer.poll(0)
        if "_admin" in vars(self):
            self._admin.poll(0)

    def _note(self, error: KafkaError) -> None:
        self._reasons.pop(error.name(), None)
        self._reasons[error.name()] = error.str()


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
        """The records of a range, one by one; see :meth:`blocks`."""
        consumer, errors = self._cluster.consumer, self._cluster.kafka.KafkaError
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
                elif error.code() == errors._PARTITION_EOF:
                    if message.partition() == wanted.partition:
                        position = max(position, message.offset() or 0)
                elif error.code() == errors._AUTO_OFFSET_RESET:
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
        with self._cluster.explained(f"topic {self._topic!r}"):
            self._cluster.consumer.assign(
                [self._cluster.kafka.TopicPartition(self._topic, partition, offset)]
            )

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
                hint="see what happened to the topic; start again under another source: --source NAME",
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
