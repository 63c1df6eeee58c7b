"""What the leaders of one coordinator cache of their tables, for callers of the same coordinator.

Nothing depends on it. The cache may be stale or empty: then etcd is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from distop.coordinator.state.ends import Ends
from distop.coordinator.state.leads import Leads
from distop.coordinator.state.table_cache import TableCache
from distop.metastore.records.keyspace import TableKeys


@dataclass(frozen=True)
class Memory:
    """Belongs to one event loop."""

    ends: Ends = field(default_factory=Ends)
    leads: Leads = field(default_factory=Leads)
    _tables: WeakValueDictionary[str, TableCache] = field(default_factory=WeakValueDictionary)

    def table(self, keys: TableKeys) -> TableCache:
        """The cache of a table. Its leader here keeps it alive."""
        return self._tables.setdefault(keys.name, TableCache(keys))
