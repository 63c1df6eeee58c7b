"""What fsspec file systems report about a file. Each has its own names for the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_TAGS = ("ETag", "etag", "md5Hash", "contentMD5", "checksum", "version_id")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


def entity_tag(info: Mapping[str, Any]) -> str:
    """Changes whenever the file is written again; empty if the file system has no such tag."""
    return next((str(info[name]).strip('"') for name in _TAGS if info.get(name)), "")


def version(info: Mapping[str, Any]) -> str:
    """Changes whenever a file is written again, even an empty one: the tags of those are equal, so that the
    time counts, too."""
    return f"{entity_tag(info)} {modified(info)}".strip()


def modified(info: Mapping[str, Any]) -> datetime | None:
    """When the file was last written, in UTC; ``None`` if the file system does not say."""
    value = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
