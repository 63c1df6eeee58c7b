"""The first keys of a long range, at a cost that does not grow with the range: see :mod:`.windows`.

Finding a window over them makes etcd count the whole range once; it is used until it has hardly any keys
left.
"""

from __future__ import annotations

from distop.metastore.etcd.client import EtcdClient, RangePage
from distop.metastore.etcd.txn import Get
from distop.metastore.etcd.windows import Windows

BEGINNING, LONG = 500, 1000
"""Keys of such a window, and the minimum number of keys in a range that gets one."""


async def first_of(
    client: EtcdClient, start: bytes, end: bytes, *, limit: int, revision: int = 0
) -> RangePage:
    """The first ``limit`` keys from ``start`` to (without) ``end``, at one revision (0: now)."""
    windows = Windows(start, end, limit, client.beginnings.of(start))
    stop = windows.stop
    page = await client.get_range(start, stop, revision=revision, limit=limit)
    kvs, revision = page.kvs, revision or page.revision
    if page.count > LONG:
        window = await client.get_range(start, stop, revision=revision, keys_only=True, limit=BEGINNING)
        client.beginnings.note(start, window.kvs[-1].key + b"\0")
    elif page.count < limit:
        client.beginnings.note(start, b"")
    while (over := windows.read([kv.key for kv in page.kvs], more=page.more, count=page.count)) is False:
        if len(kvs) >= limit:
            break
        page = await client.get_range(windows.start, windows.stop, revision=revision, limit=limit)
        kvs = kvs + page.kvs
    return RangePage(kvs[:limit], revision, not over or len(kvs) > limit)


def beginning(client: EtcdClient, start: bytes, end: bytes, limit: int) -> Get:
    """A read of the first keys of a range, to combine with others: sufficient if :func:`was_enough` says
    so."""
    return Get(start, client.beginnings.of(start) or end, limit=limit)


def was_enough(get: Get, end: bytes, found: int, count: int) -> bool:
    """Whether this many keys are all that was requested, or all there are, and were read cheaply; otherwise
    use :func:`first_of`. ``count`` is the number of keys in the range of ``get``."""
    return count <= LONG and (found == get.limit or get.end == end)
