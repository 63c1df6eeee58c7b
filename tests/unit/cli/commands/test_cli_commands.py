"""The commands, against a fake service."""

import io
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from distop.cli.main import app
from distop.cli.output.base import Output, YamlOutput
from distop.cli.output.human import HumanOutput
from distop.client import JobCounts, Operation, OperationState
from distop.errors import (
    AlreadyIngested,
    ArgumentTooLarge,
    DistopError,
    EtcdUnavailable,
    IncompatibleOperation,
    Kind,
    OperationNotFound,
    PreconditionFailed,
    TableNotFound,
    TablePaused,
)
from distop.metastore.etcd.embedded import free_port
from distop.metastore.records.table import AlertRecord
from distop.proto import distop_pb2 as pb
from distop.proto.identity import own_version
from support.services.fake_service import FakeService, serving_in_thread

RUNNING = pb.Operation(name="flights/noop/9", table="flights", type="noop", instance=9, state=pb.RUNNING)
HELD = "flights/noop/8"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    """What the commands talk to."""
    fake = FakeService()
    world = fake.world
    world.tables["flights"] = pb.Table(
        name="flights", location="file:///data", format="iceberg", snapshot_id=2**62
    )
    world.watermarks = [pb.Watermark(source="s", partition="1", value="x")]
    world.members = [
        pb.Member(id="c1", role="coordinator", address="127.0.0.1:7070", host="h", pid=7),
        pb.Member(id="e1", role="executor", host="h", pid=8, types=["ingest", "noop"]),
    ]
    world.leaders = [pb.Leader(table="flights", member="c1", epoch=12)]
    with serving_in_thread(fake) as address:
        monkeypatch.setenv("DISTOP_ADDRESS", address)
        yield fake


def run(*words: str, stdin: str | None = None, **env: str) -> Result:
    environment = {"DISTOP_OUTPUT": None, "COLUMNS": "200"} | env
    return CliRunner(env=environment).invoke(app, words, input=stdin, prog_name="distop")


def in_json(*words: str) -> Any:
    """What a command prints as JSON."""
    return document(run(*words, "-o", "json"))


def document(result: Result) -> Any:
    """The one JSON document that a command printed, and nothing else."""
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def test_both_outputs_speak_every_word() -> None:
    words = {name for name in vars(Output) if not name.startswith("_")} - {"written"}
    assert words <= set(vars(HumanOutput))
    assert set(vars(YamlOutput)) & words == set()


def test_start_prints_the_name_and_how_to_follow(service: FakeService) -> None:
    result = run("operation", "start", "flights", "noop", "--arg", "partitions=3")
    assert result.exit_code == 0
    assert result.stdout == "flights/noop/1\n"
    assert "distop operation watch flights/noop/1" in result.stderr


def test_start_passes_everything_on(service: FakeService) -> None:
    words = ["--arg", "partitions=3", "--arg", "p=a", "--arg", "p=b", "--object", "o", "--partition", "x"]
    words += ["--deadline", "10m", "--attempts", "5", "--run", "mine", "-o", "json"]
    words += ["--backoff", "1500ms", "--attempt-timeout", "1h", "--retry-for", "4h"]
    words += ["--max-failed", "any", "--then", "audit", "--then-arg", "deep=true", "--then-object", "o"]
    started = document(run("operation", "start", "flights", "noop", *words))
    assert (started["name"], started["run"], started["state"]) == ("flights/noop/1", "mine", "running")
    request = service.calls["start"][0]
    assert json.loads(request.argument_json) == {"partitions": 3, "p": ["a", "b"]}
    assert (request.object, list(request.partitions)) == ("o", ["x"])
    assert request.options.deadline.seconds == 600
    assert request.options.max_job_attempts == 5
    assert request.options.job_backoff.ToMilliseconds() == 1500
    assert (request.options.attempt_timeout.seconds, request.options.retry_for.seconds) == (3600, 14_400)
    assert request.options.max_failed_partitions == -1
    assert (request.then.type, request.then.object) == ("audit", "o")
    assert json.loads(request.then.argument_json) == {"deep": True}


def test_start_takes_its_argument_from_standard_input(service: FakeService) -> None:
    given = json.dumps({"partitions": 3, "note": "x"})
    run("operation", "start", "flights", "noop", "--json", "-", "--arg", "note=y", stdin=given)
    assert json.loads(service.calls["start"][0].argument_json) == {"partitions": 3, "note": "y"}


def test_start_with_wait_shows_the_progress_and_the_outcome(service: FakeService) -> None:
    result = run("operation", "start", "flights", "noop", "--arg", "partitions=3", "--wait")
    assert result.exit_code == 0
    assert "succeeded" in result.stdout
    assert "running" in result.stderr
    ended = in_json("operation", "start", "flights", "noop", "--wait")
    jobs = {"total": 1, "succeeded": 1, "failed": 0, "counting": False}
    assert (ended["state"], ended["jobs"]) == ("succeeded", jobs)


def test_a_wait_for_what_nobody_takes_says_why(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """U1: and goes on waiting."""
    monkeypatch.setattr("distop.cli.commands.operations.LOOK_EVERY_S", 0.01)
    world, waits, ends = service.world, pb.Operation(), pb.Operation()
    waits.CopyFrom(RUNNING)
    world.add(waits)
    ends.CopyFrom(waits)
    ends.state = pb.SUCCEEDED
    world.once_explained = [(waits.name, pb.OperationUpdate(operation=ends, revision=101))]
    world.explanation = pb.Explanation(table="flights", mood="stuck", sentence="no executor serves type noop")
    result = run("operation", "watch", waits.name)
    assert result.exit_code == 0
    assert result.stderr.count("flights: no executor serves type noop") == 1
    assert "succeeded" in result.stdout


def test_a_failed_operation_ends_with_20(service: FakeService) -> None:
    words = ["operation", "start", "flights", "noop", "--json", '{"partitions": 1, "fail": ["0"]}', "--wait"]
    result = run(*words)
    assert result.exit_code == 20
    assert "error: OPERATION_FAILED: flights/noop/1 failed: job 0 was asked to fail" in result.stderr
    result = run(*words, "-o", "json")
    assert result.exit_code == 20
    assert json.loads(result.stdout)["state"] == "failed"
    assert json.loads(result.stderr)["error"]["details"]["cause"] == "JOB_FAILED"


def test_paths_become_absolute(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(
        "table",
        "ingest",
        "flights",
        "a/b",
        "/c",
        "s3://d/e",
        "at:9.csv",
        "--format",
        "csv",
        "--header",
        "id,at",
    )
    request = service.calls["start"][0]
    assert request.type == "ingest"
    argument = json.loads(request.argument_json)
    assert argument["paths"] == [f"{tmp_path}/a/b", "/c", "s3://d/e", f"{tmp_path}/at:9.csv"]
    assert (argument["format"], argument["header"]) == ("csv", ["id", "at"])


def test_a_marker_becomes_absolute(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("batch", "add", "t", "1", "in", "--marker", "in/_SUCCESS", "--marker", "s3://d/_SUCCESS")
    (request,) = service.calls["enqueue"]
    assert json.loads(request.argument_json)["markers"] == [f"{tmp_path}/in/_SUCCESS", "s3://d/_SUCCESS"]


def test_options_of_ingest_are_parts_of_its_argument(service: FakeService) -> None:
    options = ["--new-only", "--null-value", "NA", "--null-value", "-", "--object", "night", "--queue"]
    run("table", "ingest", "flights", "/a", *options)
    (request,) = service.calls["start"]
    argument = json.loads(request.argument_json)
    assert argument == {"paths": ["/a"], "new_only": True, "null_values": ["", "NA", "-"]}
    assert request.object == "night"
    for given, nulls in ((["--null-value", "NA"], ["NA"]), ([], [])):
        run("table", "ingest", "flights", "/b", "--empty-is-text", *given)
        assert json.loads(service.calls["start"][-1].argument_json)["null_values"] == nulls
    run("table", "ingest", "flights", "/b", "--reingest", "--partition-columns-from-path")
    argument = json.loads(service.calls["start"][-1].argument_json)
    assert argument == {"paths": ["/b"], "reingest": True, "partition_columns_from_path": True}
    columns = ["--schema", "id: long, fare: decimal(9,2)", "--schema", "at: date"]
    run("table", "ingest", "flights", "/c", *columns, "--no-multiline", "--branch", "staging")
    argument = json.loads(service.calls["start"][-1].argument_json)
    schema = {"id": "long", "fare": "decimal(9,2)", "at": "date"}
    assert argument == {"paths": ["/c"], "schema": schema, "multiline": False, "branch": "staging"}
    assert "'id' is not a column" in run("table", "ingest", "flights", "/c", "--schema", "id").stderr


def test_options_name_columns_watermarks_rules_and_a_topic(service: FakeService) -> None:
    """No ingest needs JSON."""
    options = "--column id --epoch-unit at=ms --watermark a=18 --not-null at --delimiter ; --thousands ."
    run("table", "ingest", "t", "/a", *options.split(), "--marker", "/a/_DONE", "--rule", "id > 0")
    options = "--kafka-topic orders --kafka-servers b:9092 --kafka-from 0=7 --kafka-to 0=9"
    topic, config = options.split(), "sasl.password=env:DISTOP_KAFKA_P"
    run("table", "ingest", "t", *topic, "--kafka-config", config, "--kafka-metadata", "key=k")
    files, records = (json.loads(call.argument_json) for call in service.calls["start"])
    assert files == {
        "paths": ["/a"],
        "columns": ["id"],
        "epoch_units": {"at": "ms"},
        "watermark": {"a": "18"},
        "delimiter": ";",
        "thousands": ".",
        "markers": ["/a/_DONE"],
        "checks": {"rules": ["id > 0", {"not_null": "at"}]},
    }
    assert records == {
        "kafka": {
            "topic": "orders",
            "servers": "b:9092",
            "from": {"0": 7},
            "to": {"0": 9},
            "metadata": {"key": "k"},
            "config": {"sasl.password": {"env": "DISTOP_KAFKA_P"}},
        }
    }
    for words in ([], ["--kafka-format", "csv"], [*topic[:-1], "0=x"]):
        assert run("table", "ingest", "t", *words).exit_code == 2


def test_files_of_a_batch_and_how_they_are_read_are_given_as_to_an_ingest(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--mode", "merge", "--key", "id", "--empty-is-text"]
    run("batch", "add", "t", "1", "a.csv", "/b", *options, "--unordered")
    run("batch", "replace", "t", "1", "a.csv", "--not-null", "id")
    topic = {"topic": "orders", "servers": "b:9092"}
    run("batch", "add", "t", "2", "--kafka-topic", "orders", "--kafka-servers", "b:9092")
    given = [(call.type, json.loads(call.argument_json)) for call in service.calls["enqueue"]]
    paths = [f"{tmp_path}/a.csv"]
    merged = {"paths": [*paths, "/b"], "mode": "merge", "keys": ["id"], "null_values": []}
    checked = {"paths": paths, "checks": {"rules": [{"not_null": "id"}]}}
    assert given == [("ingest", merged), ("ingest", checked), ("ingest", {"kafka": topic})]


def test_a_batch_of_any_type_has_its_argument_by_name(service: FakeService) -> None:
    """A batch is replaced as it was published if nothing is given."""
    run("batch", "add", "t", "1", "--type", "export", "--arg", "to=/out", "--arg", "deep=true")
    run("batch", "add", "t", "2", "--json", '{"paths": "/a"}')
    run("batch", "replace", "t", "1", "--type", "export")
    given = [(call.type, json.loads(call.argument_json or "{}")) for call in service.calls["enqueue"]]
    assert given == [("export", {"to": "/out", "deep": True}), ("ingest", {"paths": "/a"}), ("export", {})]


def test_a_backfill_names_its_batch_in_a_path_or_an_option(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    days = ["--from", "2024-01-01", "--to", "2024-01-02", "--dry-run"]
    how = ["--on-bad-rows", "quarantine", "--filter", "day = '{{ batch }}'"]
    shown = in_json("batch", "backfill", "t", "in/{{ tick | date('%Y/%m/%d') }}.csv", *how, *days)
    assert shown["arguments"] == {
        f"2024-01-{day}": {
            "paths": [f"{tmp_path}/in/2024/01/{day}.csv"],
            "on_bad_rows": "quarantine",
            "filter": f"day = '2024-01-{day}'",
        }
        for day in ("01", "02")
    }
    lines = run("batch", "backfill", "t", "/in/{{ batch }}", "--not-null", "id", *days).stdout.splitlines()
    told = "2024-01-02: paths=/in/2024-01-02, checks=rules=not_null=id"
    assert told in [line.strip() for line in lines]  # an argument has a line of its own
    refused = run("batch", "backfill", "t", "/in/all.csv", *days)
    assert (refused.exit_code, "as in /data/{{ batch }}" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["/a", "--arg", "mode=append"], "--arg"),
        (["/a", "--json", '{"mode": "append"}'], "--json"),
        (["/a", "--type", "export"], "export"),
        (["--on-bad-rows", "quarantine"], "--kafka-topic"),
        (["--kafka-topic", "orders"], "--kafka-servers"),
        (["/a", "--rule", "id > 0", "--checks", "{}"], "--checks"),
    ],
)
@pytest.mark.parametrize("verb", ["add", "replace", "backfill"])
def test_half_an_ingest_or_two_arguments_are_refused(
    verb: str, given: list[str], named: str, service: FakeService
) -> None:
    """A batch that named no file would stop its table later."""
    batches = ["--from", "1", "--to", "1", "--every", "1"] if verb == "backfill" else ["1"]
    refused = run("batch", verb, "t", *batches, *given)
    assert (refused.exit_code, service.calls["enqueue"]) == (2, [])
    assert named in refused.stderr


@pytest.mark.parametrize(
    "verb", [["add", "t", "1"], ["backfill", "t", "--from", "2024-01", "--to", "2024-02"]]
)
def test_a_batch_of_an_ingest_that_names_nothing_is_not_published(
    verb: list[str], service: FakeService
) -> None:
    """It would stop its table when its turn comes."""
    refused = run("batch", *verb)
    assert (refused.exit_code, service.calls["enqueue"]) == (2, [])
    assert "name files to ingest" in refused.stderr


def test_a_dry_run_of_ingest_shows_and_starts_nothing(service: FakeService) -> None:
    preview = {
        "format": "csv",
        "files": 2,
        "columns": [{"name": "n", "type": "long", "from": "files"}],
        "rows": [{"n": 7}, {"n": None}],
        "badRows": ["line 3: no number"],
        "warnings": ["is the delimiter right?"],
    }
    service.world.preview = json.dumps(preview)
    words = ("table", "ingest", "flights", "/a", "--dry-run")
    assert in_json(*words) == preview
    shown = run(*words).stdout
    for text in ("COLUMN", "long", "7", "NULL", "warning: is the delimiter right?", "bad row: line 3"):
        assert text in shown
    assert service.calls["preview"][0].table == "flights"
    assert "start" not in service.calls


def test_operations_are_listed(service: FakeService) -> None:
    for _ in range(3):
        run("operation", "start", "flights", "noop")
    assert [op["name"] for op in in_json("operation", "list")] == [f"flights/noop/{n}" for n in (1, 2, 3)]
    assert len(json.loads(run("operation", "list", "flights", "-n", "2", "-o", "json").stdout)) == 2
    assert in_json("operation", "list", "--state", "failed", "--state", "cancelled") == []
    assert list(service.calls["list"][-1].states) == [pb.FAILED, pb.CANCELLED]
    shown = run("operation", "list", "-n", "2")
    head = shown.stdout.splitlines()[0]
    assert head.split() == ["OPERATION", "STATE", "JOBS", "ROWS", "STARTED", "DURATION", "BY", "ERROR"]
    assert "flights/noop/2" in shown.stdout
    assert "flights/noop/3" not in shown.stdout
    assert "1 more: --limit 0 shows all" in shown.stderr
    assert "no operations" in run("operation", "list", "other").stderr
    assert {call.page_size for call in service.calls["list"]} == {102, 200}


def test_an_operation_is_shown(service: FakeService) -> None:
    run("operation", "start", "flights", "noop")
    shown = in_json("operation", "show", "flights/noop/1")
    assert shown["started_at"] == "2023-11-14T22:13:20Z"
    assert shown["finished_at"] is None
    assert "flights/noop/1" in run("operation", "show", "flights/noop/1").stdout


def test_an_operation_is_watched_to_its_end(service: FakeService) -> None:
    run("operation", "start", "flights", "noop", "--arg", "partitions=2")
    result = run("operation", "watch", "flights/noop/1", "-o", "json")
    updates = [json.loads(line) for line in result.stdout.splitlines()]
    assert [update["operation"]["state"] for update in updates] == ["running", "succeeded"]
    assert [job["partition"] for job in updates[1]["jobs"]] == ["0", "1"]
    assert "succeeded" in run("operation", "watch", "flights/noop/1").stdout


def test_an_operation_is_cancelled(service: FakeService) -> None:
    service.world.add(RUNNING)
    asked = in_json("operation", "cancel", RUNNING.name, "--reason", "why")
    assert asked["cancel_requested"]
    assert service.calls["cancel"][0].reason == "why"
    assert run("operation", "cancel", RUNNING.name, "--wait").exit_code == 0
    watched = run("operation", "watch", RUNNING.name, "-o", "json")
    assert watched.exit_code == 21
    assert json.loads(watched.stderr)["error"]["code"] == "CANCELLED"


def test_cancel_of_what_is_over_tells_the_truth(service: FakeService) -> None:
    """O19"""
    service.world.add(pb.Operation(name="flights/noop/9", state=pb.SUCCEEDED))
    result = run("operation", "cancel", "flights/noop/9", "--wait")
    assert result.exit_code == Kind.PRECONDITION.exit_code
    assert "was not cancelled: it had already succeeded" in result.stderr


def test_pause_and_resume_of_an_operation_and_of_a_table(service: FakeService) -> None:
    """O21"""
    service.world.add(pb.Operation(name=HELD, table="flights", type="noop", instance=8, state=pb.RUNNING))
    seen = run("operation", "pause", HELD, "--reason", "new disks")
    assert seen.exit_code == 0, seen.output
    assert "running (paused)" in seen.stdout
    assert ": new disks" in seen.stdout
    assert "running (paused)" in run("operation", "list").stdout
    shown = in_json("operation", "show", HELD)
    assert (shown["pause"]["reason"], shown["pause"]["scope"]) == ("new disks", "operation")
    assert in_json("operation", "resume", HELD)["pause"] is None
    assert ": later" in run("table", "pause", "flights", "--reason", "later").stdout
    assert "paused" in run("table", "list").stdout
    assert in_json("table", "resume", "flights")["pause"] is None


def test_a_coordinator_is_drained(service: FakeService) -> None:
    """O21"""
    assert "coordinator (draining)" in run("cluster", "drain", "c1", "--reason", "new host").stdout
    assert service.calls["drain"][0].reason == "new host"
    told = in_json("cluster", "drain", "c1", "--undo")
    assert [member["draining"] for member in told] == [False, False]


@pytest.mark.parametrize(("skippable", "offered"), [(False, "retry abort"), (True, "retry skip abort")])
def test_only_decisions_that_a_parked_operation_can_take_are_offered(
    service: FakeService, skippable: bool, offered: str
) -> None:
    """C10, U1: by who shows it, and by who waits for it."""
    completion = pb.Completion(attempts=5, parked=True, skippable=skippable)
    service.world.add(pb.Operation(name=HELD, table="flights", state=pb.COMMITTING, completion=completion))
    decide = ", or ".join(f"distop operation resolve {HELD} {verb}" for verb in offered.split())
    assert f"parked: {decide})" in " ".join(run("operation", "show", HELD).stdout.split())
    watched = run("operation", "watch", HELD)
    assert watched.exit_code == 23
    assert watched.stderr.endswith(f"decide: {decide}\n")


def test_show_names_the_partitions_that_failed(service: FakeService) -> None:
    """C17"""
    done = pb.Operation(name=HELD, table="flights", type="noop", state=pb.SUCCEEDED)
    done.jobs.failed = 30
    broken = {f"p{index:02}": "BAD_ROW: line 7" for index in range(30)}
    done.facts_json = json.dumps({"failedPartitions": broken})
    service.world.add(done)
    shown = run("operation", "show", HELD).stdout
    assert "p00: BAD_ROW: line 7" in shown
    assert "and 10 more" in shown
    assert "failedPartitions" not in shown
    told = in_json("operation", "show", HELD)
    assert len(told["facts"]["failedPartitions"]) == 30


def test_show_has_a_line_for_each_broken_rule(service: FakeService) -> None:
    """P12"""
    failed = pb.Operation(name=HELD, table="flights", type="validate", state=pb.FAILED)
    many: Any = {"rule": "not_null(id)", "rows": 1200, "partitions": 9, "most": {"m=1": 700, "m=2": 200}}
    one: Any = {"rule": "check(a > 0)", "rows": 1, "partitions": 1, "most": {"m=1": 1}, "sample": '{"a":-1}'}
    failed.facts_json = json.dumps({"violations": [many, one], "violatedRules": 4})
    service.world.add(failed)
    shown = run("operation", "show", HELD).stdout
    assert "not_null(id): 1,200 rows (m=1: 700, m=2: 200, 7 more)" in shown
    assert 'check(a > 0): 1 row (m=1: 1), such as {"a":-1}' in shown
    assert "and 2 more rules" in shown
    assert "violations" not in shown
    told = in_json("operation", "show", HELD)
    assert [rule["rows"] for rule in told["facts"]["violations"]] == [1200, 1]


@pytest.mark.parametrize(
    "odd",
    [
        "text",
        [1.5],
        {"name": "s"},
        [{"rule": "r", "rows": "many", "partitions": 1, "most": {}}],
        [{"rule": "r", "rows": 1, "partitions": 1, "most": {"m": [2]}}],
    ],
)
def test_facts_of_any_shape_are_shown(service: FakeService, odd: Any) -> None:
    """A type may give its facts the names of distop's own."""
    names = "failedPartitions", "rows", "series", "violatedRules", "violations"
    done = pb.Operation(name=HELD, table="flights", type="mine", state=pb.SUCCEEDED)
    done.facts_json = json.dumps(dict.fromkeys(names, odd))
    service.world.add(done)
    shown = run("operation", "show", HELD)
    assert shown.exit_code == 0
    for name in names:
        assert name in shown.stdout or (name == "failedPartitions" and isinstance(odd, dict))
    assert run("operation", "list").exit_code == 0


def test_a_table_is_dropped_once_though_the_reply_is_lost(service: FakeService) -> None:
    """A lost reply is answered by the table that is gone; of one that never was, it is an error."""
    service.lose_replies = 1
    dropped = run("table", "drop", "flights", "--reason", "old")
    assert dropped.exit_code == 0, dropped.output
    assert "dropped flights; its files stay" in dropped.stderr
    assert [(call.purge, call.reason) for call in service.calls["drop_table"]] == [(False, "old")] * 2
    assert run("table", "drop", "flights").exit_code == 3


def test_a_table_is_altered_by_one_call_that_is_repeated_under_its_id(service: FakeService) -> None:
    """All that is asked for is one call; a lost reply is asked for again under the same id."""
    run("table", "create", "t", "--location", "/data/t")
    service.lose_replies = 1
    words = ["--add", "fare: decimal(9,2), note: string", "--rename", "a=b", "--drop", "c"]
    words += ["--widen", "d: long"]
    words += ["--optional", "e", "--doc", "e=what=is", "--move", "f", "--move", "g=h", "--reason", "old"]
    words += ["--partition-by", "bucket(4, a)", "--property", "k=1", "--unset", "l", "--checks", "none"]
    altered = run("table", "alter", "t", *words)
    assert altered.exit_code == 0, altered.output
    first, again = service.calls["alter_table"]
    assert first == again
    assert first.run
    assert first.reason == "old"
    assert [json.loads(text) for text in first.changes_json] == [
        {"change": "rename", "column": "a", "to": "b"},
        {"change": "drop", "column": "c"},
        {"change": "add", "column": "fare", "type": "decimal(9,2)"},
        {"change": "add", "column": "note", "type": "string"},
        {"change": "widen", "column": "d", "type": "long"},
        {"change": "optional", "column": "e"},
        {"change": "doc", "column": "e", "doc": "what=is"},
        {"change": "move", "column": "f", "after": ""},
        {"change": "move", "column": "g", "after": "h"},
        {"change": "partition_by", "terms": ["bucket(4, a)"]},
        {"change": "properties", "set": {"k": "1"}, "unset": ["l"]},
        {"change": "checks"},
    ]


def test_the_audit_trail_is_exported_with_cursors(service: FakeService) -> None:
    """S6"""
    entry = pb.AuditEntry(id="0", action="pause", target="t", by="ana", cursor="7.0")
    service.world.audit.append(entry)
    (told,) = in_json("audit", "list", "t", "--after", "1")
    assert (told["id"], told["cursor"]) == ("0", "7.0")
    assert service.calls["audit"][-1].after == "1"


def test_the_audit_trail_is_listed(service: FakeService) -> None:
    """U2"""
    service.world.add(pb.Operation(name=HELD, table="flights", type="noop", instance=8, state=pb.RUNNING))
    assert "nothing yet" in run("audit", "list").stderr
    for reason in ("one", "two"):
        run("operation", "pause", HELD, "--reason", reason)
    told = in_json("audit", "list", "flights")
    pauses = [(entry["action"], entry["target"], entry["reason"]) for entry in told]
    assert pauses == [("pause", HELD, reason) for reason in ("two", "one")]
    cut = run("audit", "list", "flights", "-n", "1")
    assert "two" in cut.stdout
    assert "one" not in cut.stdout
    assert "1 more: --limit 0 shows all" in cut.stderr


def test_tables_are_created_and_listed(service: FakeService) -> None:
    words = ["table", "create", "t", "--location", "/data/t", "--schema", "a: long, b: decimal(9,2)"]
    words += ["--partition-by", "bucket(4, a)", "--partition-by", "b", "--property", "k=1", "-o", "json"]
    words += ["--checks", '{"rules": ["a > 0"]}']
    made = document(run(*words))
    assert made["options"] == {
        "schema": ["a: long", "b: decimal(9,2)"],
        "partitionBy": ["bucket(4, a)", "b"],
        "properties": {"k": "1"},
        "checks": {"rules": ["a > 0"]},
    }
    shown = in_json("table", "show", "t")
    assert shown | {"content": None} == made
    listed = in_json("table", "list")
    assert [table["name"] for table in listed] == ["flights", "t"]
    assert listed[0]["snapshot_id"] == str(2**62)
    assert "file:///data" in run("table", "list").stdout
    assert "bucket(4, a)" in run("table", "show", "t").stdout


def test_what_a_table_holds_and_its_snapshots(service: FakeService) -> None:
    content = service.world.contents["flights"] = pb.TableContent(rows=1200, bytes=3 << 20, files=4)
    content.columns.add(name="id", type="long", required=True)
    content.loaded_by, content.loaded_rows = "flights/ingest/7", 900
    shown = run("table", "show", "flights").stdout
    for text in ("id: long not null", "1,200", "3.0 MiB in 4 files", "900 rows, by flights/ingest/7"):
        assert text in shown
    service.world.snapshots = [
        pb.Snapshot(snapshot_id=2**62, change="append", rows=3, added_rows=1, refs=["audit"]),
        pb.Snapshot(snapshot_id=7, change="append", operation="flights/ingest/7", in_history=True),
    ]
    listed = in_json("snapshot", "list", "flights")
    assert [(one["snapshot_id"], one["rows"]) for one in listed] == [(str(2**62), 3), ("7", None)]
    shown = run("snapshot", "list", "flights").stdout
    assert f"{2**62}" in shown
    assert "another program" in shown
    assert "not in the history, audit" in shown


def test_rollback_sends_the_id_as_it_was_given(service: FakeService) -> None:
    run("table", "rollback", "flights", "4216351713844670481", "--watermarks", "keep")
    run("operation", "start", "flights", "rollback", "--arg", "snapshot=4216351713844670481")
    given = [json.loads(call.argument_json)["snapshot"] for call in service.calls["start"]]
    assert given == ["4216351713844670481", 4216351713844670481]


def test_options_stand_for_the_argument(service: FakeService) -> None:
    """What matters of ingest, validate and build_index needs no --arg."""
    run("table", "ingest", "t", "s3://b/f", "--filter", "id > 7", "--on-bad-rows", "quarantine")
    run("table", "build-index", "t", "dest", "--full")
    run(
        *("table", "validate", "t", "--rule", "miles > 0", "--rule", '{"column": "miles", "type": "int"}'),
        *("--not-null", "day", "--unique", "day,origin", "--branch", "staging", "--publish"),
        *("--partition", "day=1"),
    )
    rules = ["miles > 0", {"column": "miles", "type": "int"}, {"not_null": "day"}]
    rules.append({"unique": ["day", "origin"]})
    calls = service.calls["start"]
    assert [(call.type, json.loads(call.argument_json), list(call.partitions)) for call in calls] == [
        ("ingest", {"on_bad_rows": "quarantine", "filter": "id > 7", "paths": ["s3://b/f"]}, []),
        ("build_index", {"column": "dest", "full": True}, []),
        ("validate", {"rules": rules, "branch": "staging", "publish": True}, ["day=1"]),
    ]


def test_an_empty_branch_of_an_option_is_not_taken_for_none(service: FakeService) -> None:
    """S2: it may be a variable that was not set; the table itself is not validated in its place."""
    run("table", "validate", "t", "--rule", "miles > 0", "--branch", "")
    run("table", "delete", "t", "--where", "miles > 0", "--branch", "")
    assert [json.loads(call.argument_json)["branch"] for call in service.calls["start"]] == ["", ""]
    approval = run("batch", "approve", "t", "b", "--branch", "")
    assert (approval.exit_code, approval.stdout) == (2, "")
    assert "--branch is empty" in approval.stderr


def test_a_name_that_is_nearly_right_is_told(service: FakeService) -> None:
    assert "hint: did you mean flights?" in run("table", "show", "flihgts").stderr
    service.world.add(RUNNING)
    shown = []
    for name in ("flight/noop/9", "flights/nop/9", "flights/noop/8"):
        service.refuse = [OperationNotFound("it does not exist", details={"operation": name})]
        shown.append(run("operation", "show", name).stderr)
    assert "did you mean flights/noop/9?" in shown[0]
    assert "did you mean flights/noop/9?" in shown[1]
    assert "did you mean" not in shown[2]


def test_a_shell_completes_names(service: FakeService) -> None:
    service.world.add(RUNNING)
    service.world.tables["planes"] = pb.Table(name="planes")

    def completed(*words: str, **env: str) -> list[str]:
        line = " ".join(("distop", *words))
        env |= {"_DISTOP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
        return run(**env).stdout.split()

    assert completed("table", "show", "fl") == ["flights"]
    assert completed("table", "why", "") == ["flights", "planes"]
    assert completed("operation", "show", "fl") == ["flights/"]
    assert completed("operation", "watch", "flights/") == ["flights/noop/9"]
    service.world.schedules = [pb.Schedule(name="nightly"), pb.Schedule(name="weekly")]
    assert completed("schedule", "pause", "flights", "n") == ["nightly"]
    service.world.snapshots = [pb.Snapshot(snapshot_id=7, refs=["staging"])]
    assert completed("table", "publish-branch", "flights", "st") == ["staging"]
    assert completed("table", "rollback", "flights", "") == ["7"]
    assert completed("watermark", "forget", "flights", "") == ["s"]
    assert completed("operation", "start", "flights", "no") == ["noop"]
    assert completed("cluster", "drain", "") == ["c1"]
    assert completed("operation", "list", "pl") == ["planes"]
    for number in range(300):
        service.world.tables[f"many{number:03}"] = pb.Table(name=f"many{number:03}")
    assert len(completed("table", "why", "many")) == 100
    assert completed("table", "why", "planes") == ["planes"]
    assert completed("table", "why", "", DISTOP_ADDRESS=f"127.0.0.1:{free_port()}") == []


def test_what_a_scheduler_asks_for_has_exit_codes_of_its_own(service: FakeService) -> None:
    service.refuse = [AlreadyIngested(), TablePaused(), PreconditionFailed()]
    codes = [run("operation", "start", "flights", "noop").exit_code for _ in range(3)]
    assert codes == [24, 25, 5]


def test_no_cell_of_a_list_reaches_the_terminal_as_a_control_sequence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Facts are whatever an operation type reports."""
    facts = {"rows": "\x1b[2J"}
    operation = Operation(
        name="t/load/1", table="t", type="load", state=OperationState.SUCCEEDED, facts=facts
    )
    HumanOutput().listed("operations", [operation], more=0)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown


LONG = Operation(
    name="warehouse.flights/ingest/1017",
    table="warehouse.flights",
    type="ingest",
    state=OperationState.SUCCEEDED,
    jobs=JobCounts(120_000, 120_000, 0),
    started_by="somebody@a-host-with-a-long-name",
    started_at=datetime(2024, 5, 1, tzinfo=UTC),
    finished_at=datetime(2024, 5, 2, tzinfo=UTC),
)


def test_a_list_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and states stay; through a pipe all columns are there."""
    out = HumanOutput()
    out._out.width = 80
    out.listed("operations", [LONG], more=0)
    seen = capsys.readouterr()
    assert max(map(len, seen.out.splitlines())) <= 80
    assert len(seen.out.splitlines()) == 2
    assert "warehouse.flights/ingest/1017" in seen.out
    assert "not shown: BY" in seen.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("wide", [False, True])
def test_a_wide_list_has_all_columns_on_a_narrow_terminal(
    wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout", Terminal())
    out = HumanOutput(wide=wide)
    out.listed("operations", [LONG], more=0)
    assert ("somebody@a-host-with-a-long-name" in out._out.file.getvalue()) is wide  # type: ignore[attr-defined]


def test_looking_after_a_table_takes_options(service: FakeService) -> None:
    for words in (
        "compact flights --partition kind=a --min-files 2 --sort-by dest --sort-by miles",
        "compact flights",
        "expire-snapshots flights --older-than 30d --keep-last 10",
        "remove-orphans flights",
        "remove-orphans flights --no-dry-run --older-than 7d",
    ):
        assert run("table", *words.split()).exit_code == 0
    calls = service.calls["start"]
    assert [(call.type, json.loads(call.argument_json or "{}")) for call in calls] == [
        ("compact", {"sort_by": ["dest", "miles"], "min_files": 2}),
        ("compact", {}),
        ("expire_snapshots", {"older_than": "30d", "keep_last": 10}),
        ("remove_orphans", {"dry_run": True}),
        ("remove_orphans", {"older_than": "7d", "dry_run": False}),
    ]
    assert list(calls[0].partitions) == ["kind=a"]


def test_indexes_of_a_table(service: FakeService) -> None:
    service.world.indexes = [
        pb.Index(column="tailnum", snapshot_id=2**62, commits_behind=2, files=1200, left_out=1),
        pb.Index(column="origin", commits_behind=0),
        pb.Index(column="dest"),
    ]
    shown = run("table", "show", "flights").stdout
    assert f"tailnum: snapshot {2**62}, 2 behind, 1,200 files, 1 left out" in shown
    assert "up to date" in shown
    assert "unknown" in shown
    told = in_json("table", "show", "flights")["indexes"]
    behind = {one["column"]: one["commits_behind"] for one in told}
    assert behind == {"tailnum": 2, "origin": 0, "dest": None}


def test_watermarks_and_members_are_listed(service: FakeService) -> None:
    assert in_json("watermark", "list", "flights") == {"s": {"1": "x"}}
    assert run("watermark", "list", "flights").stdout.split() == [
        "SOURCE", "PARTITION", "WATERMARK", "s", "1", "x",
    ]  # fmt: skip
    members = in_json("cluster", "members")
    assert [(member["id"], member["leads"]) for member in members] == [("c1", ["flights"]), ("e1", [])]
    assert "ingest, noop" in run("cluster", "members").stdout
    versions = in_json("cluster", "version")
    assert versions == {"distop": own_version(), "members": {"c1": "not said", "e1": "not said"}}
    assert own_version() in run("cluster", "version").stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TableNotFound("table 'x' does not exist"), 3),
        (IncompatibleOperation("flights/ingest/1 is in the way"), 5),
        (ArgumentTooLarge("too large"), 2),
    ],
)
def test_an_error_is_two_lines_and_its_exit_code(service: FakeService, error: DistopError, code: int) -> None:
    """U3"""
    service.refuse = [error, error]
    result = run("operation", "start", "flights", "noop")
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr == f"error: {error.code}: {error.message}\nhint: {error.hint}\n"
    result = run("operation", "start", "flights", "noop", "-o", "json")
    assert result.exit_code == code
    assert result.stdout == ""
    assert json.loads(result.stderr)["error"] == {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "retryable": error.retryable,
        "details": {},
        "exit_code": code,
    }


@pytest.mark.parametrize("options", [(), ("--late-after", "24h")])
def test_a_list_of_alerts_that_leaves_out_late_watermarks_says_so(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_alerts(*_: object) -> list[AlertRecord]:
        return []

    monkeypatch.setattr("distop.cli.commands.alerts.current_alerts", no_alerts)
    result = run("alert", "list", *options)
    assert result.exit_code == 0
    assert ("--late-after" in result.output) is not bool(options)


def test_an_outage_is_told_within_the_timeout(service: FakeService) -> None:
    """U4"""
    service.refuse = [EtcdUnavailable() for _ in range(1000)]
    result = run("operation", "list", "--timeout", "3")
    assert result.exit_code == 8
    assert "ETCD_UNAVAILABLE" in result.stderr
    assert "--etcd, DISTOP_ETCD" in result.stderr


def test_a_command_without_a_coordinator_names_the_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    result = run("operation", "list", "-a", address)
    assert result.exit_code == 8
    assert f"is a coordinator running at {address}?" in result.stderr
    assert "Connection refused" in result.stderr


def test_options_before_and_behind_the_command(service: FakeService) -> None:
    address, wrong = os.environ["DISTOP_ADDRESS"], f"127.0.0.1:{free_port()}"
    assert document(run("-a", address, "-o", "json", "operation", "list")) == []
    assert in_json("-a", wrong, "-o", "table", "operation", "list", "-a", address) == []
    assert document(run("operation", "list", DISTOP_OUTPUT="json")) == []


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["operation", "list", "--nonsense"],
        ["operation", "start", "flights"],
        ["operation", "list", "--state", "odd"],
        ["operation", "start", "flights", "noop", "--deadline", "soon"],
        ["operation", "start", "flights", "noop", "--arg", "x"],
        ["operation", "start", "flights", "noop", "--json", "/no/such/file"],
        ["operation", "list", "-a", "no:such:address"],
        ["operation", "list", "--timeout", "-1"],
        ["coordinator", "--listen", "nowhere"],
        ["coordinator", "--etcd", "nowhere"],
        ["coordinator", "--etcd-password-file", "/no/such/file"],
        ["coordinator", "--lease-ttl", "1"],
        ["dev", "--listen", "nowhere"],
    ],
)
def test_bad_command_lines_end_with_2_and_say_why(words: list[str]) -> None:
    """U3"""
    result = run(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    result = run(*words, "--output=json")
    assert result.exit_code == 2
    assert json.loads(result.stderr)["error"]["exit_code"] == 2


def test_a_defect_shows_its_traceback(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("distop.client.Client.members", broken)
    result = run("cluster", "members")
    assert result.exit_code == 13
    assert "Traceback" in result.stderr
    assert "error: INTERNAL: ZeroDivisionError: oh" in result.stderr
    told = json.loads(run("cluster", "members", "-o", "json").stderr)
    assert "ZeroDivisionError" in told["error"]["message"]


def test_names_cannot_steer_the_terminal(service: FakeService) -> None:
    """O29"""
    service.world.tables["flights"].name = "a\x1b]0;title\x07[red]b\nc"
    shown = run("table", "list").stdout
    assert "a\\x1b]0;title\\x07[red]b\\nc" in shown
    assert "\x1b" not in shown


def test_yaml_holds_what_json_holds(service: FakeService) -> None:
    service.world.add(RUNNING)
    service.world.schedules = [pb.Schedule(name="nightly")]
    service.world.snapshots = [pb.Snapshot(snapshot_id=2**62)]
    of_table = [[noun, "list", "flights"] for noun in ("schedule", "snapshot", "watermark")]
    lists = [[noun, "list"] for noun in ("table", "operation", "audit")]
    for words in (*lists, *of_table, ["operation", "show", RUNNING.name], ["cluster", "members"]):
        assert yaml.safe_load(run(*words, "-o", "yaml").stdout) == in_json(*words)
        assert run(*words, "-o", "wide").exit_code == run(*words).exit_code == 0
    cut = run("operation", "show", "flights/noop/77", "-o", "yaml")
    assert yaml.safe_load(cut.stderr)["error"]["code"] == "OPERATION_NOT_FOUND"
    watched = run("operation", "watch", "flights/noop/77", DISTOP_OUTPUT="yaml")
    assert yaml.safe_load(watched.stderr)["error"]["exit_code"] == watched.exit_code


def test_a_long_list_says_that_more_than_a_hundred_are_left_out(service: FakeService) -> None:
    for number in range(150):
        service.world.tables[f"t{number}"] = pb.Table(name=f"t{number}")
    assert "at least 100 more: --limit 0 shows all" in run("table", "list", "-n", "10").stderr


def test_the_version_is_printed() -> None:
    assert run("--version").stdout.startswith("distop ")
    assert set(in_json("--version")) == {"version"}


def test_help_lists_the_exit_codes() -> None:
    shown = run("--help").stdout
    for words in ("20 the operation failed", "21 the operation was cancelled", "3 not found"):
        assert words in shown
    assert run().stdout.strip() == shown.strip()
    assert "Did you mean 'watch'?" in run("operation", "wath").stderr


def test_help_begins_with_distop_dev_and_fills_its_lines() -> None:
    shown = run("--help", COLUMNS="80").stdout
    assert "Begin with: distop dev" in shown
    begin = shown.partition("─ Begin ─")[2].partition("─ Work ─")[0]
    assert "│ dev " in begin
    assert "etcd, a coordinator with its web page, an executor, and the" in begin


def test_a_verb_without_its_noun_is_answered_with_the_whole_command() -> None:
    shown = run("ingest", "flights", "a.csv")
    assert shown.exit_code == 2
    assert "did you mean distop table ingest?" in shown.stderr


@pytest.mark.parametrize("more", [["--anyway"], ["--published", "a"], ["--look-in", "/b"]])
def test_what_belongs_to_a_restore_is_not_passed_over(service: FakeService, more: list[str]) -> None:
    """U3"""
    result = run("cluster", "doctor", *more)
    assert result.exit_code != 0
    assert "belong to --after-restore" in result.output
