"""Kafka brokers as a process of their own; prints their addresses, and ends when its standard input does.

librdkafka brings them along: they speak the real protocol, keep everything in memory, and know neither
transactions nor compaction. A partition keeps its last 5 MiB. Lines of standard input are commands, each
answered by a line: ``create TOPIC PARTITIONS``, ``delete TOPIC``, ``down``, ``up``.
"""

import ctypes
import ctypes.util
import sys
from pathlib import Path

import confluent_kafka

BROKERS = 2
PRODUCER = 0


def library() -> ctypes.CDLL:
    """The very librdkafka that the client uses."""
    package = Path(confluent_kafka.__file__).resolve().parent
    bundled = sorted(package.parent.glob("confluent_kafka.libs/librdkafka*"))
    lib = ctypes.CDLL(str(bundled[0]) if bundled else ctypes.util.find_library("rdkafka"))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("conf_new", pointer, []),
        ("conf_set", number, [pointer, text, text, text, ctypes.c_size_t]),
        ("new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("handle_mock_cluster", pointer, [pointer]),
        ("mock_cluster_bootstraps", text, [pointer]),
        ("mock_set_controller_id", number, [pointer, ctypes.c_int32]),
        ("mock_topic_create", number, [pointer, text, number, number]),
        ("mock_topic_delete", number, [pointer, text]),
        ("mock_broker_set_down", number, [pointer, ctypes.c_int32]),
        ("mock_broker_set_up", number, [pointer, ctypes.c_int32]),
    ):
        function = getattr(lib, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return lib


def main() -> None:
    lib = library()
    error = ctypes.create_string_buffer(512)
    settings = lib.rd_kafka_conf_new()
    for name, value in ((b"test.mock.num.brokers", str(BROKERS).encode()), (b"log_level", b"2")):
        assert lib.rd_kafka_conf_set(settings, name, value, error, len(error)) == 0, error.value
    handle = lib.rd_kafka_new(PRODUCER, settings, error, len(error))
    cluster = lib.rd_kafka_handle_mock_cluster(handle)
    # Without one, a client that asks about a topic waits for it.
    assert lib.rd_kafka_mock_set_controller_id(cluster, 1) == 0
    print(lib.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["create", topic, partitions]:
                failed = lib.rd_kafka_mock_topic_create(cluster, topic.encode(), int(partitions), 1)
            case ["delete", topic]:
                failed = lib.rd_kafka_mock_topic_delete(cluster, topic.encode())
            case [("down" | "up") as where]:
                move = getattr(lib, f"rd_kafka_mock_broker_set_{where}")
                failed = sum(move(cluster, broker) for broker in range(1, BROKERS + 1))
            case _:
                failed = True
        print("failed" if failed else "done", flush=True)


if __name__ == "__main__":
    main()
