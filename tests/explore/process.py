"""One process of the model: real coroutines on an event loop of their own, which stops at each call of etcd.

Nothing here waits. The loop runs what can run until all its tasks wait for an answer; then the oldest request
is what the process wants next, and whoever drives it decides when and how it is answered. Timers come when
there is nothing else: sleeping takes no time, and no call takes as long as its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, TypeVarTuple
from unittest import mock

from distop.metastore.etcd.client import EtcdClient, RangePage
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import DeleteRange, Get, Put, Txn, TxnResult
from distop.metastore.tables.watermarks import ChunkReader
from explore.store import Store

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
CONFIG = EtcdConfig(endpoints=("model:0",))
OVERSLEPT_S = 9.0
"""How long any pause takes at least: what is sent again for a minute is sent again a few times."""

NOW = 1_800_000_000.0
"""Seconds since the Unix epoch, always."""


@dataclass(frozen=True)
class Read:
    """Keys, at ``revision`` if that is not 0: then as of the read before it."""

    get: Get
    revision: int = 0
    newest_first: bool = False
    backwards: bool = False

    def __str__(self) -> str:
        return f"reads {_text(self.get.key)}{'..' if self.get.end else ''}"


@dataclass(frozen=True)
class Write:
    """A transaction, applied when the search takes this step."""

    txn: Txn

    @property
    def changes(self) -> list[Put | DeleteRange]:
        """What it puts and deletes if its compares hold, nested transactions included."""
        return _changes(self.txn)

    def __str__(self) -> str:
        if not self.changes:
            return f"reads {', '.join(_text(op.key) for op in self.txn.then if isinstance(op, Get))}"
        changes = ", ".join(f"{type(op).__name__.lower()} {_text(op.key)}" for op in self.changes)
        compared = " and ".join(_text(compare.key) for compare in self.txn.compares)
        return f"{changes}, if {compared} is as it believes"


@dataclass(frozen=True)
class Until:
    """Nothing, until something is so. The answer is what ``holds`` returns, once that is not ``None``."""

    what: str
    holds: Callable[[Store], Any]

    def __str__(self) -> str:
        return f"waits until {self.what}"


@dataclass(frozen=True)
class Look:
    """Something about the store as of the read before it; asks for no step of its own."""

    what: str
    at: Callable[[Store], Any]

    def __str__(self) -> str:
        return f"looks at {self.what}"


@dataclass(frozen=True)
class Choose:
    """One of several ways to go on; all are explored."""

    ways: int

    def __str__(self) -> str:
        return f"chooses one of {self.ways} ways"


Request = Read | Write | Until | Look | Choose


def _changes(txn: Txn) -> list[Put | DeleteRange]:
    changes: list[Put | DeleteRange] = []
    for op in txn.then:
        if isinstance(op, Txn):
            changes += _changes(op)
        elif isinstance(op, Put | DeleteRange):
            changes.append(op)
    return changes


def _text(key: bytes) -> str:
    return key.decode(errors="replace").removeprefix(CONFIG.keyspace.prefix.decode())


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """The world that processes run in: time stands still, and nothing is random."""

    def token_hex(nbytes: int = 32) -> str:
        loop = asyncio._get_running_loop()
        assert isinstance(loop, _Loop)
        return loop.secret()[: 2 * nbytes]

    def monotonic() -> float:
        loop = asyncio._get_running_loop()
        return loop.time() if isinstance(loop, _Loop) else time.perf_counter()

    logging.disable(logging.CRITICAL)
    try:
        with (
            mock.patch("time.time", return_value=NOW),
            mock.patch("time.monotonic", monotonic),
            mock.patch("random.uniform", max),
            mock.patch("secrets.token_hex", token_hex),
        ):
            yield
    finally:
        logging.disable(logging.NOTSET)


class Gone(BaseException):
    """The process is not needed any more."""


class _Loop(asyncio.BaseEventLoop):
    """As much of an event loop as coroutines need that do nothing but speak to etcd."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._now = name, 0.0
        self._count = itertools.count()
        self._results: dict[Hashable, Any] = {}
        self.requests: deque[tuple[Request, asyncio.Future[Any]]] = deque()

    def run(self) -> None:
        """Until all that is left waits for answers."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while True:
                while self._ready:
                    handle = self._ready.popleft()
                    if not handle.cancelled():
                        handle._run()
                if self.requests or not self._scheduled:
                    return
                timer = heapq.heappop(self._scheduled)
                if not timer.cancelled():
                    self._now = timer.when() + OVERSLEPT_S
                    timer._run()
        finally:
            asyncio._set_running_loop(outer)

    def ask(self, request: Request) -> asyncio.Future[Any]:
        future = self.create_future()
        self.requests.append((request, future))
        return future

    def secret(self) -> str:
        """What is random elsewhere: different each time, and the same when the process is run again."""
        return hashlib.sha256(f"{self._name} {next(self._count)}".encode()).hexdigest()

    def time(self) -> float:
        return self._now

    def is_closed(self) -> bool:
        return True  # there is nothing to close

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        self._attempt(future, partial(func, *args), {})
        return future

    def _attempt(
        self, future: asyncio.Future[T], call: Callable[[], T], results: dict[Hashable, Any]
    ) -> None:
        """Run blocking code: from its beginning again, once it has what it reads on its way."""
        self._results = results
        try:
            future.set_result(call())
        except _Reads as reads:
            self._reading = self.create_task(self._read(reads, future, call, results))
        except Exception as error:
            future.set_exception(error)

    async def _read(
        self, reads: _Reads, future: asyncio.Future[T], call: Callable[[], T], results: dict[Hashable, Any]
    ) -> None:
        try:
            results[reads.subject] = await reads.read()
        except Exception as error:
            future.set_exception(error)
        else:
            self._attempt(future, call, results)

    def read(self, subject: Hashable, read: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The result of a read of etcd, for blocking code; ``subject`` names it when that code runs again."""
        if subject not in self._results:
            raise _Reads(subject, read)
        return self._results[subject]

    def call_exception_handler(self, context: Any) -> None:
        pass


class _Reads(BaseException):
    """Blocking code needs something from etcd."""

    def __init__(self, subject: Hashable, read: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.subject, self.read = subject, read


def read_chunks(reader: ChunkReader, positions: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
    """In place of :meth:`ChunkReader.__call__`, which waits for the loop of its client."""
    loop, home = asyncio.get_running_loop(), reader._home
    assert isinstance(loop, _Loop)
    assert home is not None
    chunks: list[tuple[bytes, bytes] | None] = loop.read(
        (reader._revision, tuple(positions)), lambda: reader.read(home[0], positions)
    )
    return chunks


class Process:
    """A coroutine, and where it stands."""

    def __init__(self, main: Callable[[Env], Coroutine[Any, Any, T]], name: str = "") -> None:
        self._loop = _Loop(name)
        self._ended = False
        env = Env(self)
        self._task: asyncio.Task[Any] = self._loop.create_task(main(env))
        self._loop.run()

    @property
    def request(self) -> Request | None:
        """What it wants to be answered next; ``None``: it has ended."""
        return None if self._task.done() else self._loop.requests[0][0]

    def result(self) -> Any:
        """What it has returned. Raises what it has raised."""
        return self._task.result()

    def answer(self, reply: Any) -> None:
        """Go on with an answer, or an error."""
        _, future = self._loop.requests.popleft()
        if not future.done():
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)
        self._loop.run()

    def end(self) -> None:
        """Let it go, whatever it waits for."""
        self._ended = True
        while not self._task.done() and self._loop.requests:
            _, future = self._loop.requests.popleft()
            if not future.done():
                future.set_exception(Gone())
            try:
                self._loop.run()
            except Gone:
                continue
        if self._task.done() and not self._task.cancelled():
            self._task.exception()

    async def ask(self, request: Request) -> Any:
        if self._ended:
            raise Gone
        return await self._loop.ask(request)


class Env:
    """What a program of the model works with."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.client = ModelClient(process.ask)
        self.keyspace = CONFIG.keyspace

    async def until(self, condition: str, holds: Callable[[Store], Any]) -> Any:
        """Wait until ``holds`` returns something but ``None``; its value. ``condition`` describes it."""
        return await self._process.ask(Until(condition, holds))

    async def look(self, subject: str, at: Callable[[Store], Any]) -> Any:
        """Something about the store as of the last read; ``subject`` describes it."""
        return await self._process.ask(Look(subject, at))

    async def choose(self, ways: int) -> int:
        """Go on in any of so many ways: 0, 1, ... ."""
        return 0 if ways == 1 else int(await self._process.ask(Choose(ways)))

    async def blocking(self, call: Callable[[SyncEtcd], T]) -> T:
        """Run code that blocks while it speaks to etcd: from its beginning again with each answer."""
        answers: list[Any] = []
        while True:
            etcd = _Blocking(answers)
            try:
                return call(etcd)
            except _Needs as needs:
                request = needs.request
            try:
                answers.append(await self._process.ask(request))
            except Exception as error:
                answers.append(error)


class ModelClient(EtcdClient):
    """A client whose calls are answered by whoever drives its process."""

    def __init__(self, ask: Callable[[Request], Awaitable[Any]]) -> None:
        super().__init__(CONFIG)
        self._ask = ask

    async def get_range(
        self,
        start: bytes,
        end: bytes,
        *,
        revision: int = 0,
        keys_only: bool = False,
        limit: int = 0,
        newest_first: bool = False,
        backwards: bool = False,
        written_from: int = 0,
    ) -> RangePage:
        assert not written_from, "no process of the model lists what is new"
        get = Get(start, end, keys_only, limit)
        page: RangePage = await self._ask(Read(get, revision, newest_first, backwards))
        return page

    async def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        result: TxnResult = await self._ask(Write(txn))
        return result

    async def read_at_once(self, gets: Any, *, revision: int = 0) -> TxnResult:
        return await self.txn(Txn(then=tuple(gets)))

    async def read_in_lane(self, gets: Sequence[Get], lane: bytes) -> TxnResult:
        if not (revision := max(get.revision for get in gets)):
            return await self.read_at_once(gets)
        assert all(get.revision == revision for get in gets), "as of the read before it"
        pages = [await self._ask(Read(get, revision)) for get in gets]
        counts = tuple(page.count for page in pages)
        return TxnResult(True, revision, tuple(page.kvs for page in pages), counts)

    async def lease_keys(self, lease: int) -> list[bytes]:
        keys: list[bytes] = await self._ask(Look("the keys of its lease", lambda store: store.bound(lease)))
        return keys

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("the model of etcd has no such call")


class _Needs(BaseException):
    """Blocking code has come to a call that has no answer yet."""

    def __init__(self, request: Request) -> None:
        self.request = request


class _Blocking(SyncEtcd):
    """The blocking face of a client, which knows the answers of the first calls."""

    def __init__(self, answers: list[Any]) -> None:
        self.config, self.keyspace = CONFIG, CONFIG.keyspace
        self._answers = iter(answers)

    def run(self, call: Callable[[EtcdClient], Coroutine[Any, Any, T]]) -> T:
        inner = Process(lambda env: call(env.client))
        while (request := inner.request) is not None:
            answer = next(self._answers, self)
            if answer is self:
                inner.end()
                raise _Needs(request)
            inner.answer(answer)
        result: T = inner.result()
        return result

    def close(self) -> None:
        pass
