"""Facts that a commit leaves in an operation's history for the sweep that follows it."""

from __future__ import annotations

DROPPED_METADATA = "droppedMetadata"
"""Metadata files that the table's log no longer names. The pointer has moved on from them for good, so they
can be removed once that is certain."""
NOT_UNDONE = "stepsNotUndone"
"""How many external steps of an aborted operation stand. What they have published (a Delta table may name the
files by now) is not known here."""
DROPPED_JOBS = "droppedJobs"
"""Jobs whose output the commit has left out, as ranges (from, up to but without) of their places among the
operation's jobs."""
IGNORED = "ignored"
"""The commit left the table as it is, and what the jobs wrote is not wanted."""
ADOPTED_FROM = "adoptedFrom"
"""Task manifests of at least so many bytes became manifests of the table; smaller ones were joined."""
