"""Files that mark a source as complete, and reading it only while they stay as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from distop.errors import Cancelled, SourceIncomplete
from distop.lake.storage.storage import version
from distop.operations.arguments import invalid
from distop.sources.formats.files import MAX_PATHS, checked_url, resolve


def marker_versions(urls: Collection[str]) -> dict[str, str]:
    """The files that mark a source as complete, and their present versions.

    Unlike files of data they may be empty.

    Raises :class:`~distop.errors.SourceIncomplete` if one does not exist.
    """
    if len(urls) > MAX_PATHS:
        raise invalid("markers", f"there are more than {MAX_PATHS} markers", "start several operations")
    versions = {}
    for url in urls:
        fs, path = resolve(checked_url(url))
        fs.invalidate_cache()
        try:
            info = fs.info(path)
        except FileNotFoundError:
            raise _incomplete(url, "does not exist") from None
        versions[url] = version(info)
    return versions


def check_markers(versions: Mapping[str, str]) -> None:
    """Check that no marker was removed or written again since: then files may have been, too.

    Raises :class:`~distop.errors.SourceIncomplete`.
    """
    for url, present in marker_versions(versions).items():
        if present != versions[url]:
            raise _incomplete(url, "was written again while the files were read")


@contextmanager
def while_complete(markers: Mapping[str, str]) -> Iterator[None]:
    """Read files of a source whose markers had these versions before, and have them still at the end.

    An error is only the source's own if they do: half-written files are bad in many ways. Raises
    :class:`~distop.errors.SourceIncomplete` in place of it.
    """
    try:
        yield
    except (SourceIncomplete, Cancelled):
        raise
    except Exception:
        check_markers(markers)
        raise
    check_markers(markers)


def _incomplete(marker: str, why: str) -> SourceIncomplete:
    return SourceIncomplete(f"{marker} {why}", details={"field": "markers", "path": marker})
