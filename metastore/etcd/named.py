"""What keys of an index name. A key that cannot be read is skipped: it hides no other one, and harms nobody
else. ``distop doctor`` names it and says how to remove it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from distop.errors import CorruptRecord
from distop.metastore.etcd.txn import KeyValue

log = logging.getLogger(__name__)

T = TypeVar("T")


class Skipped:
    """How often this process has skipped a key, for Prometheus; one that stays is met again and again."""

    count = 0


def named(kvs: Iterable[KeyValue], parse: Callable[[bytes], T]) -> Iterator[tuple[T, KeyValue]]:
    """What each key names, with the key; without those for which ``parse`` raises
    :class:`~distop.errors.CorruptRecord`."""
    for kv in kvs:
        try:
            yield parse(kv.key), kv
        except CorruptRecord as error:
            Skipped.count += 1
            log.warning("key_unreadable", extra={"error": str(error)})
