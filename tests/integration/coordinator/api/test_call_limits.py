"""What a coordinator's port bears of strangers."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from distop.client import AsyncClient, OperationState
from distop.coordinator.api.calls import OPTIONS, Limits
from distop.errors import AlreadyExists, Busy, InvalidArgument, NotFound, Unavailable
from distop.metastore.etcd.config import EtcdConfig
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from support.services.coordinators import Service, config_of, raising, running
from support.tables.catalogs import SCHEMA
from support.waiting import eventually

FEW = Limits(calls_each=60, streams_each=2, starts_per_s=4.0, stream_s=0.3)


async def test_a_caller_over_its_limits_is_refused_as_busy_and_the_sdk_tries_again(
    etcd_config: EtcdConfig,
) -> None:
    """S1, G6: more starts and streams than one caller may have; the SDK comes back by itself."""
    config = config_of(etcd_config, limits=FEW)
    async with running(config) as coordinator, Service(coordinator.address) as service:
        await service.create_table("t")
        running_one = await service.start("t", argument={"partitions": 1})

        # Starts: a burst of eight, one of which has been used.
        preview = pb.StartOperationRequest(table="t", type="noop", argument_json='{"partitions": 1}')
        call = service.operations.PreviewOperation
        with pytest.raises(Busy) as told, raising():
            await asyncio.gather(*(call(preview, timeout=10) for _ in range(50)))
        assert 0 < told.value.retry_after_s <= 0.25
        async with AsyncClient(coordinator.address, timeout_s=60.0) as client:
            await client.preview("t", "noop", {"partitions": 1})

        # Streams: two are open, the third is refused, and let in once one of them has gone.
        watch = pb.WatchOperationRequest(name=str(running_one))
        watch.heartbeat.FromMilliseconds(100)
        streams = [service.operations.WatchOperation(watch) for _ in range(2)]
        for stream in streams:
            await stream.read()
        with pytest.raises(Busy, match=r"2 streams of 127\.0\.0\.1"), raising():
            await service.operations.WatchOperation(watch).read()
        streams[0].cancel()

        async def let_in() -> bool:
            third = service.operations.WatchOperation(watch)
            with suppress(Busy), raising():
                await third.read()
                third.cancel()
                return True
            return False

        await eventually(let_in)


async def test_batches_and_tables_are_counted_as_starts_are(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """S1: each makes what stays; through the catalog, too."""
    warehouse = f"file://{tmp_path}/warehouse"
    config = config_of(etcd_config, limits=FEW, catalog="127.0.0.1:0", warehouse=warehouse)
    async with running(config) as coordinator, Service(coordinator.address) as service:
        await service.create_table("t")
        backlog: Any = distop_pb2_grpc.BacklogServiceStub(service.channel)
        calls = {
            backlog.EnqueueBatch: pb.EnqueueBatchRequest(table="none"),
            service.tables.CreateTable: pb.CreateTableRequest(name="t", location="/x"),
        }

        async def refused(call: Any, request: Any) -> None:
            with suppress(InvalidArgument, NotFound, AlreadyExists), raising():
                await call(request, timeout=30)

        for call, request in calls.items():
            with pytest.raises(Busy, match="more than 4 starts a second"):
                await asyncio.gather(*(refused(call, request) for _ in range(50)))
        tables = f"http://{coordinator.catalog_address}/v1/{etcd_config.prefix}/namespaces/default/tables"
        body = {"name": "t", "schema": SCHEMA.model_dump(mode="json", by_alias=True)}
        async with httpx.AsyncClient(timeout=60) as web:
            answers = await asyncio.gather(*(web.post(tables, json=body) for _ in range(50)))
        assert {answer.status_code for answer in answers} == {409, 429}
        assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)


async def test_a_stream_does_not_last_for_ever_and_the_sdk_goes_on(etcd_config: EtcdConfig) -> None:
    config = config_of(etcd_config, limits=FEW)
    async with running(config) as coordinator, Service(coordinator.address) as service:
        await service.create_table("t")
        operation = await service.start("t", argument={"partitions": 1})
        watch = pb.WatchOperationRequest(name=str(operation))
        watch.heartbeat.FromMilliseconds(100)
        with pytest.raises(Unavailable, match=r"has lasted 0\.3 s"), raising():
            async for _ in service.operations.WatchOperation(watch):
                pass
        async with AsyncClient(coordinator.address, timeout_s=60.0) as client:
            following = asyncio.create_task(client.operation(str(operation)).wait())
            await asyncio.sleep(0)
            await service.cancel(operation)
            assert (await following).state is OperationState.CANCELLED


async def test_bytes_that_are_no_message_are_refused_without_a_stack_trace_in_the_log(
    etcd_config: EtcdConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """U3"""
    caplog.set_level(logging.INFO)
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as service:
        caplog.clear()  # at first gRPC may still have answers for the loop of an earlier test
        for method in ("OperationService/StartOperation", "TableService/CreateTable"):
            call = service.channel.unary_unary(f"/distop.v1.{method}", None, None)
            for data in (b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0fx", b"\x0a\x02\xc3\x28"):
                with pytest.raises(InvalidArgument, match="not a message"), raising():
                    await call(data, timeout=10)
        stream = service.channel.unary_stream("/distop.v1.OperationService/WatchOperation", None, None)
        with pytest.raises(InvalidArgument, match="not a message"), raising():
            await stream(b"\xff", timeout=10).read()
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


async def test_connections_are_bounded_and_those_without_a_call_are_closed() -> None:
    """S1: with gRPC's own server, since its limits are for a thousand connections and minutes."""
    fewer = {"grpc.max_allowed_incoming_connections": 5, "grpc.max_connection_idle_ms": 200}
    assert set(fewer) <= {name for name, _ in OPTIONS}
    server = grpc.aio.server(
        options=[*((name, value) for name, value in OPTIONS if name not in fewer), *fewer.items()]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        # Those beyond the limit hear the end at once; the others when they have said nothing for a while.
        for reader, writer in opened:
            async with asyncio.timeout(60):
                with suppress(ConnectionError):
                    while await reader.read(4096):
                        pass
            writer.close()
    finally:
        await server.stop(None)
