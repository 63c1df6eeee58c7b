"""Metadata of other formats than the one that distop writes, as other programs have written it."""

from __future__ import annotations

import json

from support.tables.publishing import local


def in_format(version: int, location: str) -> str:
    """A metadata file, and those before it, as a program of format 1 has written them, or as such ones are
    after the table was upgraded; its location."""
    path = local(location)
    raw = json.loads(path.read_text()) | {"format-version": version}
    for snapshot in raw["snapshots"]:
        del snapshot["sequence-number"]
    if version == 1:
        del raw["last-sequence-number"]
        raw |= {"schema": raw["schemas"][0], "partition-spec": raw["partition-specs"][0]["fields"]}
    else:
        raw["last-sequence-number"] = 0
    for entry in raw["metadata-log"]:
        entry["metadata-file"] = in_format(1, entry["metadata-file"])
    written = path.with_name(f"{path.stem.partition('.')[0]}-{version}.metadata.json")
    written.write_text(json.dumps(raw))
    return f"file://{written}"
