"""A model of etcd: what its keys hold, as a value, and what a transaction makes of it.

A :class:`Store` is never changed; a transaction makes another one. So a search can keep thousands of them, go
back to any, and tell equal ones by their hash. It knows what the product uses of etcd: compares of value,
create and mod revision, nested transactions, ranges, leases.

Two ways to number changes. *Exact*: as etcd does, one number for each transaction that writes. *Causal*: one
more than the highest revision of the keys that the transaction has compared, read or written. Then two
transactions that have no key in common lead to the same store in either order, and a search meets far fewer
different ones. What the product may tell from revisions is the same, as long as it compares only revisions of
keys that have met in a transaction: it does (fences, tokens and "is this as I read it" are of one key).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from distop.errors import InvalidArgument, LeaseLost
from distop.metastore.etcd.client import RangePage
from distop.metastore.etcd.txn import Compare, DeleteRange, Get, KeyValue, OpResult, Put, Txn, TxnResult
from distop.metastore.records.names import prefix_end


class Entry(NamedTuple):
    """What stands at a key. Without a value: it was deleted at ``mod``, which only its next writer sees."""

    value: bytes | None
    create: int
    mod: int
    lease: int


_NOTHING = Entry(None, 0, 0, 0)


@dataclass(frozen=True, eq=False)
class Store:
    """All keys at one moment."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    revision: int = 1
    leases: frozenset[int] = frozenset()
    """Those that live."""
    causal: bool = False

    @cached_property
    def key(self) -> int:
        """Equal for equal stores: 64 bits, of which two different ones are not equal by chance."""
        number = 0 if self.causal else self.revision
        return hash((number, self.leases, frozenset(self.entries.items())))

    @cached_property
    def _sorted(self) -> list[bytes]:
        return sorted(key for key, entry in self.entries.items() if entry.value is not None)

    def get(self, key: bytes) -> KeyValue:
        """One key; :meth:`KeyValue.missing` if nothing stands there."""
        entry = self.entries.get(key, _NOTHING)
        return KeyValue.missing(key) if entry.value is None else _key_value(key, entry)

    def under(self, prefix: bytes) -> Iterator[KeyValue]:
        """Everything that begins so, in key order."""
        return (self.get(key) for key in self._keys(prefix, prefix_end(prefix)))

    def compared(self, compare: Compare) -> list[KeyValue]:
        """What a compare looks at: an empty range is as a key that does not exist."""
        kvs = [self.get(key) for key in self._keys(compare.key, compare.end)]
        return kvs or [KeyValue.missing(compare.key)]

    def page(self, get: Get, *, newest_first: bool = False, backwards: bool = False) -> RangePage:
        """What a read of a key or range finds."""
        kvs = [self.get(key) for key in self._keys(get.key, get.end)]
        if newest_first:
            kvs.sort(key=lambda kv: kv.mod_revision, reverse=True)
        elif backwards:
            kvs.reverse()
        some = kvs[: get.limit] if get.limit else kvs
        if get.keys_only:
            some = [KeyValue(kv.key, b"", kv.mod_revision, kv.create_revision, kv.lease) for kv in some]
        revision = self._latest([(get.key, get.end)]) if self.causal else self.revision
        return RangePage(some, revision, len(some) < len(kvs), len(kvs))

    def _keys(self, start: bytes, end: bytes) -> list[bytes]:
        if not end:
            entry = self.entries.get(start)
            return [start] if entry is not None and entry.value is not None else []
        return self._sorted[bisect_left(self._sorted, start) : bisect_left(self._sorted, end)]

    def _latest(self, ranges: list[tuple[bytes, bytes]]) -> int:
        latest = 1
        for start, end in ranges:
            if not end:
                latest = max(latest, self.entries.get(start, _NOTHING).mod)
            else:
                latest = max(
                    latest, *(entry.mod for key, entry in self.entries.items() if start <= key < end), 1
                )
        return latest

    def apply(self, txn: Txn, past: Past | None = None) -> tuple[Store, TxnResult]:
        """The store after a transaction, and its result. ``past`` returns earlier stores, if the transaction
        reads at a revision.

        Raises
        ------
        InvalidArgument
            It may write a key twice.
        LeaseLost
            It puts under a lease that has ended.
        """
        check_written_once(txn)
        taken, touched = _chosen(txn, self)
        revision = (self._latest(touched) if self.causal else self.revision) + 1
        after = Store(dict(self.entries), self.revision, self.leases, self.causal)
        result, changed = _done(txn, taken, after, revision, past)
        if not changed:
            return self, _at(result, revision - 1)
        return self._with(after.entries, revision), _at(result, revision)

    def apply_put(self, key: bytes, value: bytes) -> Store:
        """The same with one key more, or another value of it."""
        return self.apply(Txn(then=(Put(key, value),)))[0]

    def grant(self, lease: int) -> Store:
        """The same with one lease more."""
        return Store(self.entries, self.revision, self.leases | {lease}, self.causal)

    def bound(self, lease: int) -> list[bytes]:
        """The keys that were put under a lease."""
        return [kv.key for kv in map(self.get, self._sorted) if kv.lease == lease]

    def expire(self, lease: int) -> Store:
        """A lease ends: what was put under it is gone."""
        ended = self.bound(lease)
        left = Store(self.entries, self.revision, self.leases - {lease}, self.causal)
        if not ended:
            return left
        revision = (self._latest([(key, b"") for key in ended]) if self.causal else self.revision) + 1
        gone = Entry(None, 0, revision, 0)
        return left._with({**self.entries, **dict.fromkeys(ended, gone)}, revision)

    def _with(self, entries: dict[bytes, Entry], revision: int) -> Store:
        if not self.causal:
            entries = {key: entry for key, entry in entries.items() if entry.value is not None}
        return Store(entries, max(self.revision, revision), self.leases, self.causal)


Past = Callable[[int], "Store"]
"""What stood at a revision; raises what etcd says if that is not known."""

_Taken = dict[int, bool]
"""Whether the compares of a transaction hold, by its ``id``."""


def _chosen(txn: Txn, store: Store) -> tuple[_Taken, list[tuple[bytes, bytes]]]:
    """Which branches are taken: all compares, also those of nested transactions, look at what stood before
    any of it. And the keys and ranges that it looks at or writes."""
    holds = all(compare.holds(kv) for compare in txn.compares for kv in store.compared(compare))
    taken, touched = {id(txn): holds}, [(compare.key, compare.end) for compare in txn.compares]
    for op in txn.then if holds else txn.otherwise:
        if isinstance(op, Txn):
            inner_taken, inner_touched = _chosen(op, store)
            taken |= inner_taken
            touched += inner_touched
            continue
        if isinstance(op, Put) and op.lease and op.lease not in store.leases:
            raise LeaseLost()
        touched.append((op.key, b"" if isinstance(op, Put) else op.end))
    return taken, touched


def _done(txn: Txn, taken: _Taken, after: Store, revision: int, past: Past | None) -> tuple[TxnResult, bool]:
    """Its answer, and whether it has written; ``after`` is written in place."""
    results: list[OpResult] = []
    counts: list[int] = []
    changed = False
    for op in txn.then if taken[id(txn)] else txn.otherwise:
        count = 0
        match op:
            case Txn():
                inner, wrote = _done(op, taken, after, revision, past)
                results.append(inner)
                changed |= wrote
            case Put():
                before = after.entries.get(op.key, _NOTHING)
                create = revision if before.value is None else before.create
                after.entries[op.key] = Entry(op.value, create, revision, op.lease)
                results.append(None)
                changed = True
            case DeleteRange():
                victims = after._keys(op.key, op.end)
                after.entries.update(dict.fromkeys(victims, Entry(None, 0, revision, 0)))
                results.append(len(victims))
                changed |= bool(victims)
            case Get():
                page = (past(op.revision) if op.revision and past is not None else after).page(op)
                results.append(page.kvs)
                count = page.count
        counts.append(count)
        if changed:
            after.__dict__.pop("_sorted", None)
    return TxnResult(taken[id(txn)], revision, tuple(results), tuple(counts)), changed


def _at(result: TxnResult, revision: int) -> TxnResult:
    results = tuple(_at(each, revision) if isinstance(each, TxnResult) else each for each in result.results)
    return TxnResult(result.succeeded, revision, results, result.counts)


def _key_value(key: bytes, entry: Entry) -> KeyValue:
    return KeyValue(key, entry.value or b"", entry.mod, entry.create, entry.lease)


def check_written_once(txn: Txn) -> None:
    """etcd refuses a transaction of which one branch may write a key twice.

    Two deletes of one key are fine. Branches of one transaction exclude each other.
    """
    _written(txn)


def _written(txn: Txn) -> tuple[set[bytes], list[DeleteRange]]:
    """What either of its branches may put and delete."""
    all_puts: set[bytes] = set()
    all_deletes: list[DeleteRange] = []
    for branch in (txn.then, txn.otherwise):
        puts: set[bytes] = set()
        deletes = [op for op in branch if isinstance(op, DeleteRange)]
        for op in branch:
            if isinstance(op, Txn):
                inner_puts, inner_deletes = _written(op)
                # What a later one deletes of an earlier one's puts, etcd does not look at.
                if puts & inner_puts or _hit(inner_puts, deletes):
                    raise _twice()
                puts |= inner_puts
                deletes += inner_deletes
        for op in branch:
            if isinstance(op, Put):
                if op.key in puts or _hit({op.key}, deletes):
                    raise _twice()
                puts.add(op.key)
        all_puts |= puts
        all_deletes += deletes
    return all_puts, all_deletes


def _hit(puts: set[bytes], deletes: list[DeleteRange]) -> bool:
    return any(
        delete.key == key if not delete.end else delete.key <= key < delete.end
        for delete in deletes
        for key in puts
    )


def _twice() -> InvalidArgument:
    return InvalidArgument("etcd refuses a transaction that may write a key twice")
