"""How a long range is read page by page: all of it, once, in order, at a bounded cost."""

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from distop.metastore.etcd.client import Windows
from distop.metastore.records.names import prefix_end

BYTES = st.sampled_from([b"a", b"b", b"0", b"\x00", b"\xff"])
SOME_KEYS = st.lists(st.lists(BYTES, max_size=6).map(b"".join), unique=True).map(sorted)


def read(
    keys: list[bytes], start: bytes, end: bytes, limit: int, pages: int = 0
) -> tuple[list[bytes], int, int]:
    """The keys that were read, how many were counted, and in how many requests; of so many pages, or all."""
    windows, found, counted, requests, over = Windows(start, end, limit), list[bytes](), 0, 0, False
    while not over and (not pages or len(found) < pages * limit):
        inside = keys[bisect_left(keys, windows.start) : bisect_left(keys, windows.stop)]
        page = inside[:limit]
        counted, requests = counted + len(inside), requests + 1
        over = windows.read(page, more=len(inside) > limit, count=len(inside))
        found += page
    return found, counted, requests


@given(SOME_KEYS, st.integers(1, 4), st.lists(BYTES, min_size=1, max_size=3).map(b"".join))
def test_every_key_is_read_once_and_in_order(keys: list[bytes], limit: int, start: bytes) -> None:
    """O22"""
    end = b"\xff" * 9
    assert read(keys, start, end, limit)[0] == [key for key in keys if start <= key < end]


def test_a_long_range_costs_about_as_much_as_it_has_keys() -> None:
    """G3: etcd counts all keys of a range for each page of it."""
    keys = [b"d._tables.house%%2Esales_t%05d" % number for number in range(40_000)]
    found, counted, requests = read(keys, b"d._tables.", prefix_end(b"d._tables."), 100)
    assert found == keys
    assert counted < 12 * len(keys)  # reading pages of the whole range would count 200 times as many
    assert requests < 3 * len(keys) / 100


def test_going_on_in_the_middle_costs_about_a_page() -> None:
    """G3"""
    keys = [b"d._tables.house%%2Esales_t%05d" % number for number in range(40_000)]
    found, counted, requests = read(keys, keys[17_234] + b"\0", prefix_end(b"d._tables."), 100, pages=1)
    assert found[:100] == keys[17_235:17_335]
    assert counted < 2_000
    assert requests < 12
