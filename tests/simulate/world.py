"""One seed: the world that it makes, what happens in it, and what is wrong with it."""

import asyncio
import gc
import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy.random  # noqa: F401 - it draws when it is loaded: the first simulation must not differ by that

from distop.commit.contract import default_registry
from distop.errors import InvalidArgument
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.names import OperationId
from explore.store import Store
from simulate import kinds
from simulate.callers import Callers
from simulate.chance import BUSY_S, QUIET_S, Chance
from simulate.doors import Doors
from simulate.etcd import Etcd
from simulate.laws import Laws
from simulate.loop import Circle, Loop, Process
from simulate.members import coordinate, execute, replaced
from simulate.network import Fate, Network
from simulate.sources import simulated
from simulate.strikes import Strikes

SPACE = Keyspace()
RESTART_S = 2.0
"""Mean time until a process that was killed is started again."""

PROBES_S, LOOK_EVERY_S = 45.0, 25.0
"""How long after the last fault each table is tried once more; how often the world is looked at then."""


@dataclass
class Report:
    """What came of a seed."""

    seed: int
    violations: list[str]
    """What broke, each with the name of its law, the first one first."""
    steps: int
    virtual_s: float
    trace_hash: str
    """The same for the same seed and code."""
    trace: list[str] = field(repr=False, default_factory=list)


def simulate(seed: int, *, trace: bool = False) -> Report:
    """Let a seed happen. ``trace``: keep everything that happens, as text."""
    gc.collect()  # nothing of an earlier world ends in this one
    folder = tempfile.mkdtemp(prefix="distop-simulate-")
    try:
        return World(seed, folder, trace=trace).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Enough(Exception):
    """A law is broken."""


class World:
    """Everything there is in one simulation."""

    def __init__(self, seed: int, folder: str, *, trace: bool) -> None:
        self._seed, self._folder = seed, folder
        self._digest = hashlib.sha256()
        self._trace: list[str] | None = [] if trace else None
        self._violations: list[str] = []
        self._living: dict[str, Process] = {}
        self._all: list[Process] = []
        self._incarnations = itertools.count(1)
        self._promises: dict[str, str] = {}
        """Operations that callers were notified of, and the uuids of their tables then."""
        self._probes: dict[str, str] = {}
        """The operation with which each table was tried once more; empty: none could be started yet."""
        self._loop, self._chance = Loop(), Chance(seed)
        tables = [f"t{number}" for number in range(self._chance.tables)]
        self._laws = Laws(self._break, self._loop.time, tables)
        self._etcd = Etcd(self._loop, self._chance.rng, self._changed)
        self._network = Network(self._loop, self._etcd, self._fate_of, self._kill)
        self._doors = Doors(self._loop)
        self._loop.blocking_s = self._chance.blocking_s
        self._strikes = Strikes(
            self._loop,
            self._chance,
            self._etcd,
            self._network,
            lambda: [process for process in self._living.values() if not process.dead],
            self._kill,
            self._note,
        )
        self._callers = Callers(
            self._chance, self._doors, self._serving, self._note, self._promised, folder, tables
        )

    # -- what happens ----------------------------------------------------------------------------------

    def run(self) -> Report:
        """Let it happen."""
        with self._in_place():
            try:
                for name in self._names():
                    self._start(name)
                for law, violation in self._happen():
                    self._break(law, violation)
            except _Enough:
                pass
            except Circle as error:
                self._break("rate", str(error))
            finally:
                for process in self._all:
                    process.kill()
        digest, trace = self._digest.hexdigest(), self._trace or []
        return Report(self._seed, self._violations, self._loop.steps, self._loop.time(), digest, trace)

    def _names(self) -> list[str]:
        coordinators = [f"coordinator-{number}" for number in range(self._chance.coordinators)]
        return coordinators + [f"executor-{number}" for number in range(self._chance.executors)]

    def _in_place(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(simulated(self._seed, self._loop.time))
        stack.enter_context(replaced(self._network, self._doors, self._chance, self._removed))
        environment = {**kinds.STEPS, "DISTOP_RUNTIME_DIR": self._folder}
        stack.enter_context(mock.patch.dict(os.environ, environment))
        default_registry.cache_clear()
        kinds.raised.clear()
        return stack

    def _happen(self) -> list[tuple[str, str]]:
        """First there is work, and there are faults; then everything has to end. What has not ended, by
        law."""
        using = self._loop.outside(self._callers.use())
        striking = self._loop.outside(self._strikes.run())
        self._run_until(BUSY_S)
        self._chance.faults = False
        striking.cancel()
        self._strikes.over()
        self._note("faults stop")
        operating = self._loop.outside(self._callers.operate())
        self._run_until(BUSY_S + PROBES_S)
        self._run_until(BUSY_S + QUIET_S / 2, using.done)  # a late call may drop a table
        probing = [self._loop.outside(self._probe(table)) for table in self._callers.tables]
        left = self._until_all_is_over()
        for task in (using, operating, *probing):
            if task.done():
                task.result()
        return left

    def _run_until(self, end: float, done: Callable[[], bool] = lambda: False) -> None:
        self._loop.run_until(end, lambda: bool(self._violations) or done())
        if self._violations:
            raise _Enough

    def _until_all_is_over(self) -> list[tuple[str, str]]:
        """Let time pass until nothing is left, or the ten minutes are over; what is left then."""
        members = {SPACE.coordinators: self._chance.coordinators, SPACE.executors: self._chance.executors}
        while True:
            self._laws.count_from_now()
            self._run_until(self._loop.time() + LOOK_EVERY_S)
            store = self._etcd.store
            left = self._laws.unfinished(store, members, self._promises, self._strikes.hostile)
            for table, name in self._probes.items():
                if not name or not self._laws.succeeded(store, name):
                    how = f"{name} has not succeeded" if name else "nothing can be started"
                    left.append(("probe", f"{table}: {how}"))
            if not left or self._loop.time() >= BUSY_S + QUIET_S:
                return left

    async def _probe(self, table: str) -> None:
        self._probes[table] = ""
        self._probes[table] = await self._callers.probe(table)

    def _promised(self, name: str) -> None:
        self._promises[name] = self._laws.uuid(self._etcd.store, OperationId.parse(name).table)

    # -- processes -------------------------------------------------------------------------------------

    def _serving(self) -> list[Process]:
        return [process for process in self._doors.open if not process.dead and not process.paused]

    def _start(self, name: str) -> None:
        process = Process(f"{name}.{next(self._incarnations)}")
        self._living[name] = process
        self._all.append(process)
        self._laws.lives(process)
        self._note(f"{process.name} begins")
        life = coordinate if name.startswith("coordinator") else execute
        task = self._loop.spawn(process, lambda: life(self._chance))
        task.add_done_callback(lambda done: self._ended(process, done), context=self._loop.world)

    def _ended(self, process: Process, task: asyncio.Task[None]) -> None:
        if process.dead:
            return
        error = None if task.cancelled() else task.exception()
        # One that stood still while it began refuses to go on, and is started again.
        began_late = isinstance(error, InvalidArgument) and "takes longer than" in error.message
        if not began_late and (error is not None or not process.stopping):
            self._break("process", f"{process.name} ends by itself: {error!r}")
        self._kill(process)

    def _kill(self, process: Process) -> None:
        """Kill a process, and start it again after a while."""
        if process.dead:
            return
        self._note(f"{process.name} is gone")
        process.kill()
        self._network.gone(process)
        self._doors.open.pop(process, None)
        name = process.name.partition(".")[0]
        self._loop.call_later(self._chance.some(RESTART_S), self._start, name, context=self._loop.world)

    def _fate_of(self, process: Process, method: str, request: Any) -> Fate:
        if method:
            self._laws.sends(process, method, request)
        return self._chance.fate(method)

    # -- what is noted ---------------------------------------------------------------------------------

    def _note(self, line: str) -> None:
        text = f"{self._loop.time():9.3f} {line}"
        self._digest.update(text.encode())
        if self._trace is not None:
            self._trace.append(text)

    def _changed(self, who: str, before: Store, after: Store, keys: list[bytes]) -> None:
        names = (
            f"{'' if after.get(key).exists else '-'}{key.decode(errors='backslashreplace')}" for key in keys
        )
        written = " ".join(names).replace("distOp.", "").replace(self._folder, "/simulated")
        self._note(f"{who} writes {written}")
        self._laws.moved(who, before, after, keys)

    def _removed(self, operation: OperationId, attempt: str) -> None:
        self._laws.removed(operation, attempt, self._etcd.store)

    def _break(self, law: str, violation: str) -> None:
        text = f"{law}: {violation}".replace(self._folder, "/simulated")
        if text not in self._violations:
            self._note(f"BROKEN {text}")
            self._violations.append(text)
