"""The workers of a coordinator, and the calls that run in them: few processes, forked from a template that
has loaded the types of users.

A worker may act until the coordinator's lease runs out. Both share two numbers in memory: the lease, and its
deadline.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from distop.coordinator.work.places import Places
from distop.errors import Busy, CallTimeout, Crashed, LeaseLost
from distop.metastore import crashpoints
from distop.operations.registry import Registry
from distop.process.loop import boot_clock
from distop.process.serving import alive
from distop.process.template import Template
from distop.process.workers import Died, Idle, NotBegun, TooLong, Worker

_HELD = struct.Struct("=qd")


class SharedLease:
    """The current lease, and its local deadline.

    Parameters
    ----------
    file:
        Descriptor of the memory, in a worker process; ``None`` creates it.
    """

    def __init__(self, file: int | None = None) -> None:
        if file is None:
            file = _anonymous_file()
            os.ftruncate(file, mmap.PAGESIZE)
        self.file = file
        self._memory = mmap.mmap(file, mmap.PAGESIZE)

    def holds(self, lease: int, until: float) -> None:
        """It is held until then, by :func:`boot_clock`."""
        _HELD.pack_into(self._memory, 0, lease, until)

    @property
    def lease(self) -> int:
        """The current lease, or the last one; 0 before the first."""
        return int(_HELD.unpack_from(self._memory)[0])

    def check_of(self, lease: int, alive: Callable[[], None]) -> Callable[[], None]:
        """Raises :class:`~distop.errors.LeaseLost` once that lease is no longer held."""

        def check() -> None:
            held, until = _HELD.unpack_from(self._memory)
            if held != lease or (lease and boot_clock() >= until):
                raise LeaseLost
            alive()

        return check

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()
        os.close(self.file)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("distop-lease")
    with tempfile.TemporaryFile() as made:
        return os.dup(made.fileno())


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Surroundings:
    """The context of a call."""

    registry: Registry
    check: Callable[[], None]
    """Raises when this process, or its coordinator, may not act any more. Calling it is also a heartbeat: a
    call with heartbeats is not ended for taking long."""


class Call(Protocol[T_co]):
    """A function of a module, or a ``partial`` of one: it must be picklable."""

    def __call__(self, surroundings: Surroundings, /) -> T_co: ...


# -- in a worker ---------------------------------------------------------------------------------------


_registry: Registry
_lease: SharedLease


def begin(operations: Sequence[str] | None, pid: int, lease_file: int) -> None:
    """Work for the coordinator that is this process: with its types, and under its lease."""
    global _registry, _lease
    crashpoints.works_for(pid)
    _registry, _lease = Registry(operations), SharedLease(lease_file)


def load_type(name: str) -> None:
    """Load a type, unless the template has it."""
    _registry.get(name)


def perform(lease: int, call: Call[T_co]) -> T_co:
    """Run a call for a lease of the coordinator."""
    return call(Surroundings(_registry, _lease.check_of(lease, alive)))


T = TypeVar("T")

MAX_IDLE = 8
"""Idle workers kept for later calls."""

LOAD_S = 30.0
"""Longest load of a module, in seconds."""

WORKER_BYTES, MOST, FEWEST = 256 << 20, 64, 16
"""Memory of the host, or of its control group, for each running call; and bounds for their number."""

WORKERS = "distop-workers"
"""The name of the threads that wait for them."""

_template = Template()


class Processes:
    """The workers of one coordinator; belongs to one event loop.

    Parameters
    ----------
    operations:
        Further types, as in the coordinator's own registry.
    """

    def __init__(self, operations: Sequence[str] | None = None) -> None:
        self.operations = None if operations is None else list(operations)
        self.lease = SharedLease()
        self._idle = Idle(MAX_IDLE)
        self._busy: set[Worker] = set()
        self._closed = False
        # For large messages, of each call of planning and of publishing, and of more that are being ended.
        self._threads = ThreadPoolExecutor(4 * MOST, thread_name_prefix=WORKERS)
        _template.start()  # so that the first call need not wait for it

    @staticmethod
    def places() -> Places:
        """Slots for calls: at a time as many as cores are good for, in all as many as memory has room for."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        most = min(max(memory_bytes() // WORKER_BYTES, FEWEST), MOST)
        return Places(at_a_time=min(max(2 * cores, 4), most), most=most)

    async def load(self, module: str) -> None:
        """Load a module in the template, once: workers have it without loading it.

        Raises :class:`~distop.process.template.NotLoaded`, also if it takes longer than :data:`LOAD_S`.
        """
        await asyncio.get_running_loop().run_in_executor(self._threads, _template.load, module, LOAD_S)

    async def run(self, call: Call[T], kind: str = "", *, limit_s: float) -> T:
        """Run a call in a worker, which is ended when this is cancelled.

        Parameters
        ----------
        kind:
            The type that it is of. To load it is no part of the call.
        limit_s:
            Seconds of its own that it may take without a heartbeat.

        Raises what the call raises, and

        Crashed
            The process died during the call.
        CallTimeout
            It has taken too long. The message is the caller's.
        Busy
            It has not begun: the machine has no processor or no memory left for it.
        """
        worker = self._idle.take() or await self._forked()
        self._busy.add(worker)
        asked = partial(perform, self.lease.lease, call)
        prepare = partial(load_type, kind) if kind else None
        try:
            return await worker.run_async(asked, self._threads, limit_s=limit_s, prepare=prepare)
        except Died as error:
            raise Crashed(f"the process that ran it has died ({worker.pid})") from error
        except TooLong:
            raise CallTimeout from None
        except NotBegun:
            raise Busy("it has not begun: this machine is busy") from None
        finally:
            self._busy.discard(worker)
            self._idle.put(worker)

    async def _forked(self) -> Worker:
        if self._closed:
            raise Crashed("the coordinator is being stopped")
        fork = partial(_template.fork, partial(begin, self.operations, os.getpid()), self.lease.file)
        forking = asyncio.get_running_loop().run_in_executor(self._threads, fork)
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(self._came_late)
            raise
        except (OSError, EOFError) as error:  # it says nothing about the call
            raise Busy(f"no process could be started for it: {error}") from error

    def _came_late(self, forking: asyncio.Future[Worker]) -> None:
        if not forking.cancelled() and forking.exception() is None:
            self._idle.put(forking.result())

    def close(self) -> None:
        """End them all."""
        self._closed = True
        self._idle.close()
        for worker in self._busy:
            worker.end()
        self._threads.shutdown(wait=False)
        self.lease.close()


def memory_bytes() -> int:
    """Memory of this host, or less where its control group limits it."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such group, or no limit
        return physical
