"""What the leaders of one coordinator cache of their tables, for callers of the same coordinator.

Nothing depends on it. The cache may be stale or empty: then etcd is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from distop.coordinator.state.ends import Ends
from distop.coordinator.state.leads import Leads
from distop.coordinator.state.turns import Turn
from distop.metastore.records.keyspace import TableKeys


@dataclass(frozen=True)
class Memory:
    """Belongs to one event loop."""

    ends: Ends = field(default_factory=Ends)
    leads: Leads = field(default_factory=Leads)
    turns: WeakValueDictionary[str, Turn] = field(default_factory=WeakValueDictionary)
    """State of the tables that are led here, by name."""

    def turn(self, keys: TableKeys) -> Turn:
        """The turns of a table; its driver passes on events."""
        return self.turns.setdefault(keys.name, Turn(keys))
