"""Messages of records, and results as JSON."""

import json

from google.protobuf.timestamp_pb2 import Timestamp

from distop.client import Index, Operation, Table
from distop.metastore.records.operation import CompletionRecord, PauseRecord
from distop.proto import distop_pb2 as pb
from distop.proto.messages import message_of, plain

LARGE = 4216351713844670481


def test_ids_are_text_however_small_and_other_integers_if_a_double_would_change_them() -> None:
    facts = {
        "snapshotId": 7,
        "conflicts": [LARGE],
        "rows": 2**53,
        "bytes": 2**53 + 1,
        "ok": True,
        "part": 0.5,
    }
    told = plain(pb.Operation(facts_json=json.dumps(facts)))["facts"]
    assert told == facts | {"snapshotId": "7", "conflicts": [str(LARGE)], "bytes": str(2**53 + 1)}
    assert told["ok"] is True
    assert plain(pb.Table(snapshot_id=7))["snapshot_id"] == "7"
    assert plain(pb.Table())["snapshot_id"] is None
    assert plain(pb.Table(revision=7))["revision"] == 7


def test_the_command_line_and_the_page_show_the_same() -> None:
    """A dataclass of the client is shown as the message that it represents."""
    at = Timestamp(seconds=1714550400, nanos=250_000_000)
    error = pb.OperationError(code="JOB_FAILED", message="m")
    operation = pb.Operation(
        name="t/noop/1",
        table="t",
        type="noop",
        instance=1,
        state=pb.COMMITTING,
        jobs=pb.JobCounts(total=3, succeeded=2),
        started_at=at,
        error=error,
        facts_json=json.dumps({"snapshotId": LARGE}),
        completion=pb.Completion(attempts=2, error=error, at=at),
        pause=pb.Pause(by="ana", at=at),
    )
    table = pb.Table(name="t", location="file:///t", snapshot_id=LARGE, running=["t/noop/1"], created_at=at)
    index = pb.Index(column="c", snapshot_id=LARGE, built_at=at, manifest="m")
    for kind, message in ((Operation, operation), (Table, table), (Index, index)):
        shown = plain(kind.from_proto(message))
        told = plain(message)
        assert {name: shown[name] for name in told if name in shown} == {
            name: told[name] for name in told if name in shown
        }
    assert plain(operation)["started_at"] == "2024-05-01T08:00:00.250000Z"
    assert plain(operation)["state"] == "committing"


def test_a_message_has_the_fields_of_its_record_and_what_is_said_besides() -> None:
    """Times are seconds since the epoch, and 0 is never. What is said wins over the record."""
    pause = message_of(pb.Pause, PauseRecord(by="ann", at=1714550400.25), scope="table")
    at = Timestamp(seconds=1714550400, nanos=250_000_000)
    assert pause == pb.Pause(by="ann", at=at, scope="table")
    record = CompletionRecord(attempts=2, error="disk full", skipped=[4, 7])
    error = pb.OperationError(code="E", message=record.error)
    completion = message_of(pb.Completion, record, skipped=len(record.skipped), error=error)
    assert completion == pb.Completion(attempts=2, skipped=2, error=error)
    assert not completion.HasField("at")
