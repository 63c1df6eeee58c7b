import pytest

from distop.coordinator.state.caches import TableCache
from distop.metastore.etcd.txn import DeleteRange, Get, KeyValue, Put
from distop.metastore.records.keyspace import Keyspace

KEYS = Keyspace().table("t")
COUNTER = KEYS.next_instance("noop")


@pytest.fixture
def cache() -> TableCache:
    cache = TableCache(KEYS)
    cache.follow(5)
    cache.add([KeyValue(KEYS.run_ops, b"{}", 3, 2), KeyValue.missing(COUNTER)], 5)
    return cache


def test_keys_that_were_read_are_cached(cache: TableCache) -> None:
    read = cache.read([Get(KEYS.run_ops), Get(COUNTER), Get(b"new")], new=b"new")
    assert read is not None
    assert (read.results, read.revision) == (([KeyValue(KEYS.run_ops, b"{}", 3, 2)], [], []), 5)
    assert cache.read([Get(KEYS.run_ops), Get(KEYS.head)], new=b"new") is None


def test_events_and_own_writes_change_it_in_the_order_of_revisions(cache: TableCache) -> None:
    cache.apply_ops([Put(KEYS.run_ops, b"{1}"), Put(COUNTER, b"2"), Put(b"other", b"")], 8)
    cache.apply_put(KeyValue(KEYS.run_ops, b"{0}", 7, 2))
    assert cache.get(KEYS.run_ops) == KeyValue(KEYS.run_ops, b"{1}", 8, 2)
    assert cache.get(COUNTER) == KeyValue(COUNTER, b"2", 8, 8)
    cache.apply_put(KeyValue(COUNTER, b"3", 9, 8))
    cache.apply_ops([DeleteRange(KEYS.run_ops)], 10)
    cache.apply_put(KeyValue(KEYS.run_ops, b"{1}", 8, 2))
    assert cache.get(KEYS.run_ops) == KeyValue.missing(KEYS.run_ops)
    assert cache.get(COUNTER) == KeyValue(COUNTER, b"3", 9, 8)


def test_few_keys_are_kept(cache: TableCache) -> None:
    """The keys that every start reads, and those that starts have added."""
    cache.apply_put(KeyValue(KEYS.history_prefix + b"noop.1", b"{}", 6, 6))
    cache.apply_put(KeyValue(KEYS.head, b"{}", 6, 6))
    cache.apply_ops([Put(b"other", b"")], 7)
    assert cache.get(KEYS.history_prefix + b"noop.1") is None
    assert cache.get(b"other") is None
    assert cache.get(KEYS.head) is not None


def test_nothing_is_cached_without_a_watch(cache: TableCache) -> None:
    cache.leave()
    cache.add([KeyValue.missing(COUNTER)], 9)
    cache.apply_put(KeyValue(KEYS.head, b"{}", 9, 9))
    assert cache.read([Get(COUNTER)], new=b"") is None
    assert cache.get(KEYS.head) is None
