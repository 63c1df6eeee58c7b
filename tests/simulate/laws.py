"""What must hold: in every change, all the time, and once everything has had its ten minutes.

- *safety*: the laws of the model (``explore/laws.py``) for each table, in every change of its keys.
- *process*: no process ends by itself.
- *rate*: nobody wants to write or read one key more often than a back-off allows; a quiet process sends few
  requests.
- *members*: who lives is registered, and nobody else is.
- *end*: no operation and no batch is left without an end; nothing waits but for a decision, which the
  operator makes within seconds.
- *left*: no key is left but tables, their history, requests and audit, and the members that live.
- *promise*: an operation that a caller was notified of has ended.
- *probe*: on every table one more operation can be started, and succeeds.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Any

from distop.metastore.records.keyspace import Keyspace, TableKeys
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord, OperationArg
from distop.metastore.records.record import decode
from distop.metastore.records.table import LocationRecord, TableRecord
from explore.laws import TableLaws
from explore.process import Write
from explore.store import Store
from simulate.kinds import PUBLISHING
from simulate.loop import Process

SPACE = Keyspace()

WINDOW_S = 10.0
MOST_WRITES, MOST_READS = 100, 600
"""Of one key, by one process, within :data:`WINDOW_S`. The shortest pause of a loop that polls is 0.05 s."""

QUIET_PER_S = 12.0
"""Requests of a process to etcd when there is nothing to do."""

_ALLOWED = re.compile(
    rb"distOp\.(_installation|_(coordinators|executors|places|tables|locations|audit|denied|schedules)\..*"
    rb"|_watermarks\..*|t\d+\.(table|head|watermarks|runOps|ordering|coordinator|history\..*|series\..*"
    rb"|request\..*|requestExpiry\..*|applied\..*|unordered\.(done|failed)\..*|auditTrail\..*"
    rb"|[a-z]+\.nextInstanceId))",
    re.DOTALL,
)

Broken = Callable[[str, str], None]
"""Called with the name of a law, and how it is broken."""


class Laws:
    """See the module."""

    def __init__(self, broken: Broken, clock: Callable[[], float], tables: list[str]) -> None:
        self._broken, self._clock = broken, clock
        self._processes: dict[str, Process] = {}
        self._tables = {
            SPACE.table(name).prefix: _Table(SPACE.table(name), self._processes) for name in tables
        }
        self._window = 0
        self._sent: Counter[tuple[str, str, bytes]] = Counter()
        self._requests: Counter[str] = Counter()
        self._counting_since = 0.0

    # -- while things happen ---------------------------------------------------------------------------

    def lives(self, process: Process) -> None:
        self._processes[process.name] = process

    def sends(self, process: Process, method: str, request: Any) -> None:
        """A process sends a request to etcd."""
        self._requests[process.name] += 1
        window = int(self._clock() / WINDOW_S)
        if window != self._window:
            self._sent.clear()
            self._window = window
        if method == "Txn":
            how, keys, most = "write", _written(request), MOST_WRITES
        elif method == "Range":
            how, keys, most = "read", {request.key}, MOST_READS
        else:
            return
        for key in keys:
            self._sent[process.name, how, key] += 1
            if self._sent[process.name, how, key] > most:
                name = process.name.partition(".")[0]
                self._broken(
                    "rate", f"{name} wants to {how} {_text(key)} over {most} times in {WINDOW_S:g} s"
                )

    def moved(self, who: str, before: Store, after: Store, changed: list[bytes]) -> None:
        """Somebody has changed keys."""
        touched = {table for key in changed if (table := self._tables.get(_table_prefix(key))) is not None}
        for table in touched:
            violation = table.changed(who, before, after)
            if violation is not None:
                self._broken("safety", violation)

    def removed(self, operation: OperationId, attempt: str, store: Store) -> None:
        """An attempt that does not count has removed its files."""
        table = self._tables[SPACE.table(operation.table).prefix]
        table.removed.add((str(operation), attempt))
        if table.exists(store) and table._counts(store, str(operation), attempt):
            self._broken("safety", f"the files of {attempt} are removed, whose result counts")

    # -- at the end ------------------------------------------------------------------------------------

    def count_from_now(self) -> None:
        """All is quiet: count requests."""
        self._requests.clear()
        self._counting_since = self._clock()

    def unfinished(
        self,
        store: Store,
        members: Mapping[bytes, int],
        promised: Mapping[str, str],
        hostile: Set[bytes],
    ) -> list[tuple[str, str]]:
        """What violates a law once everything is at rest: the name of each law, and the violation.

        ``members`` has how many live by the prefix of their keys, and ``promised`` the operations that
        callers were notified of, with the uuids of their tables at that time. ``hostile`` keys may be left.
        """
        violations: list[tuple[str, str]] = []
        for prefix, number in members.items():
            there = [kv.key for kv in store.under(prefix) if kv.key not in hostile]
            if len(there) != number:
                violations.append(("members", f"{number} live, and {len(there)} are at {_text(prefix)}"))
        for kv in store.under(SPACE.active):
            if kv.key not in hostile:
                name = _text(kv.key).removeprefix("distOp._active.")
                violations.append(("end", f"{name} has neither ended nor says why"))
        keys = [kv.key for kv in store.under(SPACE.prefix) if kv.key not in hostile]
        violations += [("left", f"{_text(key)} is left") for key in keys if not _ALLOWED.fullmatch(key)]
        violations += self._of_nobody(store)
        for name, uuid in promised.items():
            table = self._tables[SPACE.table(OperationId.parse(name).table).prefix]
            if table.uuid(store) == uuid and not table.ended(store, OperationId.parse(name)):
                violations.append(("promise", f"a caller was notified of {name}, which has no end"))
        return violations + self._restless()

    def _of_nobody(self, store: Store) -> list[tuple[str, str]]:
        uuids = {table.uuid(store) for table in self._tables.values()}
        claims = list(store.under(SPACE.locations))
        gone = [kv for kv in claims if decode(kv.value, LocationRecord, kv.key).uuid not in uuids]
        return [("left", f"{_text(kv.key)} is claimed by a table that is gone") for kv in gone]

    def _restless(self) -> list[tuple[str, str]]:
        seconds = max(self._clock() - self._counting_since, 1.0)
        rates = {name.partition(".")[0]: number / seconds for name, number in self._requests.items()}
        return [
            ("rate", f"{name} sends {rate:.0f} requests/s at rest")
            for name, rate in rates.items()
            if rate > QUIET_PER_S
        ]

    def succeeded(self, store: Store, name: str) -> bool:
        """Whether an operation has."""
        operation = OperationId.parse(name)
        kv = store.get(SPACE.table(operation.table).history(operation))
        return kv.exists and decode(kv.value, HistoryRecord, kv.key).outcome == "success"

    def uuid(self, store: Store, table: str) -> str:
        return self._tables[SPACE.table(table).prefix].uuid(store)


class _Table(TableLaws):
    """The laws of the model for one table, while it exists."""

    def __init__(self, keys: TableKeys, processes: Mapping[str, Process]) -> None:
        super().__init__([], keys)
        self._processes = processes
        self.removed: set[tuple[str, str]] = set()
        """Operations, and attempts at their jobs whose files are gone."""

    def changed(self, who: str, before: Store, after: Store) -> str | None:
        """What is wrong with a change."""
        if not self.exists(before) or not self.exists(after):
            self.removed.clear()  # another table of this name has operations of the same names
            return None
        return self.moved(before, after, who, _NO_REQUEST) or self.invariant(after)

    def exists(self, store: Store) -> bool:
        return store.get(self._keys.table).exists

    def uuid(self, store: Store) -> str:
        kv = store.get(self._keys.table)
        return decode(kv.value, TableRecord, kv.key).uuid if kv.exists else ""

    def ended(self, store: Store, operation: OperationId) -> bool:
        """Whether it has an end that is remembered, or so many came after it that it is not any more."""
        newest = store.get(self._keys.next_instance(operation.type)).value
        return store.get(self._keys.history(operation)).exists or int(newest or 0) - operation.instance > 20

    def _has(self, who: str, lease: int) -> bool:
        process = self._processes.get(who)
        return process is not None and lease in process.leases

    @staticmethod
    def _token(attempt: str) -> int:
        return int(attempt.partition("-")[0])

    @staticmethod
    def _publishes(arg: OperationArg) -> bool:
        return arg.type in PUBLISHING

    def _is_removed(self, store: Store, operation: OperationId, attempt: str) -> bool:
        return (str(operation), attempt) in self.removed


_NO_REQUEST: Write = None  # type: ignore[assignment]  # the laws look at what stands before and after


def _table_prefix(key: bytes) -> bytes:
    return key[: key.find(b".", len(SPACE.prefix)) + 1]


def _written(message: Any) -> set[bytes]:
    """The keys that a transaction may put or delete."""
    keys = set[bytes]()
    for branch in (message.success, message.failure):
        for op in branch:
            match op.WhichOneof("request"):
                case "request_put":
                    keys.add(op.request_put.key)
                case "request_delete_range":
                    keys.add(op.request_delete_range.key)
                case "request_txn":
                    keys |= _written(op.request_txn)
    return {key for key in keys if not key.startswith(SPACE.prefix + b"_never")}


def _text(key: bytes) -> str:
    return key.decode(errors="backslashreplace")
