"""Denials: they have an audit trail of their own, and limits per caller, so that no caller can fill it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Txn
from distop.metastore.etcd.update import settle
from distop.metastore.tables.audit import acting, denial_put, prune_softly
from distop.proto.addresses import caller_of

log = logging.getLogger(__name__)

WINDOW_S = 60.0
EACH, MOST = 5, 60
"""Denials of one caller, and of all, that are written in a window; further ones are only counted."""


class Denials:
    """The denials of one process. Belongs to one event loop."""

    def __init__(self, client: EtcdClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._window = -WINDOW_S
        self._written = Counter[str]()
        self._left_out = 0

    async def record(self, action: str, *, by: str, target: str, reason: str = "") -> bool:
        """Write a denial to its trail; return whether it was written, and not only
        counted.

        It is written afterwards, and a failure is ignored: the denied action has not happened in any case.
        The present actor supplies the verified name and the address.
        """
        now = self._clock()
        if now - self._window >= WINDOW_S:
            self._window = now
            self._written.clear()
        who = acting.get()
        caller = who.subject or caller_of(who.address)
        if self._written[caller] >= EACH or self._written.total() >= MOST:
            self._left_out += 1
            return False
        self._written[caller] += 1
        left_out, self._left_out = self._left_out, 0
        if left_out:
            reason = f"{reason} ({left_out:,} earlier denials are omitted)".lstrip()
        keyspace = self._client.keyspace
        entry = denial_put(keyspace, action, by=by, target=target, reason=reason, at=time.time())
        try:
            await settle(self._client, Txn(then=(entry,)), patience_s=self._client.config.timeout_s)
        except DistopError as error:
            self._left_out += left_out + 1
            log.warning("denial_not_recorded", extra={"action": action, "error": str(error)})
            return False
        await prune_softly(self._client, keyspace.denials_prefix)
        return True
