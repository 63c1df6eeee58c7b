"""The model of etcd that `make explore` uses, against etcd itself: the same answers to the same requests."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient, RangePage
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Compare, DeleteRange, Get, Op, Put, Txn
from distop.metastore.records.names import prefix_end
from explore.store import Store

KEYS = [b"a", b"a.b", b"a.c", b"b", b"c"]
"""Below the prefix of the test."""
ALIVE, ENDED = 1, 2
"""Leases of the model; the etcd has others in their places."""

keys = st.sampled_from(KEYS)
ends = st.sampled_from([b"", b"", b"b", b"d", b"a"])
values = st.sampled_from([b"", b"1", b"2"])
ops: st.SearchStrategy[Op] = st.one_of(
    st.builds(Put, keys, values, st.sampled_from([0, 0, 0, ALIVE, ENDED])),
    st.builds(DeleteRange, keys, ends),
    st.builds(Get, keys, ends, st.booleans(), st.sampled_from([0, 1])),
)


def compares(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[Compare]:
    return st.one_of(
        st.builds(Compare, keys, st.sampled_from(["mod", "create"]), numbers),
        st.builds(Compare, keys, st.just("value"), values),
    )


# Revisions are those of the keys as they stand, by their place in KEYS, or none of any.
some_compares = st.lists(compares(st.integers(-1, len(KEYS) - 1)), max_size=2).map(tuple)
some_ops = st.lists(ops, max_size=3).map(tuple)


def made(compares: tuple[Compare, ...], then: tuple[Op, ...], otherwise: tuple[Op, ...]) -> Txn:
    """What is not compared has no other branch: the client leaves it out where the first one only reads."""
    return Txn(compares, then, otherwise if compares else ())


flat = st.builds(made, some_compares, some_ops, some_ops)
inner = flat.filter(lambda txn: txn != Txn())
nested = st.builds(
    made,
    some_compares,
    st.lists(st.one_of(ops, inner), max_size=3).map(tuple),
    st.lists(st.one_of(ops, inner), max_size=2).map(tuple),
)
"""Transactions, in which a revision is the number of a key: 0 for one that was never written."""


@pytest.fixture
def etcd(tmp_path: Path, prefix: str) -> Iterator[SyncEtcd]:
    """Of an etcd of its own: in a shared one leases of earlier tests end, and each counts a revision."""
    with EtcdProcess(tmp_path) as process:
        connected = SyncEtcd(EtcdConfig(endpoints=(process.endpoint,), prefix=prefix))
        yield connected
        connected.close()


class _Both:
    """An etcd and its model, which are asked the same."""

    def __init__(self, etcd: SyncEtcd) -> None:
        self.etcd, self.prefix = etcd, etcd.keyspace.prefix
        etcd.delete(self.prefix, prefix_end(self.prefix))
        self.leases = {
            0: 0,
            ALIVE: etcd.run(lambda client: client.lease_grant(60)),
            ENDED: etcd.run(lambda client: client.lease_grant(60)),
        }
        revision = etcd.run(lambda client: client.revision())
        self.model = Store(revision=revision).grant(self.leases[ALIVE]).grant(self.leases[ENDED])

    def end_lease(self, lease: int) -> None:
        self.etcd.run(lambda client: client.lease_revoke(self.leases[lease]))
        self.model = self.model.expire(self.leases[lease])

    def send(self, txn: Txn) -> None:
        txn = self._real(txn)
        said = _answer(lambda: self.etcd.txn(txn))
        modelled = _answer(lambda: self.model.apply(txn))
        if isinstance(modelled, tuple):
            self.model, modelled = modelled
        assert modelled == said

    def read(self) -> None:
        for how in ({}, {"backwards": True}, {"newest_first": True}):
            page = self.etcd.run(partial(_three_from, self.prefix, how))
            assert self.model.page(Get(self.prefix, prefix_end(self.prefix), limit=3), **how) == page

    def _real(self, txn: Txn) -> Txn:
        return Txn(
            tuple(map(self._compare, txn.compares)),
            tuple(map(self._op, txn.then)),
            tuple(map(self._op, txn.otherwise)),
        )

    def _compare(self, compare: Compare) -> Compare:
        expected = compare.expected
        if isinstance(expected, int):
            standing = self.model.get(self.prefix + KEYS[expected])
            expected = 0 if expected < 0 else getattr(standing, f"{compare.target}_revision")
        return Compare(self.prefix + compare.key, compare.target, expected)

    def _op(self, op: Op) -> Op:
        match op:
            case Txn():
                return self._real(op)
            case Put():
                return Put(self.prefix + op.key, op.value, self.leases[op.lease])
            case DeleteRange():
                return DeleteRange(self.prefix + op.key, op.end and self.prefix + op.end)
            case Get():
                return Get(self.prefix + op.key, op.end and self.prefix + op.end, op.keys_only, op.limit)


def _answer(call: Callable[[], Any]) -> Any:
    """What it returns, or the code of its error."""
    try:
        return call()
    except DistopError as error:
        return error.code


async def _three_from(prefix: bytes, how: dict[str, bool], client: EtcdClient) -> RangePage:
    return await client.get_range(prefix, prefix_end(prefix), limit=3, **how)


@settings(max_examples=80, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(flat, nested), min_size=1, max_size=12), st.integers(0, 12))
def test_the_model_answers_as_etcd_does(etcd: SyncEtcd, sent: list[Txn], ends_after: int) -> None:
    """Nested transactions, compares, ranges, leases, revisions, and what is refused."""
    both = _Both(etcd)
    for number, txn in enumerate(sent):
        if number == ends_after:
            both.end_lease(ENDED)
        both.send(txn)
    both.read()
