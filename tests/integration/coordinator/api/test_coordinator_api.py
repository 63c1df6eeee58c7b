"""What callers see over the wire: lists, tables, members, health, and errors they can act on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2, timestamp_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from distop import errors
from distop.client import AsyncClient
from distop.coordinator.api import published
from distop.coordinator.api.tables import TableService
from distop.coordinator.work.work import Work
from distop.metastore.backlog.batches import BatchRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import KeyValue, Put
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord, OperationArg
from distop.metastore.records.record import decode, encode, encode_plain
from distop.metastore.records.table import TableRecord, Watermarks
from distop.metastore.tables.audit import denial_put
from distop.metastore.tables.registry import table_puts
from distop.operations.registry import Registry
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from support.etcd.jobs import mark
from support.etcd.lossy import LossyClient, puts
from support.services.coordinators import Service, leader_of, raising, serving
from support.tables.nowhere import nowhere
from support.waiting import eventually


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig) -> AsyncIterator[Service]:
    async with serving(etcd_config) as standing:
        yield standing


async def operations(service: Service, **fields: Any) -> pb.ListOperationsResponse:
    with raising():
        request = pb.ListOperationsRequest(**fields)
        page: pb.ListOperationsResponse = await service.operations.ListOperations(request, timeout=10)
    return page


async def pages(service: Service, **fields: Any) -> AsyncIterator[pb.ListOperationsResponse]:
    token: str | None = ""
    while token is not None:
        page = await operations(service, page_token=token, **fields)
        yield page
        token = page.next_page_token or None


async def tables(service: Service, **fields: Any) -> pb.ListTablesResponse:
    with raising():
        request = pb.ListTablesRequest(**fields)
        page: pb.ListTablesResponse = await service.tables.ListTables(request, timeout=10)
    return page


async def everything(client: EtcdClient) -> list[KeyValue]:
    """Every key but those of live members."""
    kvs = (await client.scan(client.keyspace.prefix)).kvs
    return [kv for kv in kvs if not kv.key.startswith(client.keyspace.coordinators)]


async def test_operations_are_listed_filtered_and_shown_with_their_end(
    service: Service, client: EtcdClient
) -> None:
    """O22: who, when, how long, what failed; running and finished; the newest first."""
    await service.create_table("a")
    await service.create_table("b")
    done = await service.start("a", argument={"partitions": 0}, started_by="ann")
    await service.ended(done)
    failed = await service.start("a", argument={"partitions": 1}, started_by="bob")
    await mark(client, failed, "0", error="why")
    await service.ended(failed)
    cancelled = await service.start("b", "friend")
    await service.cancel(cancelled)
    await service.ended(cancelled)
    running = await service.start("a", argument={"partitions": 1})

    listed = (await operations(service)).operations
    assert [each.name for each in listed] == [str(each) for each in (running, failed, done, cancelled)]
    assert [each.state for each in listed] == [pb.RUNNING, pb.FAILED, pb.SUCCEEDED, pb.CANCELLED]
    assert "why" in listed[1].error.message
    assert listed[1].started_by == "bob"
    assert listed[1].finished_at.ToNanoseconds() >= listed[1].started_at.ToNanoseconds() > 0
    assert not listed[0].HasField("finished_at")

    def names(response: pb.ListOperationsResponse) -> list[str]:
        return [each.name for each in response.operations]

    assert names(await operations(service, table="b")) == [str(cancelled)]
    assert names(await operations(service, type="friend")) == [str(cancelled)]
    assert names(await operations(service, states=[pb.FAILED, pb.CANCELLED])) == [str(failed), str(cancelled)]
    assert names(await operations(service, table="a", states=[pb.RUNNING])) == [str(running)]
    assert names(await operations(service, table="b", type="noop")) == []


async def test_pages_of_a_list_are_of_one_revision(service: Service) -> None:
    """O22: what starts or ends meanwhile neither shifts the pages nor shows up on a later one."""
    for table in ("a", "b", "c"):
        await service.create_table(table)
        for _ in range(4):
            await service.ended(await service.start(table, argument={"partitions": 0}))
    running = await service.start("b", argument={"partitions": 1})
    whole = list((await operations(service, page_size=1000)).operations)
    assert len(whole) == 13

    seen: list[pb.Operation] = []
    async for page in pages(service, page_size=3):
        if not seen:
            await service.cancel(running)
        seen.extend(page.operations)
        assert len(page.operations) <= 3
        await service.ended(await service.start("a", argument={"partitions": 0}))
    assert [(each.name, each.state) for each in seen] == [(each.name, each.state) for each in whole]


async def test_pages_by_time_go_on_after_the_last_one_shown(service: Service) -> None:
    """O22: newest first, over all tables, at one revision."""
    for table in ("a", "b"):
        await service.create_table(table)
        for _ in range(3):
            await service.ended(await service.start(table, argument={"partitions": 0}))
    since = timestamp_pb2.Timestamp(nanos=1)
    whole = list((await operations(service, since=since)).operations)
    assert [one.name for one in whole] == [f"{t}/noop/{n}" for t in ("b", "a") for n in (3, 2, 1)]
    seen: list[pb.Operation] = []
    async for page in pages(service, since=since, page_size=2):
        seen.extend(page.operations)
        await service.ended(await service.start("a", argument={"partitions": 0}))
    assert [one.name for one in seen] == [one.name for one in whole]
    by_time = (await operations(service, since=since, page_size=2)).next_page_token
    by_name = (await operations(service, page_size=2)).next_page_token
    for token, filters in ((by_time, {}), (by_name, {"since": since})):
        with pytest.raises(errors.InvalidArgument, match="page token"):
            await operations(service, page_token=token, **filters)


async def test_pages_of_tables_are_of_one_revision(service: Service) -> None:
    """O22, O29: in key order, without the internal ones."""
    names = sorted(["orders", "orders2", "a.b", "a", "z", "b c"])
    for name in names:
        await service.create_table(name)
    first = await tables(service, page_size=4)
    await service.create_table("new")
    second = await tables(service, page_size=4, page_token=first.next_page_token)
    assert sorted(table.name for table in (*first.tables, *second.tables)) == names
    assert not second.next_page_token
    assert {table.revision for table in (*first.tables, *second.tables)} == {first.tables[0].revision}


async def test_a_listing_that_is_too_old_says_so(service: Service, client: EtcdClient) -> None:
    """O22, O27."""
    for name in ("a", "b"):
        await service.create_table(name)
        await service.ended(await service.start(name, argument={"partitions": 0}))
    of_operations = (await operations(service, page_size=1)).next_page_token
    of_tables = (await tables(service, page_size=1)).next_page_token
    await client.compact(await client.put(client.keyspace.prefix + b"x", b""))
    for call in (operations(service, page_token=of_operations), tables(service, page_token=of_tables)):
        with pytest.raises(errors.Compacted, match="too old") as caught:
            await call
        assert "begin it again" in caught.value.hint


async def test_a_table_is_shown_with_what_it_was_made_of(service: Service, client: EtcdClient) -> None:
    options = {"partitionBy": ["month"], "properties": {"a": "b"}}
    request = pb.CreateTableRequest(
        name="t", location="/data//flights/", created_by="me", options_json=json.dumps(options)
    )
    made = await service.tables.CreateTable(request)
    assert (made.name, made.location, made.format) == ("t", "file:///data/flights", "iceberg")
    assert made.created_by == "me"
    assert json.loads(made.options_json) == options
    assert made.created_at.ToNanoseconds() > 0
    operation = await service.start("t")
    await eventually(lambda: leader_of(client, "t"))
    seen = await service.tables.GetTable(pb.GetTableRequest(name="t"))
    assert list(seen.running) == [str(operation)]
    assert seen.leader == await leader_of(client, "t")
    assert seen.metadata_location == ""


async def test_a_table_may_be_called_with_its_namespace_in_every_call(service: Service) -> None:
    """O29: ``default.t`` is ``t``, for the idempotency of a start, too."""
    made = await service.tables.CreateTable(pb.CreateTableRequest(name="default.t", location="/data/t"))
    assert made.name == "t"
    with pytest.raises(errors.TableExists), raising():
        await service.tables.CreateTable(pb.CreateTableRequest(name="t", location="/data/u"))
    operation = await service.start("default.t", run="r", argument={"partitions": 0})
    assert str(operation) == "t/noop/1"
    assert await service.start("t", run="r", argument={"partitions": 0}) == operation
    await service.ended(operation)
    with raising():
        assert (await service.tables.GetTable(pb.GetTableRequest(name="default.t"))).name == "t"
        assert (await service.tables.ExplainTable(pb.GetTableRequest(name="default.t"))).table == "t"
        await service.tables.GetWatermarks(pb.GetWatermarksRequest(table="default.t"))
        await service.operations.GetOperation(pb.GetOperationRequest(name="default.t/noop/1"))
        await service.cluster.ListAudit(pb.ListAuditRequest(table="default.t"))
        await service.tables.DropTable(pb.DropTableRequest(name="default.t"))
    assert not (await tables(service)).tables


async def test_a_repeated_creation_gives_the_table_of_the_first_one_and_no_other(service: Service) -> None:
    """P8: its reply was lost. A table of the same name, folder and owner may be somebody else's."""
    request = pb.CreateTableRequest(name="t", location="/data/t", created_by="me", call_id="r1")
    with raising():
        made = await service.tables.CreateTable(request)
        assert (await service.tables.CreateTable(request)).uuid == made.uuid
        trail = await service.cluster.ListAudit(pb.ListAuditRequest())
    assert [entry.run for entry in trail.entries if entry.action == "create-table"] == ["r1"]
    for other in ("r2", ""):
        request.call_id = other
        with pytest.raises(errors.TableExists), raising():
            await service.tables.CreateTable(request)


async def test_one_of_several_parallel_creations_of_a_table_succeeds(service: Service) -> None:
    outcomes = await asyncio.gather(*(service.create_table("t") for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(outcome, pb.Table) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, errors.TableExists) for outcome in outcomes) == 9


async def test_watermarks_are_shown_by_source(service: Service, client: EtcdClient) -> None:
    await service.create_table("t")
    marks: Watermarks = {"b": {"1": "x"}, "a": {"2": "z", "1": "y"}}
    await client.put(client.keyspace.table("t").watermarks, encode_plain(marks))
    shown = await service.tables.GetWatermarks(pb.GetWatermarksRequest(table="t"))
    triples = [(each.source, each.partition, each.value) for each in shown.watermarks]
    assert triples == [("a", "1", "y"), ("a", "2", "z"), ("b", "1", "x")]
    only = await service.tables.GetWatermarks(pb.GetWatermarksRequest(table="t", source="b"))
    assert [each.value for each in only.watermarks] == ["x"]


async def test_members_and_leaders_are_shown(service: Service, client: EtcdClient) -> None:
    """O24: with the fencing token."""
    await service.create_table("t")
    await service.start("t")
    listed = await service.cluster.ListMembers(pb.ListMembersRequest())
    (member,) = listed.members
    assert member.role == "coordinator"
    assert member.address
    listing = await eventually(
        lambda: service.cluster.ListLeaders(pb.ListLeadersRequest()), holds=lambda found: found.leaders
    )
    (leader,) = listing.leaders
    standing = await client.get(client.keyspace.table("t").coordinator)
    assert (leader.table, leader.member, leader.epoch) == ("t", member.id, standing.create_revision)


async def test_health_and_reflection_answer(service: Service) -> None:
    stub = health_pb2_grpc.HealthStub(service.channel)
    for name in ("", "distop.v1.OperationService", "distop.v1.TableService", "distop.v1.ClusterService"):
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    reflecting = reflection_pb2_grpc.ServerReflectionStub(service.channel)
    call = reflecting.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=5
    )
    answer = await call.read()
    found = {each.name for each in answer.list_services_response.service}
    assert {"distop.v1.OperationService", "grpc.health.v1.Health"} <= found
    call.cancel()


def start(**fields: Any) -> pb.StartOperationRequest:
    return pb.StartOperationRequest(**{"table": "t", "type": "noop", **fields})


def with_argument(**argument: Any) -> pb.StartOperationRequest:
    return start(argument_json=json.dumps(argument))


def with_option(name: str, value: int) -> pb.StartOperationRequest:
    counts = name == "max_job_attempts"
    given: dict[str, Any] = {name: value if counts else duration_pb2.Duration(seconds=value)}
    return start(options=pb.OperationOptions(**given))


BAD_STARTS: list[tuple[pb.StartOperationRequest, type[errors.DistopError], str]] = [
    (start(table=""), errors.InvalidName, "table"),
    (start(table="_active"), errors.InvalidName, "table"),
    (start(table="x" * 513), errors.InvalidName, "table"),
    (start(type=""), errors.InvalidName, "type"),
    (start(type="no.op"), errors.InvalidName, "type"),
    (start(type="vacuum"), errors.UnknownOperationType, "type"),
    (start(object="o"), errors.InvalidArgument, "object"),
    (start(type="per_object"), errors.InvalidArgument, "object"),
    (start(type="per_object", object="1o"), errors.InvalidName, "object"),
    (start(partitions=["a", "commit"]), errors.InvalidName, "partitions"),
    (start(partitions=["a", ""]), errors.InvalidName, "partition"),
    (start(partitions=["a", "a"]), errors.InvalidArgument, "partitions"),
    (start(run="_r"), errors.InvalidName, "run"),
    (with_option("max_job_attempts", -1), errors.InvalidArgument, "options.max_job_attempts"),
    (with_option("max_job_attempts", 101), errors.InvalidArgument, "options.max_job_attempts"),
    (with_option("job_backoff", 0), errors.InvalidArgument, "options.job_backoff_s"),
    (with_option("attempt_timeout", -1), errors.InvalidArgument, "options.attempt_timeout_s"),
    (with_option("deadline", 0), errors.InvalidArgument, "options.deadline_s"),
    (with_option("deadline", -5), errors.InvalidArgument, "options.deadline_s"),
    (with_option("deadline", -(2**63)), errors.InvalidArgument, "options.deadline_s"),
    (with_argument(partitions="x"), errors.InvalidArgument, "partitions"),
    (with_argument(partitions=-1), errors.InvalidArgument, "partitions"),
    (with_argument(partitions=float("nan")), errors.InvalidArgument, "argument.partitions"),
    (with_argument(partitions=float("inf")), errors.InvalidArgument, "argument.partitions"),
    (with_argument(partitions=2**64), errors.InvalidArgument, "argument.partitions"),
    (start(argument_json='{"partitions": 1'), errors.InvalidArgument, "argument"),
    (start(argument_json="[1]"), errors.InvalidArgument, "argument"),
    (start(argument_json='{"partitions": 1, "partitions": 2}'), errors.InvalidArgument, "argument"),
    (start(argument_json='{"x": ' + "[" * 100_000), errors.InvalidArgument, "argument"),
    (with_argument(fail="\ud800"), errors.InvalidArgument, "argument.fail"),
    (start(then=pb.FollowUp(type="noop", argument_json="{")), errors.InvalidArgument, "then.argument"),
    (with_argument(fail=["x" * 1_600_000]), errors.ArgumentTooLarge, "argument"),
    (with_argument(fail=["\x00" * 400_000]), errors.ArgumentTooLarge, "argument"),
]


async def test_bad_starts_are_refused_with_a_code_and_the_field(service: Service, client: EtcdClient) -> None:
    """U3, O4, O29: and leave nothing."""
    await service.create_table("t")
    before = await everything(client)
    for request, error, field in BAD_STARTS:
        with pytest.raises(error) as caught, raising():
            await service.operations.StartOperation(request, timeout=10)
        said = caught.value
        assert said.details["field"] == field, said
        assert said.code == error.code or issubclass(type(said), error)
        assert not said.retryable
    with pytest.raises(errors.TableNotFound) as missing:
        await service.start("nowhere")
    assert missing.value.details == {"table": "nowhere"}
    assert "create it first" in missing.value.hint
    assert await everything(client) == before


async def test_a_deadline_beyond_all_times_is_taken(service: Service) -> None:
    """U3: it is no use, but no defect either."""
    await service.create_table("t")
    with raising():
        await service.operations.StartOperation(with_option("deadline", 2**63 - 1), timeout=10)
    operation = OperationId("t", "noop", 1)
    await service.cancel(operation)
    assert (await service.ended(operation)).state == pb.CANCELLED


def table(**fields: Any) -> pb.CreateTableRequest:
    return pb.CreateTableRequest(**{"name": "t", "location": "/data", **fields})


def with_options(**options: Any) -> pb.CreateTableRequest:
    return table(options_json=json.dumps(options))


BAD_TABLES = [
    (table(name=""), "name"),
    (table(name="_coordinators"), "name"),
    (table(location=""), "location"),
    (table(location="relative/path"), "location"),
    (table(location="s3://"), "location"),
    (table(name="a..t"), "name"),
    (table(name="default._t"), "name"),
    (table(location="file:///"), "location"),
    (table(location="http://[half"), "location"),
    (table(format="csv"), "format"),
    (with_options(partitionby=["x"]), "options.partitionby"),
    (with_options(partitionBy="x"), "options.partitionBy"),
    (with_options(properties=float("nan")), "options.properties"),
    (table(options_json="{"), "options"),
    (with_options(properties={"x": "y" * 1_600_000}), "options.properties"),
    (with_options(storage={"config_kwargs": {"s3": {"x": "y" * 1_600_000}}}), "options"),
]


async def test_bad_tables_are_refused_with_the_field(service: Service, client: EtcdClient) -> None:
    """U3."""
    before = await everything(client)
    for request, field in BAD_TABLES:
        with pytest.raises(errors.InvalidArgument) as caught, raising():
            await service.tables.CreateTable(request, timeout=10)
        assert caught.value.details["field"] == field, caught.value
    assert await everything(client) == before


OPTIONS: list[tuple[str, dict[str, Any], str, str]] = [
    ("iceberg", {"schema": "id: long"}, "schema", "neither a list"),
    ("iceberg", {"schema": 5}, "schema", "neither a list"),
    ("iceberg", {"schema": ["id long"]}, "schema", "is not a column"),
    ("iceberg", {"schema": [{"name": "id"}]}, "schema", "neither a list"),
    ("iceberg", {"schema": {"id": 5}}, "schema", "neither a list"),
    ("iceberg", {"schema": []}, "schema", "no columns"),
    ("iceberg", {"schema": ["id: lnog"]}, "schema", "unknown type 'lnog'"),
    ("iceberg", {"schema": ["id: long", "id: int"]}, "schema", "named twice"),
    ("iceberg", {"schema": ["i\x1bd: long"]}, "schema", r"U\+001B"),
    ("iceberg", {"partitionBy": "id"}, "partitionBy", "not a list"),
    ("iceberg", {"partitionBy": ["moth(at)"]}, "partitionBy", "no transform 'moth'"),
    ("iceberg", {"schema": ["id: long"], "partitionBy": ["at"]}, "partitionBy", "neither a column"),
    ("iceberg", {"schema": ["id: long"], "partitionBy": ["day(id)"]}, "partitionBy", "cannot be taken"),
    ("iceberg", {"properties": ["a"]}, "properties", "no.* object"),
    ("iceberg", {"properties": {"a": {"b": 1}}}, "properties", "neither text"),
    ("iceberg", {"properties": {"py-io-impl": "subprocess.Popen"}}, "properties", "names code"),
    ("iceberg", {"properties": {"write.data.path": "s3://other/place"}}, "properties", "own folder"),
    ("iceberg", {"checks": []}, "checks", "not a JSON object"),
    ("iceberg", {"checks": {"rulez": ["id > 0"]}}, "checks", "rulez"),
    ("iceberg", {"schema": ["id: long"], "checks": {"rules": ["ix > 0"]}}, "checks", "no column 'ix'"),
    ("iceberg", {"schema": ["id: long"], "checks": {"rules": ["id >"]}}, "checks", "rules"),
    ("iceberg", {"storage": "s3"}, "storage", "not a JSON object"),
    ("iceberg", {"shcema": []}, "shcema", "unknown option"),
    ("files", {"schema": ["id: long"], "partitionBy": ["id"]}, "partitionBy", "all columns"),
    ("delta", {"schema": ["at: date"], "partitionBy": ["day(at)"]}, "partitionBy", "columns alone"),
    ("delta", {"schema": ["at: time"]}, "schema", "no type time"),
]


async def test_a_table_whose_options_can_never_work_is_refused_by_field(service: Service) -> None:
    """U3: and there is no such table."""
    for table_format, options, option, says in OPTIONS:
        with pytest.raises(errors.InvalidArgument, match=says) as caught:
            await service.create_table("t", format=table_format, options_json=json.dumps(options))
        assert caught.value.details["field"] == f"options.{option}", options
        with pytest.raises(errors.TableNotFound), raising():
            await service.tables.GetTable(pb.GetTableRequest(name="t"), timeout=10)


async def test_a_table_with_valid_options_is_created(service: Service) -> None:
    options = {
        "schema": {"id": "long not null", "at": "timestamp"},
        "partitionBy": ["day(at)", "bucket[4](id)"],
        "properties": {"write.parquet.row-group-limit": 1000, "commit.manifest-merge.enabled": True},
        "checks": {"rules": ["id > 0", {"not_null": "at"}]},
        "storage": {"endpoint_url": "http://127.0.0.1:9000", "config_kwargs": {"retries": {}}},
    }
    table = await service.create_table("t", options_json=json.dumps(options))
    columns = ["id: long not null", "at: timestamp"]  # in the order in which they were written
    assert json.loads(table.options_json) == options | {"schema": columns}


async def test_a_name_that_reads_as_another_is_refused(service: Service) -> None:
    """U3: and the field is named."""
    for name in (".", "..", " ", "a\0b", "a\x1bb", "a\u202eb", "Zu\u0308rich"):
        with pytest.raises(errors.InvalidArgument) as caught:
            await service.create_table(name)
        assert (caught.value.code, caught.value.details["field"]) == ("INVALID_NAME", "name"), repr(name)


async def test_unknown_tables_are_named(service: Service) -> None:
    """U3: a misspelt name is no empty list."""
    for call in (
        service.tables.GetTable(pb.GetTableRequest(name="nowhere")),
        service.tables.GetWatermarks(pb.GetWatermarksRequest(table="nowhere")),
        service.operations.ListOperations(pb.ListOperationsRequest(table="nowhere")),
    ):
        with pytest.raises(errors.TableNotFound, match="'nowhere'"), raising():
            await call


async def test_page_tokens_that_nobody_made_are_refused(service: Service) -> None:
    """U3: nor one of a time to come, say of before a restore of etcd; it is not that etcd does not answer."""
    for token in (
        "!",
        "é",
        "MTIz",
        "WzAsIiIsMF0=",
        "Wy0xLCJ0IiwwXQ==",
        "WzEsInQiLC0xXQ==",
        "WzkyMjMzNzIwMzY4NTQ3NzU4MDgsInQiLDBd",  # of a revision that etcd's 64 bits cannot hold
        "WzkwMDAwMDAwMDAwMDAsInQiLDBd",  # [9000000000000,"t",0]
    ):
        for call in (operations(service, page_token=token), tables(service, page_token=token)):
            with pytest.raises(errors.InvalidArgument, match=r"page.token") as caught:
                await call
            assert caught.value.details.get("field", "page_token") == "page_token", token


async def test_a_page_ends_before_its_answer_is_too_large(service: Service, client: EtcdClient) -> None:
    """U3, G3: whatever its entries hold; gRPC would refuse the answer, and every attempt to read it."""
    space, many, much = client.keyspace, range(1, 7), "x" * 1_000_000
    await service.create_table("a")
    keys = space.table("a")
    for number in many:
        ended = HistoryRecord(outcome="success", started_at=number, finished_at=number, argument=much)
        batch = BatchRecord(type="noop", argument={"much": much})
        record = TableRecord(name=f"b{number}", location=f"file:///x/{number}", options={"much": much})
        refused = denial_put(space, "drain", by="", target="m", at=number, reason=much)
        table = table_puts(space.table(record.name), record)
        for put in (
            Put(keys.history(OperationId("a", "noop", number)), encode(ended)),
            Put(keys.backlog(f"b{number}"), encode(batch)),
            refused,
            *table,
        ):
            await client.put(put.key, put.value)
    backlog: Any = distop_pb2_grpc.BacklogServiceStub(service.channel)
    since = timestamp_pb2.Timestamp(nanos=1)
    for listed, field, call, request in (
        (6, "operations", service.operations.ListOperations, pb.ListOperationsRequest(table="a")),
        (6, "operations", service.operations.ListOperations, pb.ListOperationsRequest(since=since)),
        (6, "batches", backlog.ListBacklog, pb.ListBacklogRequest(table="a")),
        (7, "tables", service.tables.ListTables, pb.ListTablesRequest()),
        (7, "entries", service.cluster.ListAudit, pb.ListAuditRequest()),
    ):
        pages: list[Any] = []
        while not pages or request.page_token:
            pages.append(await call(request))
            request.page_token = pages[-1].next_page_token
        assert len(pages) > 1
        assert all(page.ByteSize() < 4 << 20 for page in pages)
        assert sum(len(getattr(page, field)) for page in pages) == listed


async def test_a_page_of_watermarks_ends_before_it_is_too_large(
    service: Service, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U3: and the next one begins after it, whatever its source is called."""
    monkeypatch.setattr(published, "PAGE_BYTES", 1000)
    await service.create_table("t")
    marks = {"_s/" + "%" * 200: {f"{number:02d}": "x" * 200 for number in range(5)}}
    await client.put(client.keyspace.table("t").watermarks, encode_plain(marks))
    request, pages = pb.GetWatermarksRequest(table="t"), list[int]()
    while not pages or request.page_token:
        page = await service.tables.GetWatermarks(request)
        pages.append(len(page.watermarks))
        request.page_token = page.next_page_token
    assert pages == [2, 2, 1]


async def test_bad_page_sizes_and_names_are_refused(service: Service) -> None:
    """U3."""
    for call in (operations(service, page_size=-1), tables(service, page_size=-1)):
        with pytest.raises(errors.InvalidArgument, match="page_size"):
            await call
    for name in ("", "t/noop", "t/noop/%FF", "t/noop/5/3", "t/noop/" + "9" * 4400):
        for call in (
            service.operations.GetOperation(pb.GetOperationRequest(name=name)),
            service.operations.CancelOperation(pb.CancelOperationRequest(name=name)),
            service.operations.WatchOperation(pb.WatchOperationRequest(name=name)).read(),
        ):
            with pytest.raises(errors.InvalidName), raising():
                await call


async def test_a_partition_cannot_be_cancelled_as_an_operation(service: Service, client: EtcdClient) -> None:
    """U3: its state key looks like an operation's."""
    await service.create_table("t")
    operation = await service.start("t", argument={"partitions": 4})
    await mark(client, operation, "3")
    before = await everything(client)
    with pytest.raises(errors.InvalidName), raising():
        await service.operations.CancelOperation(pb.CancelOperationRequest(name=f"{operation}/3"))
    assert await everything(client) == before


async def test_a_defect_of_an_operation_type_is_called_one(service: Service, client: EtcdClient) -> None:
    """U3: and leaves nothing."""
    await service.create_table("t")
    before = await everything(client)
    with pytest.raises(errors.DistopError, match="ZeroDivisionError") as caught:
        await service.start("t", "clumsy")
    assert caught.value.code == "INTERNAL"
    assert await everything(client) == before


async def test_an_operation_that_cannot_be_read_is_reported(service: Service, client: EtcdClient) -> None:
    """U3, C11: by its key, and what to do."""
    await service.create_table("t")
    operation = OperationId("t", "noop", 5)
    keys = client.keyspace.operation(operation)
    await client.put(keys.arg, encode(OperationArg(table="t", type="noop", instance=5, version=9)))
    await client.put(keys.state, b"running")
    with pytest.raises(errors.DistopError, match="layout 9") as caught:
        await service.get(operation)
    assert caught.value.code == "CORRUPT_RECORD"
    assert "upgrade" in caught.value.hint


async def test_unreadable_tables_and_members_hide_no_others(service: Service, client: EtcdClient) -> None:
    """U3, C11: their names are listed, and why nothing else is."""
    space = client.keyspace
    for name in ("broken", "fine", "other"):
        await service.create_table(name)
    await client.put(space.table("broken").table, b"{")
    await client.put(space.executor("broken.1"), b"{")
    tables = (await service.tables.ListTables(pb.ListTablesRequest())).tables
    expected = {"broken": "CORRUPT_RECORD", "fine": "", "other": ""}
    assert {one.name: one.error.code for one in tables} == expected
    members = (await service.cluster.ListMembers(pb.ListMembersRequest())).members
    assert sorted(one.role for one in members) == ["coordinator", "executor"]
    assert "broken.1" in {one.id for one in members}
    backlog: Any = distop_pb2_grpc.BacklogServiceStub(service.channel)
    for batch, value in (("a", b"{"), ("b", encode(BatchRecord(type="noop")))):
        await client.put(space.table("broken").backlog(batch), value)
    batches = (await backlog.ListBacklog(pb.ListBacklogRequest(table="broken"))).batches
    assert {one.name: one.error.code for one in batches} == {"a": "CORRUPT_RECORD", "b": ""}
    await client.put(space.table("fine").history(OperationId("fine", "noop", 7)), b"{")
    assert (await service.tables.DescribeTable(pb.GetTableRequest(name="fine"))).table == "fine"
    explained = await service.tables.ExplainTable(pb.GetTableRequest(name="other"))
    assert explained.sentence == "idle: no operation has run yet"


async def test_a_caller_has_a_name_that_lists_can_show(service: Service) -> None:
    """U3, S1"""
    for name in ("x" * 257, "me\x1b[2J", "me\u202e"):
        with pytest.raises(errors.InvalidArgument, match="created_by") as caught:
            await service.create_table("t", created_by=name)
        assert caught.value.details["field"] == "created_by", repr(name)
    with pytest.raises(errors.InvalidArgument, match="2,000") as caught, raising():
        await service.tables.DropTable(pb.DropTableRequest(name="t", reason="é" * 1_001), timeout=10)
    assert caught.value.details["field"] == "reason"


NUMBERS = {"int": 2**53 + 1, "negative": -(2**63), "unsigned": 2**64 - 1, "float": 3.0, "list": [1, 2.5]}


async def test_large_integers_survive_to_every_reader(sdk: AsyncClient, client: EtcdClient) -> None:
    """O4: of arguments, of options, of a queued batch and of facts."""

    def same(value: Any) -> bool:
        # 3.0 == 3, but they are not the same.
        return repr(sorted(value.items())) == repr(sorted(NUMBERS.items()))

    await sdk.create_table("u", nowhere(), options={"storage": {"config_kwargs": {"s3": NUMBERS}}})
    assert same((await sdk.table("u").get()).options["storage"]["config_kwargs"]["s3"])
    started = await sdk.start("t", "friend", NUMBERS)
    kv = await client.get(client.keyspace.operation(OperationId.parse(started.name)).arg)
    assert same(decode(kv.value, OperationArg, kv.key).argument)
    # What was asked for is shown as it was written, its keys in their order.
    assert repr((await started.get()).argument) == repr(NUMBERS)
    again = await sdk.start("t", "friend", NUMBERS, run=started.started.run)
    assert again.name == started.name
    await sdk.table("t").set_ordering(gate="closed")
    await sdk.table("t").enqueue("b", "noop", NUMBERS)
    assert [same(batch.argument) async for batch in sdk.table("t").backlog()] == [True]
    ended = OperationId("t", "friend", 7)
    record = HistoryRecord(outcome="success", facts=NUMBERS)
    await client.put(client.keyspace.table("t").history(ended), encode(record))
    assert same((await sdk.operation(str(ended)).get()).facts)


async def test_a_late_copy_of_its_creation_brings_no_dropped_table_back(
    service: Service, etcd_config: EtcdConfig
) -> None:
    """U3."""
    lossy, context = LossyClient(etcd_config), cast("grpc.aio.ServicerContext[Any, Any]", None)
    with ThreadPoolExecutor(1) as threads:
        calls = TableService(lossy, Work(Registry(), threads))
        await calls.CreateTable(pb.CreateTableRequest(name="t", location=nowhere()), context)
        (copy,) = [txn for txn in lossy.sent if puts(lossy.keyspace.table("t").table)(txn)]
        await calls.DropTable(pb.DropTableRequest(name="t"), context)
        assert not (await lossy.txn(copy)).succeeded
        assert not (await tables(service)).tables
    await lossy.close()
