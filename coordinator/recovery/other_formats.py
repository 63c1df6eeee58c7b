"""What file trees and Delta tables show of operations that etcd does not know. Blocks.

They contain no watermarks: ingesting again after a restore might duplicate rows. So it is only reported.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from distop.lake.delta.commit import delta_library
from distop.lake.plain.publish import visible_files
from distop.lake.storage.listing import modified
from distop.lake.storage.storage import delta_options, file_system, storage_of
from distop.metastore.records.table import TableRecord

_PART = re.compile(r"part-([0-9a-f]{12})-")
CLOCKS_S = 60.0
"""Tolerated clock skew in seconds."""

COMMITS = 1000
"""Newest commits of a Delta table that are examined."""


def operations_since(table: TableRecord, known: Collection[str], since: float) -> set[str]:
    """Names of the operations that have published since a time (0: any), except the known ones."""
    if table.format == "delta":
        return _of_delta(table, known, since)
    storage = storage_of(table)
    filesystem, root = file_system(table.location, storage)
    short = {uuid[:12] for uuid in known}
    found: set[str] = set()
    for name in visible_files(table.location, storage):
        match = _PART.match(name.rpartition("/")[2])
        if match is None or match[1] in short or match[1] in found:
            continue
        at = modified(filesystem.info(f"{root.rstrip('/')}/{name}"))
        if at is None or at.timestamp() > since - CLOCKS_S:
            found.add(match[1])
    return found


def _of_delta(table: TableRecord, known: Collection[str], since: float) -> set[str]:
    library = delta_library()
    from deltalake.exceptions import TableNotFoundError

    options = delta_options(table.location, storage_of(table))
    try:
        history = library.DeltaTable(table.location, storage_options=options).history(COMMITS)
    except TableNotFoundError:
        return set()
    found = set()
    for commit in history:
        token = str(commit.get("distop.token", ""))
        late = float(commit.get("timestamp", 0)) / 1000 > since - CLOCKS_S
        if token and late and token.rpartition("/")[2] not in known:
            found.add(token.rpartition("/")[0])
    return found
