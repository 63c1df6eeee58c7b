"""The effect of an operation on its table, and which operations may therefore run concurrently."""

from __future__ import annotations

from enum import StrEnum


class Effect(StrEnum):
    """The effect of an operation on its table. Recorded when it starts."""

    READS = "reads"
    """Reads one snapshot of the table and does not change the table. Files staged by its jobs are swept after
    the end."""
    APPENDS = "appends"
    """Adds rows to the table's content at commit time."""
    WRITES = "writes"
    """Adds rows or overwrites the table's content, as its argument says."""
    REWRITES = "rewrites"
    """Replaces files by others with the same rows. Files that another operation removed from the table
    meanwhile stay removed."""
    DELETES = "deletes"
    """Deletes rows of one snapshot from the table, by replacing their files. It fails if another operation
    has removed one of these files meanwhile."""
    CLEANS = "cleans"
    """Removes snapshots, or files that no snapshot refers to. It adds no file."""
    REPLACES = "replaces"
    """May change the table in any way, and so runs alone."""

    @property
    def keeps_files(self) -> bool:
        """Whether files of successful jobs become part of the table."""
        return self not in (Effect.READS, Effect.CLEANS)


_TOGETHER: dict[Effect, frozenset[Effect]] = {
    # Its snapshot must not expire meanwhile, so nothing is cleaned concurrently.
    Effect.READS: frozenset({Effect.READS, Effect.APPENDS, Effect.WRITES, Effect.REWRITES}),
    # Cleaning removes no file that a later commit can refer to.
    Effect.APPENDS: frozenset({Effect.APPENDS, Effect.WRITES, Effect.REWRITES, Effect.CLEANS}),
    # Two of these may both overwrite, so one waits for the other.
    Effect.WRITES: frozenset({Effect.REWRITES, Effect.CLEANS}),
    Effect.REWRITES: frozenset({Effect.CLEANS}),
    # Its snapshot must not expire. It and other replacements of the same files would invalidate each other's
    # work; overwriting does so as well, but then the result is well defined.
    Effect.DELETES: frozenset({Effect.READS, Effect.APPENDS, Effect.WRITES}),
}
"""Each pair once."""


def may_run_together(one: Effect, other: Effect) -> bool:
    """Whether neither can invalidate what the other reads or has written, in whatever order they start and
    end."""
    return other in _TOGETHER.get(one, ()) or one in _TOGETHER.get(other, ())
