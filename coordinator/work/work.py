"""Runs code that may hang for the tables of one coordinator: in threads, or in processes that can be ended.

Threads are for code of distop that waits for the storage of tables. User code, and code that reads
user-defined locations, gets a separate process. Both have fair slots, see :mod:`.places`, and a time
limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from distop.coordinator.work.places import Places, Slot
from distop.coordinator.work.processes import Call, Processes, Surroundings
from distop.errors import Busy, CallTimeout, DeadlineExceeded, DistopError
from distop.operations.api import DistributedOperation
from distop.operations.registry import Registry
from distop.process.template import NotLoaded

T = TypeVar("T")

LONG_S = 5.0
"""Seconds after which a call counts as slow, and may hang."""

LIMIT_S = 600.0
"""Seconds that a call may take without a heartbeat: of its own, see :mod:`distop.process.workers`."""

_OWN = "distop."
"""Prefix of the modules of distop."""


@dataclass(frozen=True, eq=False)
class Running:
    """A call in progress."""

    table: str
    label: str
    since: float
    """By the monotonic clock."""
    at: float
    """Seconds since the Unix epoch."""


class Work:
    """Runs calls; belongs to one event loop.

    Parameters
    ----------
    threads:
        As many as there are slots, or more; ``None``: those of the event loop.
    processes:
        ``None`` runs everything in the threads, where nothing can be ended.
    limit_s:
        Seconds that a call may take without a heartbeat.
    """

    def __init__(
        self,
        registry: Registry,
        threads: Executor | None,
        processes: Processes | None = None,
        *,
        places: Callable[[], Places] = Places,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.registry, self.limit_s = registry, limit_s
        self._threads, self._processes = threads, processes
        self._places = places(), places() if processes is None else processes.places()
        """The slots for threads, and those for processes."""
        self._loaded: set[str] = set()
        """Modules of distop in the template."""
        self.running: set[Running] = set()
        """Calls in progress."""

    def long(self) -> list[Running]:
        """The slow calls, the oldest first."""
        before = time.monotonic() - LONG_S
        return sorted((call for call in self.running if call.since <= before), key=lambda call: call.since)

    async def blocking(
        self, table: str, label: str, call: Callable[..., T], *args: Any, limit_s: float | None = None
    ) -> T:
        """Run blocking code of distop in a thread, in turn.

        Raises its errors; :class:`~distop.errors.CallTimeout` when it takes too long, including the wait for
        its turn if a limit is given: it then keeps its slot until it ends; :class:`~distop.errors.Busy` when
        it never began.
        """
        with self._begun(table, label):
            slot: Slot | None = None
            try:
                # Not wait_for: that of Python 3.11 swallows a cancellation that arrives with the result.
                async with asyncio.timeout(limit_s) as until:
                    slot = await self._places[0].enter(table)
                    if limit_s is None:
                        until.reschedule(asyncio.get_running_loop().time() + self.limit_s)
                    try:
                        running = asyncio.get_running_loop().run_in_executor(
                            self._threads, _called, call, *args
                        )
                    except BaseException:
                        slot.leave()
                        raise
                    running.add_done_callback(lambda _: slot.leave())
                    return await asyncio.shield(running)
            except TimeoutError:
                if not until.expired():
                    raise  # of the call itself
                limit = self.limit_s if limit_s is None else limit_s
                raise _too_long(label, limit, slot, by_option=limit_s is None) from None

    async def user(
        self,
        kind: DistributedOperation | None,
        table: str,
        label: str,
        call: Call[T],
        *,
        check: Callable[[], None] = lambda: None,
        deadline_s: float | None = None,
    ) -> T:
        """Run code of a type, or of its steps, in turn; ended when it takes too long, or this is cancelled.

        Types that only compute run at once: waiting for a thread takes longer than they do.

        Parameters
        ----------
        check:
            Check of the lease, for calls in a thread; those in processes check it themselves.
        deadline_s:
            Seconds after which nobody needs the result any more, including the wait for its turn.

        Raises what the call raises; :class:`~distop.errors.CallTimeout`; :class:`~distop.errors.Crashed`;
        :class:`~distop.errors.DeadlineExceeded`; :class:`~distop.errors.Busy` when it never began.
        """
        if self._processes is None:
            surroundings = Surroundings(self.registry, check)
            try:
                return await self.blocking(table, label, call, surroundings, limit_s=deadline_s)
            except CallTimeout:
                if deadline_s is None:
                    raise
                raise _too_late(label, deadline_s) from None
        if kind is not None and kind.only_computes:
            return call(Surroundings(self.registry, check))
        with self._begun(table, label):
            slot: Slot | None = None
            try:
                async with asyncio.timeout(deadline_s) as until:
                    slot = await self._places[1].enter(table)
                    try:
                        await self._load(_modules(call, kind))
                        name = kind.type if kind is not None else ""
                        return await self._processes.run(call, name, limit_s=self.limit_s)
                    finally:
                        slot.leave()
            except CallTimeout:
                raise _too_long(label, self.limit_s, slot) from None
            except TimeoutError:
                if not until.expired() or deadline_s is None:
                    raise
                if slot is None:
                    raise _too_long(label, deadline_s, slot) from None
                raise _too_late(label, deadline_s) from None

    async def asked(self, kind: DistributedOperation, table: str, method: str, call: Call[T]) -> T:
        """Run a method that only reads its arguments: at once if it is distop's, as :meth:`user` if it is
        user-defined; raises as that."""
        if is_own(kind, method):
            return call(Surroundings(self.registry, lambda: None))
        return await self.user(kind, table, f"{method} of {kind.type}", call)

    async def _load(self, modules: tuple[str, ...]) -> None:
        """Load modules of distop in the template, and once here: the commit will need them."""
        assert self._processes is not None
        for module in modules:
            if module not in self._loaded:
                with suppress(NotLoaded):  # the call will say so
                    await self._processes.load(module)
                self._loaded.add(module)
                _ = asyncio.get_running_loop().run_in_executor(self._threads, _imported, module)

    @contextmanager
    def _begun(self, table: str, label: str) -> Iterator[None]:
        running = Running(table, label, time.monotonic(), time.time())
        self.running.add(running)
        try:
            yield
        finally:
            self.running.discard(running)


def is_own(kind: DistributedOperation, method: str) -> bool:
    """Whether a method of a type is distop's code."""
    module: str = getattr(type(kind), method).__module__
    return module.startswith(_OWN)


def _modules(call: Call[Any], kind: DistributedOperation | None) -> tuple[str, ...]:
    """Modules that the call needs. Those of the types of users are loaded before any call."""
    function: str = getattr(call, "func", call).__module__
    if kind is None:
        return (function,)
    module = type(kind).__module__
    return (function, *([module] if module.startswith(_OWN) else []), *kind.preloads)


def _imported(module: str) -> None:
    with suppress(ImportError):
        import_module(module)


def _called(call: Callable[..., T], *args: Any) -> T:
    try:
        return call(*args)
    except StopIteration as error:  # a future refuses it: the caller would wait for ever
        raise RuntimeError("something that must be there was not found") from error


def _too_late(label: str, deadline_s: float) -> DistopError:
    return DeadlineExceeded(f"{label} has not ended within {deadline_s:.0f} s")


def _too_long(label: str, limit_s: float, slot: Slot | None, *, by_option: bool = True) -> DistopError:
    if slot is None:  # it says nothing about the call
        return Busy(f"{label} has waited {max(limit_s, 0.0):.1f} s for its turn: other calls have not ended")
    hint = "" if by_option else "remove the cause: its limit is fixed"
    return CallTimeout(f"{label} has taken longer than {limit_s:g} s", hint=hint)
