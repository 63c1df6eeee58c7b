"""Which of the types that come with distop may run on one table at the same time.

Two may if neither can make the other lose what it reads or what it has written, in whatever order they start
and end. Types of your own say for themselves whom they tolerate; these here tolerate none of them.
"""

from __future__ import annotations

_INGESTS = frozenset({"ingest", "ingest_dataframe"})

_TOLERATED: dict[str, frozenset[str]] = {
    # Replaces files by others of the same rows. What expiry removes is nothing that the table holds, and what
    # others have taken out of the table meanwhile it leaves out.
    "compact": _INGESTS | {"validate", "build_index", "expire_snapshots", "remove_orphans"},
    # Publishes rows that were written before it began, as an ingest does.
    "write": _INGESTS | {"compact", "validate", "build_index", "expire_snapshots", "remove_orphans"},
    # These two read one snapshot to the end, so it must not expire meanwhile.
    "validate": _INGESTS | {"build_index"},
    "build_index": _INGESTS,
    # What these two remove nothing refers to, and nothing that is committed later can.
    "expire_snapshots": _INGESTS,
    "remove_orphans": _INGESTS,
}
"""Each pair once."""


def beside(type_name: str) -> frozenset[str]:
    """The types that may run beside this one."""
    others = (name for name, tolerated in _TOLERATED.items() if type_name in tolerated)
    return _TOLERATED.get(type_name, frozenset()).union(others)
