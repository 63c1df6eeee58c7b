"""What the leaders of one coordinator cache of their tables, for callers of the same coordinator.

Nothing depends on it. The cache may be stale or empty: then etcd is read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from distop.coordinator.state.ends import Ends
from distop.coordinator.state.leads import Leads


@dataclass(frozen=True)
class Memory:
    """Belongs to one event loop."""

    ends: Ends = field(default_factory=Ends)
    leads: Leads = field(default_factory=Leads)
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def turn(self, table: str) -> asyncio.Lock:
        """Held by a finish of an operation of the table, so that those of its leader do not make each other
        lose: all of them change ``runOps``."""
        return self._turns.setdefault(table, asyncio.Lock())
