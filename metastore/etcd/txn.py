"""A transaction of etcd as a value, and the keys that one reads.

``Txn(compares, then, otherwise)`` is built first, inspected, merged with others, and sent later. The small
constructors read like the sentence in the design: *if the key is absent and the lease is held, then put
the key*. Source: etcd's ``Txn`` RPC (API reference, "KV").
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeAlias, TypeVar, final

import msgspec

from distop.errors import CorruptRecord

log = logging.getLogger(__name__)

MAX_OPS = 128
"""etcd's default ``--max-txn-ops``: compares, successes or failures of one transaction plus nested ones."""

MAX_REQUEST_BYTES = 1_500_000
"""A little under etcd's default ``--max-request-bytes`` (1.5 MiB), which includes the envelope."""

Target: TypeAlias = Literal["mod", "create", "value"]


T = TypeVar("T")


class KeyValue(msgspec.Struct, frozen=True, gc=False):
    """One key at some revision. ``mod_revision`` 0 means that it did not exist."""

    key: bytes
    value: bytes
    mod_revision: int
    create_revision: int
    lease: int = 0

    @property
    def exists(self) -> bool:
        return self.mod_revision > 0

    @classmethod
    def missing(cls, key: bytes) -> KeyValue:
        """The key, if it does not exist."""
        return cls(key, b"", 0, 0)


class Compare(msgspec.Struct, frozen=True, gc=False):
    """``key``'s ``target`` equals ``expected`` (bytes for values, an integer for revisions).

    With ``end``: of every key from ``key`` to (without) ``end``.
    """

    key: bytes
    target: Target
    expected: int | bytes
    end: bytes = b""

    def holds(self, kv: KeyValue) -> bool:
        """Whether it holds for the key as read."""
        match self.target:
            case "mod":
                return self.expected == kv.mod_revision
            case "create":
                return self.expected == kv.create_revision
            case "value":
                return kv.exists and self.expected == kv.value


@final
class Put(msgspec.Struct, frozen=True, gc=False):
    key: bytes
    value: bytes
    lease: int = 0


@final
class DeleteRange(msgspec.Struct, frozen=True, gc=False):
    """Delete ``key``, or the range from ``key`` to (without) ``end``."""

    key: bytes
    end: bytes = b""


@final
class Get(msgspec.Struct, frozen=True, gc=False):
    """Read ``key``, or the range from ``key`` to (without) ``end``, as of ``revision`` (0: now)."""

    key: bytes
    end: bytes = b""
    keys_only: bool = False
    limit: int = 0
    revision: int = 0


@final
class Txn(msgspec.Struct, frozen=True):
    """If all ``compares`` hold do ``then``, else do ``otherwise``; atomically, at one revision."""

    compares: tuple[Compare, ...] = ()
    then: tuple[Op, ...] = ()
    otherwise: tuple[Op, ...] = ()
    lane: bytes = b""
    """A prefix of keys. If it touches nothing but these and their entries in indexes
    (:meth:`Keyspace.is_in_lane`), it may be batched with transactions of other lanes. Empty: it is sent
    alone."""

    def __add__(self, other: Txn) -> Txn:
        """Both at once: all compares of both must hold for either to happen."""
        lane = self.lane or other.lane
        return Txn(
            self.compares + other.compares, self.then + other.then, self.otherwise + other.otherwise, lane
        )

    def weight(self) -> int:
        """Its size for :data:`MAX_OPS`: the widest list, plus the widest nested transaction in it."""
        nested = 0
        for ops in (self.then, self.otherwise):
            for op in ops:
                if type(op) is Txn:
                    nested = max(nested, op.weight())
        return max(len(self.compares), len(self.then), len(self.otherwise)) + nested

    def ranges(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys that it compares, reads or writes: each with the end of its range, empty for a key."""
        for compare in self.compares:
            yield compare.key, compare.end
        for op in (*self.then, *self.otherwise):
            if type(op) is Txn:
                yield from op.ranges()
            elif type(op) is Put:
                yield op.key, b""
            else:
                yield op.key, op.end

    def writes(self) -> bool:
        """Whether it may change anything."""
        ops = (*self.then, *self.otherwise)
        return any(op.writes() if isinstance(op, Txn) else not isinstance(op, Get) for op in ops)

    def size(self) -> int:
        """Bytes of its keys and values, for the limit of a request."""
        total = 0
        for compare in self.compares:
            expected = compare.expected
            total += len(compare.key) + len(compare.end) + (len(expected) if type(expected) is bytes else 8)
        for ops in (self.then, self.otherwise):
            for op in ops:
                if type(op) is Put:
                    total += len(op.key) + len(op.value)
                elif type(op) is Txn:
                    total += op.size()
                else:
                    total += len(op.key) + len(op.end)
        return total


Op: TypeAlias = Put | DeleteRange | Get | Txn


class TxnResult(msgspec.Struct, frozen=True):
    """The result of a transaction.

    ``succeeded`` says which branch ran; ``results`` holds one entry per operation of that branch: the keys
    found for a :class:`Get`, the number deleted for a :class:`DeleteRange`, a nested result for a
    :class:`Txn`, ``None`` for a :class:`Put`.
    """

    succeeded: bool
    revision: int
    results: tuple[OpResult, ...] = ()
    counts: tuple[int, ...] = ()
    """For each :class:`Get`, the number of keys in its range, which determines its cost in etcd."""

    def got(self, index: int) -> list[KeyValue]:
        """The keys found by the ``index``-th operation, which was a :class:`Get`."""
        result = self.results[index]
        assert isinstance(result, list)
        return result

    def nested(self, index: int) -> TxnResult:
        """The result of the ``index``-th operation, which was a :class:`Txn`."""
        result = self.results[index]
        assert isinstance(result, TxnResult)
        return result

    def single(self, index: int, key: bytes) -> KeyValue:
        """The key read by the ``index``-th operation; :meth:`KeyValue.missing` if it did not exist."""
        kvs = self.got(index)
        return kvs[0] if kvs else KeyValue.missing(key)

    def each(self, keys: Iterable[bytes]) -> list[KeyValue]:
        """The keys that the first operations read, one by each; as :meth:`single`."""
        return [self.single(index, key) for index, key in enumerate(keys)]


OpResult: TypeAlias = list[KeyValue] | int | TxnResult | None


# -- the vocabulary of compares ----------------------------------------------------------------------


def absent(key: bytes) -> Compare:
    """``key`` does not exist."""
    return Compare(key, "create", 0)


def absent_range(start: bytes, end: bytes) -> Compare:
    """No key exists from ``start`` to (without) ``end``."""
    return Compare(start, "create", 0, end)


def unchanged(kv: KeyValue) -> Compare:
    """The key is as it was read; a missing one is still missing."""
    return Compare(kv.key, "mod", kv.mod_revision)


def equals(key: bytes, value: bytes) -> Compare:
    """``key`` exists and holds exactly ``value``."""
    return Compare(key, "value", value)


def created_at(key: bytes, revision: int) -> Compare:
    """``key`` is the one created at ``revision``: not deleted, not created again. The fence of leases."""
    return Compare(key, "create", revision)


class Skipped:
    """How often this process has skipped a key, for Prometheus; one that stays is met again and again."""

    count = 0


def named(kvs: Iterable[KeyValue], parse: Callable[[bytes], T]) -> Iterator[tuple[T, KeyValue]]:
    """What each key names, with the key; without those for which ``parse`` raises
    :class:`~distop.errors.CorruptRecord`: a key that cannot be read hides no other one."""
    for kv in kvs:
        try:
            yield parse(kv.key), kv
        except CorruptRecord as error:
            Skipped.count += 1
            log.warning("key_unreadable", extra={"error": str(error)})
