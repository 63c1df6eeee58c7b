"""Rows in quarantine as the source of an ingest."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distop.errors import AlreadyIngested, TooManyBadRows
from distop.lake.cleanup.staged import published, sweep
from distop.metastore.records.operation import HistoryRecord
from support.refusals import refused
from support.sources.ingesting import Ingesting, quarantined

QUARANTINE: dict[str, Any] = {"on_bad_rows": "quarantine"}


@pytest.fixture
def ingesting(tmp_path: Path) -> Ingesting:
    return Ingesting(tmp_path, {"schema": ["id: int", "note: string"]})


def test_rows_that_another_type_can_hold_are_ingested_once(ingesting: Ingesting) -> None:
    """A6: each value as it was written, whatever the files' columns, delimiter and quotes are."""
    ingesting.write(f'id;note\n1;a\n{2**40};"x;""y"""\n', "1.csv")
    ingesting.write(f"note;id\nb;2\n ;{2**40 + 1}\r\n", "2.csv")
    paths = str(ingesting.folder / "source")
    facts = ingesting.facts(paths=paths, delimiter=";", **QUARANTINE)
    assert (facts["rows"], facts["badRows"]) == (2, 2)
    again = ingesting.facts(replay=facts["quarantine"], on_wider_types="widen")
    assert (again["rows"], again["badRows"], again["replayOf"]) == (2, 0, "flights/ingest/1")
    assert ingesting.rows("id", "note") == [(1, "a"), (2**40, 'x;"y"'), (2**40 + 1, " "), (2, "b")]
    for other in ({}, {"paths": ingesting.write("id;note\n3;c\n", "3.csv")}):
        with refused("replay", error=AlreadyIngested, partition="flights/ingest/1"):
            ingesting.start(replay=facts["quarantine"], **other)


def test_rows_that_are_not_utf_8_are_read_in_their_encoding(ingesting: Ingesting) -> None:
    """Their bytes are kept, and not what people see of them."""
    text = "id,note\n1,ok\n2,caf\u00e9\n3,\\xe9\n".encode("latin-1")
    facts = ingesting.facts(paths=ingesting.write(text), **QUARANTINE)
    assert facts["badRows"] == 1
    with pytest.raises(TooManyBadRows, match=r"1 of 1 .*a\.csv, line 3"):
        ingesting.facts(replay=facts["quarantine"])
    ingesting.facts(replay=facts["quarantine"], encoding="latin-1")
    assert ingesting.rows("id", "note") == [(1, "ok"), (2, "caf\u00e9"), (3, "\\xe9")]


def test_objects_are_replayed_as_lines_are(ingesting: Ingesting) -> None:
    lines = ['{"id": 1}', '{"id": 2, "new": "x"}', '{"id": "3"', '{"id": 9876543210}']
    facts = ingesting.facts(paths=ingesting.write("\n".join(lines), "a.jsonl"), **QUARANTINE)
    assert (facts["rows"], facts["badRows"]) == (1, 3)
    again = ingesting.facts(replay=facts["quarantine"], on_new_columns="add", on_wider_types="widen")
    assert (again["rows"], again["badRows"]) == (2, 1)
    assert ingesting.rows("id", "new") == [(1, None), (2, "x"), (9876543210, None)]


def test_rows_that_are_bad_again_wait_in_the_new_quarantine_with_their_position(ingesting: Ingesting) -> None:
    """A6: a chain of replays loses no row, and needs no row to be put right twice."""
    path = ingesting.write("id,note\nx,a\n1,b\ny,c\n2,d,too many\n")
    facts = ingesting.facts(paths=path, **QUARANTINE)
    right = ingesting.write("id,note\n3,a\ny,c\n2,d\n", "right.csv")
    arg = ingesting.start(replay=facts["quarantine"], paths=right)
    jobs = ingesting.run(arg)
    second = ingesting.finish(arg, jobs)
    assert (second["rows"], second["badRows"], second["replayOf"]) == (2, 1, "flights/ingest/1")
    arg = ingesting.start(replay=second["quarantine"], max_bad_share=1)
    jobs = ingesting.run(arg)
    (entry,) = quarantined(ingesting, jobs)
    assert (entry["file"], entry["line"], entry["raw"]) == (f"file://{right}", 3, "y,c")
    third = ingesting.finish(arg, jobs)
    ingesting.facts(replay=third["quarantine"], null_values=["y"])
    assert ingesting.rows("note") == ["a", "b", "c", "d"]


def test_rows_of_an_attempt_that_does_not_count_are_not_replayed(ingesting: Ingesting) -> None:
    """C3: it may sleep, and write its file when everything else of it was removed."""
    arg = ingesting.start(paths=ingesting.write("id,note\nx,a\n1,b\n"), **QUARANTINE)
    jobs = ingesting.run(arg)
    facts = ingesting.finish(arg, jobs)
    ended = HistoryRecord(outcome="success", facts=facts)
    assert published(arg, ended, jobs) is not None
    ingesting.run(arg)
    assert sweep(arg, ended, jobs) > 0
    ingesting.run(arg)
    folder = Path(ingesting.location.removeprefix("file://")) / facts["quarantine"]
    assert len(list(folder.glob("*.jsonl"))) == 2
    again = ingesting.facts(replay=facts["quarantine"], null_values=["x"])
    assert (again["rows"], again["badRows"]) == (1, 0)


@pytest.mark.parametrize(
    ("field", "given", "reason"),
    [
        ("replay", {"replay": "data/ingest-1"}, "no folder of quarantined rows"),
        ("replay", {"replay": "quarantine/../data"}, "no folder of quarantined rows"),
        ("mode", {"mode": "overwrite"}, "they are added"),
        ("new_only", {"new_only": True}, "is for files"),
        ("source", {"source": "s"}, "has its own"),
    ],
)
def test_replays_that_mean_nothing_are_refused(
    ingesting: Ingesting, field: str, given: dict[str, Any], reason: str
) -> None:
    facts = ingesting.facts(paths=ingesting.write("id,note\nx,a\n1,b\n"), **QUARANTINE)
    with refused(field, reason):
        ingesting.start(**{"replay": facts["quarantine"]} | given)


def test_rows_without_a_text_are_put_right_in_files(ingesting: Ingesting) -> None:
    path = ingesting.folder / "1.parquet"
    pq.write_table(pa.table({"id": [1, 2**40], "note": ["a", "b"]}), path)
    facts = ingesting.facts(paths=str(path), **QUARANTINE)
    assert facts["badRows"] == 1
    with refused("replay", "parquet"):
        ingesting.start(replay=facts["quarantine"])
    ingesting.facts(replay=facts["quarantine"], paths=ingesting.write('{"id": 2, "note": "b"}', "a.jsonl"))
    assert ingesting.rows("id", "note") == [(1, "a"), (2, "b")]
