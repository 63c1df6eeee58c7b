"""Connections that are held open, silent or slow, against the page's server. Real sockets; short limits."""

import asyncio
import http.client
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn

from distop.process import http as serving
from distop.process.http import HttpServer
from support.waiting import eventually

HELLO = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    large = scope["path"] == "/large"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(20 if large else 0):
        await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
    whole = bytes(20 << 20) if scope["path"] == "/whole" else b""
    await send({"type": "http.response.body", "body": whole + b"xxxxx"})


@asynccontextmanager
async def page() -> AsyncIterator[tuple[uvicorn.Server, int]]:
    server = HttpServer("127.0.0.1:0", app, option="--web", connections=256)
    await server.start()
    inner = server._server
    assert inner is not None
    try:
        yield inner, int(server.address.rpartition(":")[2])
    finally:
        for left in list(inner.server_state.connections):
            left.transport.abort()
        await server.stop()


@asynccontextmanager
async def opened(
    port: int, **options: int
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def get(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status
    finally:
        connection.close()


async def ended(reader: asyncio.StreamReader) -> None:
    """Once the other side has closed."""
    async with asyncio.timeout(60):
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass


async def test_silent_connections_keep_nobody_out() -> None:
    """S1: many more than there is room for."""
    async with page() as (server, port), AsyncExitStack() as held:
        silent = [await held.enter_async_context(opened(port)) for _ in range(300)]
        assert await asyncio.to_thread(get, port) == 200
        assert len(server.server_state.connections) <= 64 + 1
        await ended(silent[0][0])  # the first ones had to go


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\nhost: lo", HELLO + b"GET /again HTT"],
    ids=["nothing", "half", "one and a half"],
)
async def test_a_connection_that_sends_no_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(serving, "HEADER_S", 0.2)
    async with page() as (server, port), opened(port) as (reader, writer):
        writer.write(said)
        await ended(reader)
        await eventually(lambda: not server.server_state.connections)


async def test_a_request_sent_byte_by_byte_gets_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEADER_S", 0.3)
    async with page() as (_, port), opened(port) as (reader, writer):

        async def drip() -> None:
            writer.write(b"GET / HTTP/1.1\r\n")
            with suppress(ConnectionError):
                while True:
                    writer.write(b"x: y\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        await ended(reader)
        dripping.cancel()


async def test_a_connection_that_does_not_read_its_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "ANSWER_S", 0.2)
    async with page() as (server, port), opened(port, limit=1) as (reader, writer):
        writer.write(HELLO.replace(b"GET /", b"GET /large"))
        assert await reader.read(1)  # the answer has begun, and comes no further
        await eventually(lambda: not server.server_state.connections)
        await eventually(lambda: not server.server_state.tasks)


async def test_a_connection_that_reads_its_answer_slowly_gets_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time to ask again begins when the answer has been taken, and not when it has been written."""
    monkeypatch.setattr(serving, "HEADER_S", 0.2)
    async with page() as (server, port), opened(port, limit=1) as (reader, writer):
        writer.write(HELLO.replace(b"GET /", b"GET /whole"))
        assert await reader.read(1)  # the answer has begun
        async with opened(port) as (later, _):
            await ended(later)
        assert len(server.server_state.connections) == 1
        taken = 0
        async with asyncio.timeout(60):
            while not (piece := await reader.read(1 << 20)).endswith(b"xxxxx\r\n0\r\n\r\n"):
                assert piece
                taken += len(piece)
        assert taken > 19 << 20


async def test_large_headers_are_refused() -> None:
    async with page() as (_, port), opened(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 40_000)
        assert (await reader.read(1 << 16)).startswith(b"HTTP/1.1 400")


async def test_connections_that_are_used_stay() -> None:
    async with page() as (_, port), opened(port) as (reader, writer):
        for _ in range(5):
            writer.write(HELLO)
            answer = await reader.readuntil(b"xxxxx\r\n0\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
