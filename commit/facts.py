"""Facts that a commit writes to an operation's history for the later sweep."""

from __future__ import annotations

DROPPED_METADATA = "droppedMetadata"
"""Metadata files that the table's log no longer names. The pointer has moved on for good, so they can be
removed once that is certain."""
NOT_UNDONE = "stepsNotUndone"
"""How many external steps of an aborted operation remain in effect. Files that they published (a Delta table
may name them) are unknown here."""
DROPPED_JOBS = "droppedJobs"
"""Jobs whose output the commit did not publish, as half-open ranges (from, to) of their positions among the
operation's jobs."""
IGNORED = "ignored"
"""The commit did not change the table, and the output of the jobs is not needed."""
ADOPTED_FROM = "adoptedFrom"
"""Task manifests of at least this many bytes became manifests of the table; smaller ones were merged."""

BRANCH = "branch"
"""The branch that the operation concerns, if not the table itself."""
SNAPSHOT = "snapshotId"
"""The snapshot that it has made or published, as text: JavaScript would lose the last digits of a number."""
PUBLISHED = "publishedSnapshots"
"""How many snapshots of the branch became part of the table."""
REBASED = "rebased"
"""Whether these became one new snapshot, which names this operation."""
PASSED_OVER = "passedOver"
"""Why files were left as they are that the operation is for, and how many: ``{"otherFormats": 3}``."""
