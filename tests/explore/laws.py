"""What must hold whatever happens: the invariants of the design, as functions of what stands in etcd.

- A job has at most one result; there is none after the seal, and none of a run that is over.
- An operation has one end. What it publishes and its watermarks change together, in the transaction that ends
  it, and consist of the results that stood then. An operation that was cancelled publishes nothing.
- Each commit builds on the one before it: none is lost, none is there twice. Watermarks never go back.
- Nothing starts beside what it is incompatible with, twice for one run, or with a number that was
  used before. A plan is never older than the state that its operation starts from.
- Only who leads the table ends its operations; only who runs an operation, and owns the job if that can be
  owned, adds results. What somebody has nobody else takes, and nobody takes what is paused. Nothing is
  written of an operation that is over.
- An answer that somebody got stays true.
- Nothing rests without an end while somebody is there to bring it about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from distop.metastore.etcd.txn import KeyValue
from distop.metastore.operations.jobs import FAILED
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import (
    ABORTING,
    COMMITTING,
    RUNNING,
    ClaimRecord,
    HistoryRecord,
    JobRecord,
    OperationArg,
)
from distop.metastore.records.record import decode
from distop.metastore.records.table import TableRecord, running_operations
from distop.metastore.records.watermarks import Chunks, Marks, decode_recent
from explore.process import Write
from explore.search import Actor
from explore.store import Entry, Store
from explore.table import KEYS, PARTITION, REMOVED, SOURCE, entry_of, is_parked, line, operations

_OF_OPERATION = rb"(%s([a-z]+)\.(\d+))\.(?:(\d+)\.)?([a-z]+)"
_HISTORY = rb"%shistory\.([a-z]+)\.(\d+)"
_ALLOWED = {
    (b"", RUNNING),
    (b"", COMMITTING),
    (RUNNING, COMMITTING),
    (RUNNING, ABORTING),
    (COMMITTING, ABORTING),
    (COMMITTING, b""),
    (ABORTING, b""),
}
_KINDS = {"coordinator": "leader"}
SILENT = "silent", "failing"
"""Types that publish nothing."""


class Broken(Exception):
    """A law does not hold."""


class TableLaws:
    """The laws of a table, for these actors."""

    def __init__(self, actors: list[Actor], keys: TableKeys = KEYS) -> None:
        self._leases = {actor.name: actor.lease for actor in actors}
        self._keys = keys
        prefix = re.escape(keys.prefix)
        self._of_operation, self._history = re.compile(_OF_OPERATION % prefix), re.compile(_HISTORY % prefix)

    def _has(self, who: str, lease: int) -> bool:
        """Whether a process has this lease."""
        return self._leases.get(who) == lease

    @staticmethod
    def _token(attempt: str) -> int:
        """The run that an attempt belongs to."""
        return int(attempt.partition("@")[2])

    @staticmethod
    def _publishes(arg: OperationArg) -> bool:
        """Whether operations of this type add an entry to the line."""
        return arg.type not in SILENT

    def _is_removed(self, store: Store, operation: OperationId, attempt: str) -> bool:
        """Whether the files of an attempt are gone."""
        return store.get(REMOVED + f"{operation}.{attempt}".encode()).exists

    def moved(self, before: Store, after: Store, who: str, request: Write) -> str | None:
        changed = [
            key
            for key, entry in after.entries.items()
            if (old := before.entries.get(key)) is not entry and old != entry
        ]
        try:
            self._moved(_Change(before, after, who, changed))
        except Broken as error:
            return str(error)
        return None

    def _moved(self, change: _Change) -> None:
        before, after = change.before, change.after
        published: set[str] = set()
        for key in change.changed:
            if (match := self._of_operation.fullmatch(key)) is not None:
                keys = self._keys.operation(self._operation(match[2], match[3]))
                if after.get(key).exists and not after.get(keys.state).exists:
                    raise Broken(f"{change.who} writes {_text(key)} of an operation that is over")
                if match[4] is not None and match[5] == b"state":
                    self._marked(change, keys, before.get(key), after.get(key))
                elif match[4] is None and match[5] == b"state":
                    self._state_moved(change, keys, before.get(key), after.get(key))
                elif match[5] in (b"runner", b"claim") and before.get(key).exists and after.get(key).exists:
                    if before.get(key).lease != after.get(key).lease:
                        raise Broken(f"{change.who} takes {_text(key)}, which somebody has")
                elif match[5] == b"runner" and after.get(key).exists and before.get(keys.pause).exists:
                    raise Broken(f"{change.who} takes {keys.operation}, which is paused")
                elif match[4] is None and match[5] == b"arg" and after.get(key).exists:
                    self._started(change, keys, before.get(key), after.get(key))
            elif (ended := self._history.fullmatch(key)) is not None:
                published |= self._ended(change, self._operation(ended[1], ended[2]))
            elif key.startswith(REMOVED):
                operation, attempt = key[len(REMOVED) :].decode().rsplit(".", 1)
                if self._counts(after, operation, attempt):
                    raise Broken(f"{change.who} removes the files of {attempt}, whose result counts")
        self._published(change, published)

    def _marked(self, change: _Change, keys: OperationKeys, old: KeyValue, new: KeyValue) -> None:
        if not new.exists:
            return
        record = decode(new.value, JobRecord, new.key)
        if old.exists:
            raise Broken(f"{_text(new.key)} has a result, and gets another one, of {record.attempt}")
        state = change.before.get(keys.state).value
        if state != RUNNING:
            raise Broken(
                f"{record.attempt} marks a job of {keys.operation}, which is {state.decode() or 'over'}"
            )
        token = self._token(record.attempt)
        if change.before.get(keys.runner).create_revision != token:
            raise Broken(f"{record.attempt} marks a job of {keys.operation} under a run that is over")
        arg = decode(change.before.get(keys.arg).value, OperationArg, keys.arg)
        # A runner gives up jobs that no launch could run: they have failed, whoever owns them.
        is_given_up = record.state == FAILED and "-runner-" in record.attempt
        if arg.exclusive and not is_given_up:
            claim = change.before.get(new.key.removesuffix(b"state") + b"claim")
            if not claim.exists or decode(claim.value, ClaimRecord, claim.key).attempt != record.attempt:
                raise Broken(f"{record.attempt} marks a job of {keys.operation} that it does not own")

    def _state_moved(self, change: _Change, keys: OperationKeys, old: KeyValue, new: KeyValue) -> None:
        if (old.value, new.value) not in _ALLOWED:
            raise Broken(f"the state of {keys.operation} goes from {old.value!r} to {new.value!r}")
        if old.exists:
            self._leads(change, f"moves {keys.operation} from {old.value.decode()}")
        elif new.value == COMMITTING:
            arg = decode(change.after.get(keys.arg).value, OperationArg, keys.arg)
            if arg.partition_count or arg.dynamic:
                raise Broken(f"{keys.operation} is sealed from its start, and has jobs")
        if not new.exists and not change.after.get(self._keys.history(keys.operation)).exists:
            raise Broken(f"{keys.operation} vanishes without an end")

    def _leads(self, change: _Change, act: str) -> None:
        leader = change.before.get(self._keys.coordinator)
        if not leader.exists or not self._has(change.who, leader.lease):
            raise Broken(f"{change.who} {act}, and does not lead the table")

    def _started(self, change: _Change, keys: OperationKeys, old: KeyValue, new: KeyValue) -> None:
        before, operation = change.before, keys.operation
        if keys.arg in before.entries:
            raise Broken(f"{operation} starts, and was there before")
        arg = decode(new.value, OperationArg, new.key)
        planned_on, now = arg.argument["on"], line(before.get(self._keys.head).value)
        if planned_on != now:
            raise Broken(f"{operation} starts with a plan that was made on {planned_on!r}, and finds {now!r}")
        marks = self._marks(before)
        for source, moves in arg.watermarks.items():
            for partition, move in moves.items():
                if move.before != marks.value(source, partition):
                    raise Broken(f"{operation} starts with a plan from a watermark that has moved")
        for kv in change.after.under(self._keys.history_prefix):
            if self._history.fullmatch(kv.key) and decode(kv.value, HistoryRecord, kv.key).run == arg.run:
                raise Broken(f"request {arg.run} makes {operation}, and has made {_text(kv.key)}")

    def _ended(self, change: _Change, operation: OperationId) -> set[str]:
        """The entry that it adds to the line, if it does."""
        before, after = change.before, change.after
        keys, key = self._keys.operation(operation), self._keys.history(operation)
        if not after.get(key).exists:
            return set()
        if before.get(key).exists:
            raise Broken(f"{operation} ends twice")
        self._leads(change, f"ends {operation}")
        record = decode(after.get(key).value, HistoryRecord, key)
        if record.outcome != "success":
            return set()
        if before.get(keys.cancel).exists:
            raise Broken(f"{operation} was cancelled, and succeeds")
        arg = decode(before.get(keys.arg).value, OperationArg, keys.arg)
        if before.get(keys.state).value != COMMITTING:
            raise Broken(f"{operation} is published without a seal")
        jobs = {
            name: decode(kv.value, JobRecord, kv.key)
            for name in arg.partition_names()
            if (kv := before.get(keys.job_state(name))).exists
        }
        if len(jobs) != arg.partition_count:
            raise Broken(f"{operation} succeeds with {len(jobs)} of {arg.partition_count} results")
        for name, job in jobs.items():
            if self._is_removed(after, operation, job.attempt):
                raise Broken(f"{operation} publishes {name} by {job.attempt}, whose files are gone")
        moved = arg.watermarks.get(SOURCE, {}).get(PARTITION)
        if moved is not None and self._watermark(after) != moved.after:
            raise Broken(f"{operation} succeeds, and its watermark is not {moved.after}")
        return {entry_of(str(operation), jobs)} if self._publishes(arg) else set()

    def _published(self, change: _Change, published: set[str]) -> None:
        before, after = change.before, change.after
        old, new = (line(store.get(self._keys.head).value).split() for store in (before, after))
        if new[: len(old)] != old:
            raise Broken(f"{change.who} loses a commit: {' '.join(old)!r} becomes {' '.join(new)!r}")
        added = new[len(old) :]
        if change.who.startswith("foreign"):
            allowed = {f"foreign/{change.who.partition('-')[2]}"}
        else:
            allowed = published
            if set(added) != published:
                raise Broken(f"{change.who} ends {published or 'nothing'}, and publishes {added}")
        if len(added) > 1 or set(added) - allowed or set(added) & set(old):
            raise Broken(f"{change.who} adds {added} to {old}")
        marks = [self._watermark(store) for store in (before, after)]
        if marks[0] != marks[1]:
            if not published:
                raise Broken(f"{change.who} moves a watermark and publishes nothing")
            if int(marks[1] or 0) != int(marks[0] or 0) + 1:
                raise Broken(f"the watermark goes from {marks[0]} to {marks[1]}")

    def invariant(self, store: Store) -> str | None:
        run_ops = store.get(self._keys.run_ops).value
        listed = {str(operation) for operation in running_operations(self._keys.name, run_ops)}
        living = {
            str(keys.operation) for keys in operations(store, self._keys) if store.get(keys.state).exists
        }
        if listed != living:
            return f"runOps names {sorted(listed)}, and {sorted(living)} have a state"
        if sum("/overwrite/" in name for name in listed) > 1:
            return f"two run that may not run together: {sorted(listed)}"
        return None

    def at_end(self, store: Store, outcomes: dict[str, Any]) -> str | None:
        try:
            self._at_end(store, outcomes)
        except Broken as error:
            return str(error)
        return None

    def _at_end(self, store: Store, outcomes: dict[str, Any]) -> None:
        entries = line(store.get(self._keys.head).value).split()
        left = operations(store, self._keys)
        for who, outcome in outcomes.items():
            kind, _, number = who.partition("-")
            if kind == "foreign" and outcome in ("done", "lost"):
                times = entries.count(f"foreign/{number}")
                if times != (outcome == "done"):
                    raise Broken(f"{who} was answered {outcome!r}, and is there {times} times")
            elif kind == "starter" and isinstance(outcome, str) and outcome.startswith("t/"):
                operation = OperationId.parse(outcome)
                ended = store.get(self._keys.history(operation)).exists
                if not ended and operation not in [keys.operation for keys in left]:
                    raise Broken(f"{who} was answered that {outcome} runs, which never did")
            elif kind == "canceller" and isinstance(outcome, str) and outcome.endswith(" cancelled"):
                kv = store.get(self._keys.history(OperationId.parse(outcome.split()[0])))
                if kv.exists and decode(kv.value, HistoryRecord, kv.key).outcome != "cancelled":
                    raise Broken(f"{outcome}, and it ended otherwise")
            elif kind == "resolver" and isinstance(outcome, str) and outcome.endswith(" aborted"):
                kv = store.get(self._keys.history(OperationId.parse(outcome.split()[0])))
                if kv.exists and decode(kv.value, HistoryRecord, kv.key).outcome == "success":
                    raise Broken(f"{outcome}, and it succeeded")
            elif kind == "attempt" and isinstance(outcome, str) and outcome.endswith(" won"):
                name, attempt, _ = outcome.split()
                kv = store.get(self._keys.history(OperationId.parse(name)))
                if not kv.exists or decode(kv.value, HistoryRecord, kv.key).outcome != "success":
                    continue
                begins = name.removeprefix(f"{self._keys.name}/") + "["
                if not any(entry.startswith(begins) and f":{attempt}" in entry for entry in entries):
                    raise Broken(f"{who} was answered that it has won, and {name} is published without it")
        waiting = {
            who.partition("-")[0] for who, at in outcomes.items() if at is None and self._alive(store, who)
        }
        for keys in left:
            if is_parked(store, keys) and not self._aborts(store, keys):
                continue  # whoever could decide has met a fault
            jobs_done = self._jobs_done(store, keys)
            needed = {"leader"} if jobs_done or self._aborts(store, keys) else {"leader", "runner", "attempt"}
            # By somebody whose call to resume it has no answer.
            held = store.get(keys.pause).exists and outcomes.get("pauser") != f"{keys.operation} resumed"
            if needed <= waiting and not held and not self._waits_for_a_slot(store, keys, outcomes):
                raise Broken(f"nothing moves, and {keys.operation} has no end")

    def _alive(self, store: Store, who: str) -> bool:
        lease = self._leases[who]
        return not lease or lease in store.leases

    @staticmethod
    def _aborts(store: Store, keys: OperationKeys) -> bool:
        return store.get(keys.state).value in (ABORTING, b"") or store.get(keys.cancel).exists

    @staticmethod
    def _jobs_done(store: Store, keys: OperationKeys) -> bool:
        arg = decode(store.get(keys.arg).value, OperationArg, keys.arg)
        return all(store.get(keys.job_state(name)).exists for name in arg.partition_names())

    @staticmethod
    def _waits_for_a_slot(store: Store, keys: OperationKeys, outcomes: dict[str, Any]) -> bool:
        """Whether the slots for one of its open jobs have all come to an end."""
        open_ = [who for who, at in outcomes.items() if who.startswith("attempt") and at is not None]
        return bool(open_)

    def _operation(self, kind: bytes, number: bytes) -> OperationId:
        return OperationId(self._keys.name, kind.decode(), int(number))

    def _marks(self, store: Store) -> Marks:
        """The watermarks, whether they were folded or not."""
        table = store.get(self._keys.table)
        folded = self._keys.keyspace.watermark_chunks(decode(table.value, TableRecord, table.key).uuid)

        def fetch(positions: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
            chunks = [(kv.key.removeprefix(folded), kv.value) for kv in store.under(folded)]
            return [next((chunk for chunk in chunks if chunk[0] >= at), None) for at in positions]

        return Marks(decode_recent(store.get(self._keys.watermarks).value), Chunks(fetch))

    def _watermark(self, store: Store) -> str | None:
        return self._marks(store).value(SOURCE, PARTITION)

    def _counts(self, store: Store, operation: str, attempt: str) -> bool:
        """Whether the result of an attempt is published, or will be."""
        named = OperationId.parse(operation)
        entries = line(store.get(self._keys.head).value)
        if f":{attempt}" in entries:
            return f"{operation.partition('/')[2]}[" in entries
        keys = self._keys.operation(named)
        return any(
            decode(kv.value, JobRecord, kv.key).attempt == attempt
            for kv in store.under(keys.prefix)
            if kv.key.endswith(b".state") and kv.key != keys.state
        )


class _Change:
    def __init__(self, before: Store, after: Store, who: str, changed: list[bytes]) -> None:
        self.before, self.after, self.who, self.changed = before, after, who, changed


def _text(key: bytes) -> str:
    return key.decode()


__all__ = ["Broken", "Entry", "TableLaws"]
