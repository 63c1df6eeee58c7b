"""Transactions as values: merging, and what counts against etcd's limits."""

from hypothesis import given
from hypothesis import strategies as st

from distop.metastore.etcd.txn import (
    Compare,
    DeleteRange,
    Get,
    KeyValue,
    Op,
    Put,
    Txn,
    TxnResult,
    absent,
    absent_range,
    created_at,
    equals,
    unchanged,
)

KEYS = st.binary(min_size=1, max_size=20)
COMPARES = st.one_of(
    st.builds(absent, KEYS),
    st.builds(equals, KEYS, st.binary()),
    st.builds(created_at, KEYS, st.integers(1)),
    st.builds(absent_range, KEYS, KEYS),
)
OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(Put, KEYS, st.binary()), st.builds(DeleteRange, KEYS, KEYS), st.builds(Get, KEYS)
)


def txns(ops: st.SearchStrategy[Op]) -> st.SearchStrategy[Txn]:
    lists = st.lists(ops, max_size=5).map(tuple)
    return st.builds(Txn, st.lists(COMPARES, max_size=5).map(tuple), lists, lists)


FLAT = txns(OPS)
NESTED = txns(st.one_of(OPS, FLAT))


@given(FLAT, FLAT)
def test_a_sum_needs_all_compares_and_does_all_operations_in_order(one: Txn, other: Txn) -> None:
    """O2: check and effect of several parties are one transaction."""
    both = one + other
    assert both.compares == one.compares + other.compares
    assert both.then == one.then + other.then
    assert both.otherwise == one.otherwise + other.otherwise
    assert both.size() == one.size() + other.size()
    assert one + Txn() == Txn() + one == one


@given(NESTED)
def test_weight_is_what_etcd_counts(txn: Txn) -> None:
    """O5: etcd checks each level against what the levels above it have left over."""

    def fits(level: Txn, left: int) -> bool:
        widest = max(len(level.compares), len(level.then), len(level.otherwise))
        inner = [op for op in (*level.then, *level.otherwise) if isinstance(op, Txn)]
        return widest <= left and all(fits(op, left - widest) for op in inner)

    assert fits(txn, txn.weight())
    assert txn.weight() == 0 or not fits(txn, txn.weight() - 1)


@given(NESTED)
def test_size_counts_every_byte_of_keys_and_values(txn: Txn) -> None:
    """O5: nothing in a transaction escapes the limit of a request."""

    def total(level: Txn) -> int:
        count = 0
        for compare in level.compares:
            count += len(compare.key) + len(compare.end)
            count += len(compare.expected) if isinstance(compare.expected, bytes) else 8
        for op in level.then + level.otherwise:
            match op:
                case Txn():
                    count += total(op)
                case Put():
                    count += len(op.key) + len(op.value)
                case DeleteRange() | Get():
                    count += len(op.key) + len(op.end)
        return count

    assert txn.size() == total(txn)


def test_the_vocabulary_of_compares() -> None:
    missing, there = KeyValue.missing(b"k"), KeyValue(b"k", b"v", 9, 5)
    assert absent(b"k") == Compare(b"k", "create", 0)
    assert unchanged(there) == Compare(b"k", "mod", 9)
    assert unchanged(missing) == Compare(b"k", "mod", 0), "of a missing key: still missing"
    assert equals(b"k", b"v") == Compare(b"k", "value", b"v")
    assert created_at(b"k", 5) == Compare(b"k", "create", 5)
    assert there.exists
    assert not missing.exists


def test_a_key_that_was_not_found_reads_as_missing() -> None:
    found = KeyValue(b"a", b"1", 3, 3)
    result = TxnResult(True, 7, ([found], []))
    assert result.single(0, b"a") == found
    assert result.single(1, b"b") == KeyValue.missing(b"b")
