"""Record batches that no producer makes: as compaction leaves them, and the markers that end transactions.

Written after the protocol guide of Apache Kafka (request Produce, version 7; record batch, magic 2).
"""

import socket
import struct
from collections.abc import Mapping

CONTROL = 0x20
TRANSACTIONAL = 0x10


def compacted(values: Mapping[int, bytes], length: int) -> bytes:
    """A batch of ``length`` offsets with only some left: offset within it -> value."""
    return _batch([(offset, None, value) for offset, value in values.items()], length, 0)


def end_of_transaction() -> bytes:
    """What a broker writes when a producer commits; takes one offset."""
    version_and_commit = struct.pack(">hh", 0, 1)
    return _batch([(0, version_and_commit, struct.pack(">hi", 0, 0))], 1, CONTROL | TRANSACTIONAL)


def send(address: str, topic: str, partition: int, batch: bytes) -> None:
    """Have the partition's leader append it."""
    name = topic.encode()
    body = struct.pack(">hhi", -1, -1, 5000)
    body += struct.pack(">i", 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">ii", 1, partition) + struct.pack(">i", len(batch)) + batch
    request = struct.pack(">hhih", 0, 7, 1, 4) + b"test" + body
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        reply = answer.read(size)
    # Correlation, one topic, its name, one partition, its number; then what became of it.
    (error,) = struct.unpack_from(">h", reply, 4 + 4 + 2 + len(name) + 4 + 4)
    assert error == 0, error


def _batch(records: list[tuple[int, bytes | None, bytes]], length: int, attributes: int) -> bytes:
    packed = b"".join(_record(*record) for record in records)
    # The brokers of the tests count offsets by the number of records, so that is what it says there are.
    tail = struct.pack(">hiqqqhii", attributes, length - 1, 0, 0, -1, -1, -1, length) + packed
    head = struct.pack(">ibI", -1, 2, 0)
    return struct.pack(">qi", 0, len(head) + len(tail)) + head + tail


def _record(offset: int, key: bytes | None, value: bytes) -> bytes:
    keyed = _varint(-1) if key is None else _varint(len(key)) + key
    body = b"\0" + _varint(0) + _varint(offset) + keyed + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    packed = bytearray()
    while number > 0x7F:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*packed, number])
