"""An event loop whose time passes only when nothing is left to do, and the processes that live on it.

Each callback belongs to a process by a variable of its context, or to the world around them. Callbacks of a
process that is paused wait until it goes on; those of one that was killed are dropped, as are all its tasks,
wherever they stand.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

MOST_AT_ONCE = 200_000
"""Callbacks at one moment, beyond which some process must be going round in a circle."""

_process: ContextVar[Process | None] = ContextVar("process", default=None)


@dataclass(eq=False)
class Process:
    """What can be killed and paused as one."""

    name: str
    dead: bool = False
    paused: bool = False
    held: list[asyncio.Handle] = field(default_factory=list)
    """What it would do if it were not paused."""
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    """Kept, so that nothing of a killed process runs when it is collected."""
    context: Context = field(default_factory=Context)
    stop: Callable[[], None] = lambda: None
    """Asks it to end."""
    stopping: bool = False
    leases: set[int] = field(default_factory=set)
    """Those that etcd has granted it."""

    def kill(self) -> None:
        """Nothing of it runs any more."""
        self.dead = True
        self.held.clear()

    def resume(self, loop: Loop) -> None:
        """If it is paused, let it go on."""
        self.paused = False
        held, self.held = self.held, []
        loop._ready.extend(held)


def present() -> Process:
    """The process that runs."""
    process = _process.get()
    assert process is not None, "nothing but the world runs"
    return process


class Circle(Exception):
    """Something goes round in a circle, and time stands still."""


class _Task(asyncio.Task[Any]):
    """Tasks and futures have numbers, so that sets of them have the same order each time."""

    def __init__(self, number: int, coro: Any, **more: Any) -> None:
        self.number = number  # first: asyncio keeps a set of all tasks
        super().__init__(coro, **more)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    def __init__(self, number: int, **more: Any) -> None:
        self.number = number
        super().__init__(**more)

    def __hash__(self) -> int:
        return self.number


class Loop(asyncio.BaseEventLoop):
    """See the module."""

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._numbers = itertools.count(1)
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._failed: BaseException | None = None
        """An error of the world itself."""
        self._reads: dict[Hashable, Any] = {}
        self.world = Context()
        """The context of what belongs to no process."""
        self.steps = 0
        self.blocking_s: Callable[[], float] = lambda: 0.0
        """How long the next blocking call takes."""

    def time(self) -> float:
        return self._now

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _check_closed(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    # -- running ---------------------------------------------------------------------------------------

    def run_until(self, end: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until ``end``, or until something is so."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while not done():
                self._run_ready()
                if self._failed is not None:
                    raise self._failed
                if not self._timers or self._timers[0][0] > end:
                    self._now = end
                    return
                when, _, timer = heapq.heappop(self._timers)
                if not timer.cancelled():
                    self._now = max(self._now, when)
                    self._step(timer)
        finally:
            asyncio._set_running_loop(outer)

    def _run_ready(self) -> None:
        last = self.steps + MOST_AT_ONCE
        while self._ready:
            handle = self._ready.popleft()
            if not handle.cancelled():
                self._step(handle)
            if self.steps > last:
                raise Circle(f"{handle!r} and others go round in a circle")

    def _step(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(_process)  # type: ignore[attr-defined]
        if process is not None:
            if process.dead:
                return
            if process.paused:
                process.held.append(handle)
                return
        self.steps += 1
        handle._run()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        # asyncio's own order of timers of one moment is that of a heap.
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # A callback that failed. An error of a task that nobody has awaited does not count.
        if "handle" in context and context["handle"]._context.get(_process) is None:
            self._failed = context["exception"]

    # -- processes -------------------------------------------------------------------------------------

    def spawn(self, process: Process, main: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Begin a process with this coroutine."""
        process.context.run(_process.set, process)
        context = process.context.copy()
        return self.create_task(context.run(main), context=context)

    def outside(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of the world."""
        return self.create_task(coroutine, context=self.world)

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._numbers), loop=self)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        process = _process.get()
        if context is not None and process is not None and context.get(_process) is None:
            context.run(_process.set, process)
        number = next(self._numbers)
        task = _Task(number, coro, loop=self, name=str(name or number), context=context)
        owner = process if context is None else context.get(_process)
        if owner is not None:
            tasks = owner.tasks
            tasks.append(task)
            if len(tasks) > 1000:
                owner.tasks = [each for each in tasks if not each.done()]
        return task

    # -- what blocks -----------------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """A thread takes its time, and then does everything at once; if it reads from etcd on its way, from
        its beginning again."""
        future: asyncio.Future[T] = self.create_future()
        self.call_later(self.blocking_s(), self._attempt, future, func, args, {})
        return future

    def _attempt(
        self, future: asyncio.Future[T], func: Callable[..., T], args: Any, results: dict[Hashable, Any]
    ) -> None:
        if future.done():
            return
        self._reads = results
        try:
            future.set_result(func(*args))
        except Reads as reads:
            self._reading = self.create_task(self._read(reads, future, func, args, results))
        except Exception as error:
            future.set_exception(error)

    async def _read(
        self, reads: Reads, future: asyncio.Future[T], func: Any, args: Any, results: dict[Hashable, Any]
    ) -> None:
        try:
            results[reads.subject] = await reads.read()
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            self._attempt(future, func, args, results)

    def read(self, subject: Hashable, read: Callable[[], Awaitable[Any]]) -> Any:
        """The result of a read of etcd, for blocking code: ``subject`` names it when that code runs again."""
        if subject not in self._reads:
            raise Reads(subject, read)
        return self._reads[subject]


class Reads(BaseException):
    """Blocking code needs something from etcd."""

    def __init__(self, subject: Hashable, read: Callable[[], Awaitable[Any]]) -> None:
        self.subject, self.read = subject, read
