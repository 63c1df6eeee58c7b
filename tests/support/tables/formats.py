"""Metadata of other formats than the one that distop writes, as other programs have written it."""

import json
from typing import Any

from support.tables.publishing import Table, local


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


def as_format_3(table: Table, *added: dict[str, Any]) -> str:
    """The table's metadata as :func:`newer_metadata`; its location."""
    return newer_metadata(table.record().metadata_location, *added)


def newer_metadata(location: str, *added: dict[str, Any]) -> str:
    """A metadata file as another program has written it in format 3: with row ids, and columns that no data
    file has; its location."""
    path = local(location)
    newer = json.loads(path.read_text())
    rows = sum(int(snapshot["summary"].get("added-records", 0)) for snapshot in newer["snapshots"])
    newer |= {"format-version": 3, "next-row-id": rows, "last-column-id": 99}
    for snapshot in newer["snapshots"]:
        snapshot |= {"first-row-id": 0, "added-rows": rows}
    columns = newer["schemas"][0]["fields"]
    columns += [{"id": 40 + at, "required": False, **column} for at, column in enumerate(added)]
    written = path.with_name("00009-newer.metadata.json")
    written.write_text(json.dumps(newer))
    return f"file://{written}"
