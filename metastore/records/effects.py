"""What an operation does to its table, and which operations may therefore run on it at the same time."""

from __future__ import annotations

from enum import StrEnum


class Effect(StrEnum):
    """What an operation does to its table. Recorded when it starts."""

    READS = "reads"
    """Reads one snapshot of the table and leaves the table as it is. Files that its jobs stage are swept
    after the end."""
    APPENDS = "appends"
    """Adds rows to whatever the table holds when it commits."""
    WRITES = "writes"
    """Adds rows or overwrites what the table holds, as its argument says."""
    REWRITES = "rewrites"
    """Replaces files by others that hold the same rows. Files that another operation has taken out of the
    table meanwhile stay out."""
    DELETES = "deletes"
    """Takes rows of one snapshot out of the table, by replacing the files that hold them. It fails if another
    operation has taken out one of these files meanwhile."""
    CLEANS = "cleans"
    """Removes snapshots, or files that no snapshot refers to. It adds no file."""
    REPLACES = "replaces"
    """May change the table in any way, and so runs alone."""

    @property
    def keeps_files(self) -> bool:
        """Whether files of successful jobs become part of the table."""
        return self not in (Effect.READS, Effect.CLEANS)


_TOGETHER: dict[Effect, frozenset[Effect]] = {
    # The snapshot that it reads must not expire meanwhile, so nothing is cleaned beside it.
    Effect.READS: frozenset({Effect.READS, Effect.APPENDS, Effect.WRITES, Effect.REWRITES}),
    # No file that is removed by cleaning is one that a later commit can refer to.
    Effect.APPENDS: frozenset({Effect.APPENDS, Effect.WRITES, Effect.REWRITES, Effect.CLEANS}),
    # Two of these may both overwrite, so one waits for the other.
    Effect.WRITES: frozenset({Effect.REWRITES, Effect.CLEANS}),
    Effect.REWRITES: frozenset({Effect.CLEANS}),
    # The snapshot that it reads must not expire. It and what replaces the same files would make each other's
    # work void; what overwrites does so as well, and it is known then whose rows are to be there.
    Effect.DELETES: frozenset({Effect.READS, Effect.APPENDS, Effect.WRITES}),
}
"""Each pair once."""


def may_run_together(one: Effect, other: Effect) -> bool:
    """Whether neither can make the other lose what it reads or has written, in whatever order they start and
    end."""
    return other in _TOGETHER.get(one, ()) or one in _TOGETHER.get(other, ())
