"""Faults that befall a process, or etcd, as a whole; those of single requests are in ``chance.py``."""

import asyncio
from collections.abc import Callable

from distop.metastore.etcd.txn import DeleteRange, Put, Txn
from distop.metastore.records.keyspace import Keyspace
from simulate.chance import Chance
from simulate.etcd import Etcd
from simulate.loop import Loop, Process
from simulate.network import Network

SPACE = Keyspace()

HOSTILE = (
    *(b"distOp.%s.\xff" % name for name in (b"_active", b"_backlog", b"_coordinators", b"_schedules")),
    *(b"distOp.%s.\xff" % name for name in (b"_executors", b"_paused", b"_dropped", b"_waiting.0000")),
    b"distOp._active.t%FF.noop.1",
    b"distOp._active.foo",
    b"distOp._waiting.foo",
    b"distOp._backlog.t%FF",
    b"distOp._schedules.t%FF",
    *(
        b"distOp.t0.%s" % name
        for name in (b"history.\xff", b"history.append.x", b"series.bad", b"applied.bad")
    ),
    *(b"distOp.t0.%s" % name for name in (b"auditTrail.0", b"index.bad", b"request.bad", b"requestExpiry.0")),
)
"""Keys that nobody of distop writes."""

VALUES = (b"", b"\xff", b"{}", b'{"version": 99}')

SOMEBODY = "somebody"
"""Who changes keys by hand."""


class Strikes:
    """Strikes one of them after the other, as the seed decides."""

    def __init__(
        self,
        loop: Loop,
        chance: Chance,
        etcd: Etcd,
        network: Network,
        living: Callable[[], list[Process]],
        kill: Callable[[Process], None],
        note: Callable[[str], None],
    ) -> None:
        self._loop, self._chance, self._etcd, self._network = loop, chance, etcd, network
        self._living, self._kill, self._note = living, kill, note
        self.hostile: set[bytes] = set()
        """Keys that somebody has put there by hand."""

    async def run(self) -> None:
        """Strike until cancelled."""
        while True:
            await asyncio.sleep(self._chance.some(self._chance.strikes_every_s))
            strike = getattr(self, f"_{self._chance.pick(self._chance.strikes)}")
            if (living := self._living()) and strike.__name__ not in _OF_ETCD:
                process = self._chance.pick(living)
                self._note(f"STRIKE {strike.__name__[1:]} {process.name}")
                strike(process)
            elif living:
                self._note(f"STRIKE {strike.__name__[1:]}")
                strike()

    def over(self) -> None:
        """All is as it should be from now on, but for keys."""
        self._network.cut.clear()
        for process in self._living():
            process.resume(self._loop)
            for stream in self._network.streams.get(process, ()):
                stream.lag_s = 0.0
        if self._etcd.down:
            self._etcd.restarted()

    def _length(self) -> float:
        return self._chance.some(self._chance.pick([0.5, 4.0, 20.0]))

    # -- of a process ----------------------------------------------------------------------------------

    def _killed(self, process: Process) -> None:
        self._kill(process)

    def _stopped(self, process: Process) -> None:
        """It is asked to end in good order."""
        process.stopping = True
        self._loop.call_soon(process.stop, context=process.context)

    def _paused(self, process: Process) -> None:
        process.paused = True
        self._loop.call_later(self._length(), process.resume, self._loop)

    def _cut(self, process: Process) -> None:
        """It does not reach etcd for a while."""
        self._network.cut.add(process.name)
        self._loop.call_later(self._length(), self._network.cut.discard, process.name)

    def _broken(self, process: Process) -> None:
        """Its watches break."""
        self._network.break_streams(process)

    def _lagging(self, process: Process) -> None:
        """Its watches are late from now on, until they break."""
        length = self._length()
        for stream in self._network.streams.get(process, ()):
            stream.lag_s = length

    # -- of etcd ---------------------------------------------------------------------------------------

    def _down(self) -> None:
        self._etcd.down = True
        for process in self._living():
            self._network.break_streams(process)
        self._loop.call_later(self._length(), self._etcd.restarted)

    def _compacted(self) -> None:
        self._etcd.compact(self._etcd.store.revision)

    def _member_deleted(self) -> None:
        """A member, or a leader."""
        store = self._etcd.store
        leaders = (kv for kv in store.under(SPACE.prefix) if kv.key.endswith(b".coordinator"))
        if members := [*store.under(SPACE.coordinators), *store.under(SPACE.executors), *leaders]:
            self._etcd.write(SOMEBODY, Txn(then=(DeleteRange(self._chance.pick(members).key),)))

    def _hostile_key(self) -> None:
        key = self._chance.pick(HOSTILE)
        self.hostile.add(key)
        self._etcd.write(SOMEBODY, Txn(then=(Put(key, self._chance.pick(VALUES)),)))


_OF_ETCD = ("_down", "_compacted", "_member_deleted", "_hostile_key")
