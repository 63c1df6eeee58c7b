"""Records of a Kafka topic into a table: real brokers, plans, jobs and commit steps; no etcd, no Spark."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distop.errors import (
    AlreadyIngested,
    BadRow,
    Cancelled,
    InvalidArgument,
    KafkaUnavailable,
    OffsetsLost,
    SourceUnreadable,
    WatermarkConflict,
)
from distop.lake.storage import quarantine as kept_rows
from distop.metastore.records.record import encode_plain
from distop.sources.kafka import records as kafka_records
from distop.sources.kafka.client import Cluster
from distop.sources.kafka.ranges import TOPIC_ID
from support.refusals import refused
from support.sources.ingesting import Ingesting, LocalJob, quarantined, staged_files
from support.sources.kafka import Brokers, KafkaTopic
from support.sources.kafka_batches import compacted, end_of_transaction

QUARANTINED: dict[str, Any] = {"schema": {"id": "long"}, "on_bad_rows": "quarantine"}


@pytest.fixture
def ingesting(tmp_path: Path) -> Ingesting:
    return Ingesting(tmp_path)


@pytest.fixture
def topic(brokers: Brokers) -> KafkaTopic:
    return brokers.topic()


def ids(ingesting: Ingesting) -> list[int]:
    return sorted(ingesting.rows("id"))


def standing(ingesting: Ingesting) -> dict[str, str]:
    """The watermarks of the partitions of the only source."""
    ((_, partitions),) = ingesting.watermarks.items()
    return {name: value for name, value in partitions.items() if name != TOPIC_ID}


def forget_topic_id(ingesting: Ingesting) -> None:
    """As ``distop watermark forget`` does: the next topic has the same records, as a mirror has."""
    marks = ingesting.watermarks
    for partitions in marks.values():
        del partitions[TOPIC_ID]
    ingesting.table.watermarks = replace(ingesting.table.watermarks, value=encode_plain(marks))


def test_every_record_is_there_once_after_several_ingests(ingesting: Ingesting, topic: KafkaTopic) -> None:
    """C8: each goes on where the one before has ended, whatever was produced in between."""
    topic.ids(0, 1000)
    jobs = ingesting.ingest(kafka=topic.argument(records_per_job=100))
    assert len(jobs) == 12
    topic.ids(1000, 500)
    arg = ingesting.start(kafka=topic.argument())
    # What comes after the start is for the next one.
    topic.ids(1500, 500)
    ingesting.finish(arg, ingesting.run(arg))
    assert ids(ingesting) == list(range(1500))
    ingesting.ingest(kafka=topic.argument())
    assert ids(ingesting) == list(range(2000))
    assert standing(ingesting) == {"0": "668", "1": "667", "2": "665"}
    assert next(iter(ingesting.watermarks)).startswith("kafka://")
    assert next(iter(ingesting.watermarks)).endswith(f"/{topic.name}")


def test_nothing_new_succeeds_and_leaves_no_snapshot(ingesting: Ingesting, topic: KafkaTopic) -> None:
    """P10."""
    empty = ingesting.start(kafka=topic.argument())
    assert ingesting.finish(empty, ingesting.run(empty))["rows"] == 0
    assert not ingesting.table.head.exists
    # An empty partition is noted all the same: what it would lose is noticed.
    assert standing(ingesting) == {"0": "0", "1": "0", "2": "0"}
    topic.ids(0, 10)
    ingesting.ingest(kafka=topic.argument())
    before = ingesting.table.head
    arg = ingesting.start(kafka=topic.argument())
    assert arg.partition_count == 0
    assert ingesting.finish(arg, {}) == {"rows": 0, "badRows": 0, "tombstones": 0, "offsetsSkipped": 0}
    assert ingesting.table.head == before


def test_one_of_two_ingests_of_the_same_offsets_wins(ingesting: Ingesting, topic: KafkaTopic) -> None:
    """P16."""
    topic.ids(0, 30)
    first, second = (ingesting.start(kafka=topic.argument()) for _ in range(2))
    ingesting.finish(second, ingesting.run(second))
    jobs = ingesting.run(first)
    # The leader sends both steps in one transaction; here the watermark is tried alone.
    with pytest.raises(WatermarkConflict, match="is at '10'"):
        ingesting.move_watermarks(first, jobs)
    assert ids(ingesting) == list(range(30))
    explicit = topic.argument(**{"from": {"0": 0, "1": 0, "2": 0}, "to": {"0": 10}})
    with refused("kafka.from", error=AlreadyIngested, watermark="10"):
        ingesting.start(kafka=explicit)
    ingesting.ingest(kafka=explicit, reingest=True)
    assert len(ingesting.rows("id")) == 60
    assert standing(ingesting) == {"0": "10", "1": "10", "2": "10"}


def test_ranges_may_be_given_and_bounded(ingesting: Ingesting, topic: KafkaTopic) -> None:
    topic.ids(0, 300)
    ingesting.ingest(kafka=topic.argument(**{"from": {"1": 50}, "to": {"0": 20, "2": 0}}))
    assert standing(ingesting) == {"0": "20", "1": "100", "2": "0"}
    ingesting.ingest(kafka=topic.argument(max_records_per_partition=30))
    assert standing(ingesting) == {"0": "50", "1": "100", "2": "30"}
    assert len(ingesting.rows("id")) == 20 + 50 + 30 + 30
    with refused("kafka.to", "ends at offset 100"):
        ingesting.start(kafka=topic.argument(to={"0": 101}))


def test_a_gap_at_the_start_is_refused_or_skipped_on_purpose(ingesting: Ingesting, topic: KafkaTopic) -> None:
    topic.ids(0, 30)
    ingesting.ingest(kafka=topic.argument())
    topic.forget(1)
    with refused(error=OffsetsLost, partition="1", missingFrom="10") as lost:
        ingesting.start(kafka=topic.argument())
    assert "--kafka-on-gap skip" in lost.value.hint
    gone = int(lost.value.details["missingTo"]) - 10
    facts = ingesting.facts(kafka=topic.argument(on_gap="skip"), on_new_columns="ignore")
    assert facts["offsetsSkipped"] == gone
    assert facts["rows"] > 0
    ingesting.start(kafka=topic.argument())


def test_a_range_ends_at_its_offset_however_many_records_it_holds(
    ingesting: Ingesting, topic: KafkaTopic
) -> None:
    """What compaction leaves, and markers of transactions: offsets without records, at the end as well."""
    topic.append(compacted({0: b'{"id": 0}', 3: b'{"id": 3}', 7: b'{"id": 7}'}, 10))
    arg = ingesting.start(kafka=topic.argument(metadata={"offset": "at"}, records_per_job=5))
    assert arg.partition_count == 2
    # It goes on behind: the job must not read it, and not wait for it either.
    topic.produce([{"id": 10}], 0)
    ingesting.finish(arg, ingesting.run(arg))
    assert ingesting.rows("id", "at") == [(0, 0), (3, 3), (7, 7)]
    topic.append(end_of_transaction())
    topic.append(end_of_transaction(), partition=1)
    ingesting.ingest(kafka=topic.argument(metadata={"offset": "at"}))
    assert ids(ingesting) == [0, 3, 7, 10]
    assert standing(ingesting) == {"0": "12", "1": "1", "2": "0"}


@pytest.mark.parametrize("on_gap", ["fail", "skip"])
def test_records_lost_while_the_operation_runs_are_noticed(
    ingesting: Ingesting, topic: KafkaTopic, on_gap: str
) -> None:
    topic.produce([{"id": number} for number in range(20)], 0)
    arg = ingesting.start(kafka=topic.argument(on_gap=on_gap), schema={"id": "long"})
    topic.forget(0)
    if on_gap == "fail":
        with refused(error=OffsetsLost, missingFrom="0") as lost:
            ingesting.run(arg)
        assert not lost.value.retryable
        assert staged_files(ingesting) == []
        return
    facts = ingesting.finish(arg, ingesting.run(arg))
    assert (facts["rows"], facts["offsetsSkipped"]) == (0, 20)
    assert standing(ingesting)["0"] == "20"


def test_a_topic_made_anew_is_not_taken_for_the_old_one(ingesting: Ingesting, brokers: Brokers) -> None:
    """Also if it has more records by now than the old one had."""
    topic = brokers.topic()
    for start in (0, 30):
        topic.ids(start, 30)
        ingesting.ingest(kafka=topic.argument())
    ((name, marks),) = ingesting.watermarks.items()
    anew = brokers.anew(topic)
    for count in (9, 90):
        anew.ids(0, count)
        with refused(error=OffsetsLost, source=name, watermark=marks[TOPIC_ID]):
            ingesting.start(kafka=anew.argument())
    ingesting.ingest(kafka=anew.argument(), source="orders")
    noted = ingesting.watermarks["orders"]
    assert ids(ingesting) == sorted([*range(60), *range(9), *range(90)])
    forget_topic_id(ingesting)
    ingesting.ingest(kafka=anew.argument())
    assert ingesting.watermarks[name] == noted


def test_a_topic_made_anew_while_the_operation_runs_is_noticed(
    ingesting: Ingesting, brokers: Brokers
) -> None:
    topic = brokers.topic()
    topic.ids(0, 30)
    arg = ingesting.start(kafka=topic.argument())
    brokers.anew(topic).ids(1000, 60)
    with pytest.raises(OffsetsLost, match="created again") as anew:
        ingesting.run(arg)
    assert not anew.value.retryable
    assert staged_files(ingesting) == []


def test_an_ingest_reports_records_held_back_by_an_open_transaction(
    ingesting: Ingesting, topic: KafkaTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.ids(0, 30)
    # The brokers here know no transactions: this stands for five records behind the last stable offset.
    monkeypatch.setattr(Cluster, "_ends", lambda *_: {0: 10, 1: 15, 2: 10})
    for rows in (30, 0):
        facts = ingesting.facts(kafka=topic.argument())
        assert (facts["rows"], facts["offsetsHeldBack"]) == (rows, 5)
        (warning,) = facts["warnings"]
        assert "an open transaction holds back the 5 offsets from 10 on" in warning


def test_a_partition_that_was_added_is_read_from_its_start(ingesting: Ingesting, brokers: Brokers) -> None:
    small = brokers.topic(2)
    small.ids(0, 20)
    ingesting.ingest(kafka=small.argument(), source="orders")
    # The brokers here cannot add one, so the grown topic is another one with the same beginning.
    grown = brokers.topic(3)
    grown.produce([{"id": number, "kind": "k"} for number in range(0, 24, 2)], 0)
    grown.produce([{"id": number, "kind": "k"} for number in range(1, 20, 2)], 1)
    grown.produce([{"id": number, "kind": "k"} for number in (100, 101)], 2)
    forget_topic_id(ingesting)
    ingesting.ingest(kafka=grown.argument(), source="orders")
    assert ids(ingesting) == [*range(20), 20, 22, 100, 101]
    forget_topic_id(ingesting)
    with pytest.raises(OffsetsLost, match="has no partition 2"):
        ingesting.start(kafka=small.argument(), source="orders")


def test_a_bad_record_fails_the_job_and_says_where_it_stands(ingesting: Ingesting, topic: KafkaTopic) -> None:
    good = [{"id": number} for number in range(500)]
    topic.produce([*good, b'{"id": "x"}', *good], 2)
    arg = ingesting.start(kafka=topic.argument(), schema={"id": "long"})
    with refused(error=BadRow, match=rf"{topic.name}, .*column 'id'", partition=2, offset=500):
        ingesting.run(arg)
    assert staged_files(ingesting) == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the value is empty"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"id": 1}{"id": 2}', ""),
        (b'{"id": 1}\n{"id": 2}', "not a JSON object"),
        (b'{"id": "a\nb"}', "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'{"id": 1, "more": 2}', "column 'more' is not wanted"),
        (b'{"id": 1.5}', "1.5"),
    ],
)
def test_bad_records_go_into_quarantine_and_others_into_the_table(
    ingesting: Ingesting, topic: KafkaTopic, value: bytes, reason: str
) -> None:
    topic.produce([{"id": 7}, value, b'{\n  "id": 8\n}\n', {"id": None}], 1)
    jobs = ingesting.ingest(kafka=topic.argument(), **QUARANTINED)
    (entry,) = quarantined(ingesting, jobs)
    assert (entry["partition"], entry["offset"]) == (1, 1)
    assert entry["topic"].endswith(topic.name)
    assert reason in entry["reason"]
    assert ingesting.rows("id") == [7, 8, None]


def test_records_beside_bad_ones_keep_their_own_offsets(ingesting: Ingesting, topic: KafkaTopic) -> None:
    """A row combines a value and metadata: both must be of the same record."""
    values = [b"bad" if number % 7 == 0 else {"id": number} for number in range(2000)]
    topic.produce(values, 0)
    metadata = {"offset": "at", "partition": "part"}
    jobs = ingesting.ingest(kafka=topic.argument(metadata=metadata), **QUARANTINED)
    assert ingesting.rows("id", "at") == sorted(((n, n) for n in range(2000) if n % 7), key=repr)
    assert [entry["offset"] for entry in quarantined(ingesting, jobs)] == list(range(0, 2000, 7))
    assert set(ingesting.rows("part")) == {0}


def test_key_headers_and_time_become_columns(ingesting: Ingesting, topic: KafkaTopic) -> None:
    headers = [("trace", b"\x01"), ("trace", None)]
    topic.produce([{"id": 1}], 0, key=b"k1", headers=headers, timestamp=1_700_000_000_123)
    topic.produce([None, {"id": 2}], 0, key=b"k2")
    metadata = {"key": "k", "headers": "h", "timestamp": "t", "offset": "o"}
    facts = ingesting.facts(kafka=topic.argument(metadata=metadata, tombstones="keep"))
    rows = sorted(ingesting.read().to_pylist(), key=lambda row: row["o"])
    assert [row["id"] for row in rows] == [1, None, 2]
    assert [row["k"] for row in rows] == [b"k1", b"k2", b"k2"]
    assert rows[0]["h"] == [{"key": "trace", "value": b"\x01"}, {"key": "trace", "value": None}]
    assert rows[0]["t"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert facts["tombstones"] == 0


def test_records_without_a_value_are_counted_and_left_out(ingesting: Ingesting, topic: KafkaTopic) -> None:
    topic.produce([None, {"id": 1}, None], 0)
    facts = ingesting.facts(kafka=topic.argument())
    assert (facts["rows"], facts["tombstones"]) == (1, 2)
    assert standing(ingesting)["0"] == "3"


def test_a_filter_sees_what_stands_beside_the_value(ingesting: Ingesting, topic: KafkaTopic) -> None:
    topic.ids(0, 30)
    ingesting.ingest(
        kafka=topic.argument(metadata={"partition": "part"}), filter="part = 1 and id > 10", columns=["id"]
    )
    assert ingesting.read().to_pydict() == {"id": list(range(13, 30, 3)), "part": [1] * 6}


def test_records_of_csv_become_rows_or_are_bad(ingesting: Ingesting, topic: KafkaTopic) -> None:
    topic.produce([b'1,"a,b"', b"2,\r\n", b"3", b'4,"x', b"5,a\n6,b", b"", b"7,NA"], 0)
    jobs = ingesting.ingest(
        kafka=topic.argument(format="csv"), header=["id", "note"], on_bad_rows="quarantine"
    )
    assert ingesting.rows("id", "note") == [(1, "a,b"), (2, None), (7, "NA")]
    assert [entry["offset"] for entry in quarantined(ingesting, jobs)] == [2, 3, 4, 5]


def test_values_of_records_are_kept_as_bytes(ingesting: Ingesting, topic: KafkaTopic, tmp_path: Path) -> None:
    topic.produce([b"\x00\xff", b"text"], 0)
    ingesting.ingest(kafka=topic.argument(format="raw", value_column="body"))
    assert ingesting.rows("body") == [b"\x00\xff", b"text"]
    typed = Ingesting(tmp_path / "typed", {"schema": ["body: string", "k: string"]})
    jobs = typed.ingest(
        kafka=topic.argument(format="raw", value_column="body", metadata={"key": "k"}),
        on_bad_rows="quarantine",
    )
    assert typed.rows("body") == ["text"]
    assert [entry["reason"] for entry in quarantined(typed, jobs)] == [
        "column 'body': b'\\x00\\xff' is not UTF-8"
    ]


def test_columns_are_those_of_the_table_whatever_keys_come(ingesting: Ingesting, topic: KafkaTopic) -> None:
    topic.produce([{"id": 1, "note": "x"}], 0)
    ingesting.ingest(kafka=topic.argument())
    topic.produce([{"id": 2}], 0)
    ingesting.ingest(kafka=topic.argument())
    topic.produce([{"note": "y", "id": 3}], 0)
    ingesting.ingest(kafka=topic.argument())
    assert ingesting.rows("id", "note") == [(1, "x"), (2, None), (3, "y")]
    topic.produce([{"id": 4, "new": 1}], 0)
    with refused(error=BadRow, match="column 'new'", offset=3):
        ingesting.ingest(kafka=topic.argument())
    ingesting.ingest(kafka=topic.argument(), on_new_columns="ignore")
    assert ids(ingesting) == [1, 2, 3, 4]


def test_ignored_keys_of_the_first_records_are_named(ingesting: Ingesting, topic: KafkaTopic) -> None:
    topic.produce([{"id": 1, "c": {"a": 1}}], 0)
    ingesting.ingest(kafka=topic.argument())
    topic.produce([{"id": 2, "c": {"a": 2, "b": 3}, "new": 1}], 0)
    facts = ingesting.facts(kafka=topic.argument(), on_new_columns="ignore")
    assert facts["ignoredColumns"] == ["new", "c.b"]
    assert ingesting.rows("id", "c") == [(1, {"a": 1}), (2, {"a": 2})]


def test_a_record_larger_than_one_fetch_comes_through(ingesting: Ingesting, topic: KafkaTopic) -> None:
    values = [{"id": number, "text": "x" * 700_000} for number in range(5)]
    topic.produce(values, 0)
    config = {"fetch.max.bytes": 1_000_000, "fetch.message.max.bytes": 10_000}
    ingesting.ingest(kafka=topic.argument(config=config))
    assert ids(ingesting) == list(range(5))


def test_a_value_beyond_what_fits_into_memory_is_a_bad_row(
    ingesting: Ingesting, topic: KafkaTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_records, "MAX_VALUE_BYTES", 10_000)
    monkeypatch.setattr(kept_rows, "MAX_KEPT_BYTES", 100)
    topic.produce([{"id": 1}, {"id": 2, "text": "x" * 20_000}, {"id": 3}], 0)
    jobs = ingesting.ingest(kafka=topic.argument(), **QUARANTINED)
    (entry,) = quarantined(ingesting, jobs)
    assert entry["reason"] == "the value has 20021 bytes, but at most 10000 are read"
    assert len(entry["raw"]) < 200
    assert ids(ingesting) == [1, 3]


def test_rules_are_kept_by_records_as_by_lines(ingesting: Ingesting, topic: KafkaTopic) -> None:
    topic.produce([{"id": 1}, {"id": -1}], 0)
    arg = ingesting.start(kafka=topic.argument(), checks={"rules": ["id > 0"]})
    assert ingesting.run(arg)["0"].result["violated"] == [[0, 1]]
    assert ingesting.operation.commit_steps(arg)[0].step == "rules.gate"


def test_a_failed_job_holds_back_its_own_partition_only(ingesting: Ingesting, topic: KafkaTopic) -> None:
    """C17: jobs that may fail share no partition with others."""
    topic.ids(0, 300)
    arg = ingesting.start_in_part(kafka=topic.argument(records_per_job=60))
    ((_, moves),) = arg.watermarks.items()
    assert {partition: move.jobs for partition, move in moves.items()} == {
        "0": [(0, 2)],
        "1": [(2, 4)],
        "2": [(4, 6)],
        TOPIC_ID: [],
    }


def test_a_cancelled_job_stops_and_leaves_no_file(ingesting: Ingesting, topic: KafkaTopic) -> None:
    topic.ids(0, 300)
    arg = ingesting.start(kafka=topic.argument())
    job = LocalJob(arg, "0")
    job.looks_left = 1
    with pytest.raises(Cancelled):
        ingesting.run_job(job)
    assert staged_files(ingesting) == []


def test_brokers_that_are_away_are_said_within_the_time_limit(ingesting: Ingesting, brokers: Brokers) -> None:
    """U4: at the start, and in a job; and it goes on when they are back."""
    topic = brokers.topic()
    topic.ids(0, 300)
    arg = ingesting.start(kafka=topic.argument(timeout_s=1))
    with brokers.down():
        with pytest.raises(KafkaUnavailable) as away:
            ingesting.start(kafka=topic.argument(timeout_s=1))
        assert away.value.retryable
        with pytest.raises(KafkaUnavailable, match=r"offset 0 .*100"):
            ingesting.run(arg)
        assert staged_files(ingesting) == []
    ingesting.finish(arg, ingesting.run(arg))
    assert ids(ingesting) == list(range(300))


def test_a_topic_that_is_not_there_is_not_made(ingesting: Ingesting, topic: KafkaTopic) -> None:
    missing = topic.argument(topic="missing-topic")
    for _ in range(2):
        with refused("kafka.topic", "'missing-topic'", SourceUnreadable):
            ingesting.start(kafka=missing)


def test_no_secret_is_kept(ingesting: Ingesting, topic: KafkaTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTOP_KAFKA_PASSWORD", "hunter2")
    topic.ids(0, 3)
    config = {
        "sasl.password": {"env": "DISTOP_KAFKA_PASSWORD"},
        "security.protocol": "PLAINTEXT",
        "client.id": "me",
    }
    arg = ingesting.start(kafka=topic.argument(config=config))
    assert "hunter2" not in json.dumps(arg.argument)
    ingesting.finish(arg, ingesting.run(arg))
    monkeypatch.delenv("DISTOP_KAFKA_PASSWORD")
    with pytest.raises(InvalidArgument, match="DISTOP_KAFKA_PASSWORD"):
        ingesting.run(arg)


def test_options_of_files_are_refused(ingesting: Ingesting, topic: KafkaTopic) -> None:
    """U3."""
    refused_with_kafka: list[dict[str, Any]] = [
        {"format": "csv"},
        {"split_bytes": 4096},
        {"paths": ["/a"]},
        {"delimiter": ";"},
        {"transform": "select * from source"},
    ]
    for more in refused_with_kafka:
        with pytest.raises(InvalidArgument) as wrong:
            ingesting.start(kafka=topic.argument(), **more)
        assert wrong.value.details["field"] in more
    for more in ({"decimal_point": ","}, {"quote": ","}):
        with pytest.raises(InvalidArgument, match="are the same character") as wrong:
            ingesting.start(kafka=topic.argument(format="csv"), header=["id"], **more)
        assert wrong.value.details["field"] in more
    fields: dict[str, dict[str, Any]] = {
        "kafka.servers": {"servers": "localhost"},
        "kafka.topic": {"topic": "a/b"},
        "kafka.from": {"from": "yesterday"},
        "kafka.to": {"to": {"x": 1}},
        "kafka.records_per_job": {"records_per_job": 0},
        "kafka.config": {"config": {"plugin.library.paths": "x"}},
        "kafka.nonsense": {"nonsense": 1},
        "kafka.metadata": {"metadata": {"key": "a", "offset": "a"}},
    }
    for field, given in fields.items():
        with refused(field):
            ingesting.start(kafka={**topic.argument(), **given})


MERGED: dict[str, Any] = {"mode": "merge", "keys": ["id"], "order_by": "v"}


@pytest.fixture
def cities(tmp_path: Path) -> Ingesting:
    return Ingesting(tmp_path, {"schema": {"id": "long", "city": "string", "v": "long"}})


def changed(id: int, city: str | None, v: int, op: str = "U") -> dict[str, Any]:
    return {"id": id, "city": city, "v": v, "op": op}


def test_changes_of_a_topic_are_merged(cities: Ingesting, topic: KafkaTopic) -> None:
    """E5, C8: each record once, whichever jobs read it; the order of partitions does not matter."""
    argument = {**MERGED, "delete_where": "op = 'D'"}
    topic.produce([changed(1, "Quito", 3), changed(2, "Oslo", 1), changed(3, "Rome", 1)], 0)
    topic.produce([changed(1, "Lima", 2), changed(2, "Bergen", 2)], 1)
    facts = cities.facts(kafka=topic.argument(records_per_job=1), **argument)
    assert (facts["insertedRows"], facts["updatedRows"], facts["deletedRows"]) == (3, 0, 0)
    assert cities.rows("id", "city") == [(1, "Quito"), (2, "Bergen"), (3, "Rome")]
    topic.produce([None, changed(3, None, 2, "D"), changed(1, None, 1, "D"), changed(4, "Bonn", 1)], 2)
    arg = cities.start(kafka=topic.argument(), **argument)
    topic.produce([changed(4, "for the next one", 2)], 2)
    facts = cities.finish(arg, cities.run(arg))
    assert (facts["insertedRows"], facts["updatedRows"], facts["deletedRows"]) == (1, 0, 1)
    assert (arg.partition_count, facts["tombstones"]) == (2, 1)
    assert cities.rows("id", "city") == [(1, "Quito"), (2, "Bergen"), (4, "Bonn")]
    assert standing(cities) == {"0": "3", "1": "2", "2": "4"}


def test_records_without_a_value_delete_rows(tmp_path: Path, topic: KafkaTopic) -> None:
    """Of a compacted topic: the record's key says which row, and its time how new it is."""
    cities = Ingesting(tmp_path, {"schema": {"id": "string", "city": "string", "v": "timestamptz"}})
    kept = topic.argument(tombstones="keep", metadata={"key": "id", "timestamp": "v"})
    for city, at in (("Lima", 2000), (None, 1000)):
        topic.produce([{"city": city} if city else None], key=b"1", timestamp=at)
        topic.produce([{"city": city} if city else None], key=b"2", timestamp=3000 - at)
        cities.ingest(kafka=kept, **MERGED, delete_where="city is null")
    assert cities.rows("id", "city") == [("1", "Lima")]


def test_a_merge_of_a_topic_needs_all_columns(cities: Ingesting, topic: KafkaTopic) -> None:
    topic.produce([{"id": 1, "v": 1}])
    with refused("kafka", "'city'"):
        cities.start(kafka=topic.argument(), schema={"id": "long", "v": "long"}, **MERGED)
