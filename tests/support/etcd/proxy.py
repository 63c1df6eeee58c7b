"""A TCP proxy that fails on purpose: it holds requests or replies, cuts connections, refuses new ones."""

import asyncio
import contextlib
from typing import Self

from distop.metastore.etcd.embedded import free_port


class Proxy:
    """A proxy between a client and ``target`` (``host:port``); its own address is ``endpoint``."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._target_port = int(port)
        self._port = free_port()
        self.endpoint = f"127.0.0.1:{self._port}"
        self.connections = 0
        """How many were accepted so far."""
        self.held = 0
        """Connections in which something is held at present."""
        self.delay_s = 0.0
        """How late everything arrives, in each direction."""
        self._server: asyncio.Server | None = None
        self._requests, self._replies = asyncio.Event(), asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.flow()

    def flow(self) -> None:
        """Let everything pass, also what was held."""
        self._requests.set()
        self._replies.set()

    def hold_requests(self) -> None:
        """Keep what the client sends, until :meth:`flow`; what is held then still arrives."""
        self._requests.clear()

    def hold_replies(self) -> None:
        """Let requests through and keep the answers, until :meth:`flow`, or lose them by :meth:`cut`."""
        self._replies.clear()

    def cut(self) -> None:
        """Break all connections; what is held in them is lost."""
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def refuse(self) -> None:
        """Break all connections and accept no more, until :meth:`accept`."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
        self.cut()

    async def accept(self) -> None:
        """Accept connections, on the same address as ever."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        mine = {writer}
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                if not await self._admits(writer):
                    return
                server_reader, server_writer = await asyncio.open_connection(self._host, self._target_port)
                mine.add(server_writer)
                self._writers.add(server_writer)
                await asyncio.gather(
                    self._pump(reader, server_writer, self._requests),
                    self._pump(server_reader, writer, self._replies),
                )
        finally:
            for each in mine:
                each.transport.abort()
                self._writers.discard(each)
            self._tasks.discard(task)

    async def _admits(self, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection that has come is served."""
        return True

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, flowing: asyncio.Event
    ) -> None:
        while data := await source.read(1 << 16):
            if not flowing.is_set():
                self.held += 1
                try:
                    await flowing.wait()
                finally:
                    self.held -= 1
            await asyncio.sleep(self.delay_s)
            sink.write(data)
            await sink.drain()
        sink.close()
