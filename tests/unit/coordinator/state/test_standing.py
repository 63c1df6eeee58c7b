from __future__ import annotations

import pytest

from distop.coordinator.state.standing import Standing
from distop.metastore.etcd.txn import Delete, Get, KeyValue, Put
from distop.metastore.records.keyspace import Keyspace

KEYS = Keyspace().table("t")
COUNTER = KEYS.next_instance("noop")


@pytest.fixture
def standing() -> Standing:
    standing = Standing(KEYS)
    standing.follow(5)
    standing.learn([KeyValue(KEYS.run_ops, b"{}", 3, 2), KeyValue.missing(COUNTER)], 5)
    return standing


def test_what_was_read_stands(standing: Standing) -> None:
    read = standing.read([Get(KEYS.run_ops), Get(COUNTER), Get(b"new")], new=b"new")
    assert read is not None
    assert (read.results, read.revision) == (([KeyValue(KEYS.run_ops, b"{}", 3, 2)], [], []), 5)
    assert standing.read([Get(KEYS.run_ops), Get(KEYS.head)], new=b"new") is None


def test_events_and_own_writes_change_it_in_the_order_of_revisions(standing: Standing) -> None:
    standing.wrote([Put(KEYS.run_ops, b"{1}"), Put(COUNTER, b"2"), Put(b"other", b"")], 8)
    standing.heard(KeyValue(KEYS.run_ops, b"{0}", 7, 2))
    assert standing.get(KEYS.run_ops) == KeyValue(KEYS.run_ops, b"{1}", 8, 2)
    assert standing.get(COUNTER) == KeyValue(COUNTER, b"2", 8, 8)
    standing.heard(KeyValue(COUNTER, b"3", 9, 8))
    standing.wrote([Delete(KEYS.run_ops)], 10)
    standing.heard(KeyValue(KEYS.run_ops, b"{1}", 8, 2))
    assert standing.get(KEYS.run_ops) == KeyValue.missing(KEYS.run_ops)
    assert standing.get(COUNTER) == KeyValue(COUNTER, b"3", 9, 8)


def test_few_keys_are_kept(standing: Standing) -> None:
    """Those of every start, and what starts have read."""
    standing.heard(KeyValue(KEYS.history_prefix + b"noop.1", b"{}", 6, 6))
    standing.heard(KeyValue(KEYS.head, b"{}", 6, 6))
    standing.wrote([Put(b"other", b"")], 7)
    assert standing.get(KEYS.history_prefix + b"noop.1") is None
    assert standing.get(b"other") is None
    assert standing.get(KEYS.head) is not None


def test_nothing_is_known_without_a_watch(standing: Standing) -> None:
    standing.leave()
    standing.learn([KeyValue.missing(COUNTER)], 9)
    standing.heard(KeyValue(KEYS.head, b"{}", 9, 9))
    assert standing.read([Get(COUNTER)], new=b"") is None
    assert standing.get(KEYS.head) is None
