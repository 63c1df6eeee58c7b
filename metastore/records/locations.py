"""The canonical form of a table's location, and the name of its place. Pure.

Whether two tables share files is decided by comparing texts, in etcd. So a location has one canonical form:
without ``.``, ``..``, doubled slashes, and characters that some libraries read as an escape or the end of a
path.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from distop.errors import InvalidArgument
from distop.metastore.records.names import unreadable

MAX_BYTES = 1024
"""Longest location, in UTF-8 bytes. S3 does not allow longer names of objects either."""

MAX_DEPTH = 60
"""Folders above a location; each is a compare of one transaction."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*(:[0-9]+)?|\[[0-9A-Fa-f:]+\](:[0-9]+)?")
_MISREAD = {"?": "the beginning of a query", "#": "the begin of a fragment", "%": "the begin of an escape"}
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
"""Schemes mapped to the one that reaches the same files."""


_PASSWORD = re.compile(r"(?<!github)://[^/?#@]*:[^/?#@]*@")
"""fsspec's URLs of GitHub have a repository in that place."""


def refuse_password(url: str, field: str) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` for a URL with a password in it, without repeating it."""
    if _PASSWORD.search(url) and not url.startswith("/"):
        raise InvalidArgument(
            f"{field} holds a URL with a password, but is stored where operators can read it",
            hint="give the password to the process that opens it: in its environment, or fsspec's settings",
            details={"field": field},
        )


def canonical(text: str, field: str = "location") -> str:
    """The canonical form of a location: a URL without a trailing slash; ``file:///a/b`` for a local path.

    On a local disk doubled slashes and ``.`` are removed, which changes nothing. In an object store they
    would be parts of names, and are refused. ``..`` is refused: where it leads depends on links.

    Raises :class:`~distop.errors.InvalidArgument` with ``field`` if there is no such form.
    """

    def refused(why: str, hint: str = "for example /data/flights or s3://bucket/flights") -> InvalidArgument:
        return InvalidArgument(f"location {text!r} {why}", hint=hint, details={"field": field})

    refuse_password(text, field)
    _check_characters(text, refused)
    scheme, host, path = _split(text)
    if not _SCHEME.fullmatch(scheme):
        raise refused("is neither a URL nor an absolute path")
    if host and not _HOST.fullmatch(host):
        raise refused(f"has a host or bucket, {host!r}, that is invalid")
    parts = path.rstrip("/").split("/")
    if ".." in parts:
        raise refused("has '..' in it: where that leads depends on links", "write the resulting folder")
    if scheme == "file":
        if host not in ("", "localhost"):
            raise refused(f"names a host, {host!r}", "write file:///, and the path")
        host, parts = "", [part for part in parts if part not in ("", ".")]
    elif parts != [""] and ("" in parts or "." in parts):
        raise refused("has an empty or '.' part: it would mean another folder than it seems to")
    parts = [part for part in parts if part]
    if not parts and not host:
        raise refused("names no folder")
    if len(parts) > MAX_DEPTH:
        raise refused(f"has {len(parts)} folders in it, at most {MAX_DEPTH} are allowed", "use a shorter one")
    return "/".join((f"{scheme}://{host}", *parts))


def _check_characters(text: str, refused: Callable[..., InvalidArgument]) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise refused("is not valid unicode") from None
    if size > MAX_BYTES:
        raise refused(f"is {size} bytes long, at most {MAX_BYTES} are allowed", "use a shorter one")
    for letter in text:
        if letter in _MISREAD:
            raise refused(
                f"contains {letter!r}, which programs may take for {_MISREAD[letter]}", "leave it out"
            )
    if reason := unreadable(text):
        raise refused(reason, "write it without that")


def _split(text: str) -> tuple[str, str, str]:
    """Scheme, host and path; an empty scheme if it is neither a URL nor an absolute path."""
    if text.startswith("/"):
        return "file", "", text
    scheme, separator, rest = text.partition(":")
    scheme = scheme.lower()
    scheme = "file" if scheme == "local" else scheme
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
        return scheme, host, path
    return (scheme, "", rest) if separator and scheme == "file" and rest.startswith("/") else ("", "", "")


def place_of(location: str) -> str:
    """The place of a canonical location: equal for two that lead to the same files."""
    scheme, _, rest = location.partition("://")
    host, slash, path = rest.partition("/")
    return f"{_SAME_STORE.get(scheme, scheme)}://{host.lower()}{slash}{path}"


def places_above(location: str) -> list[str]:
    """The places of the folders that contain a place, the outermost first."""
    scheme, _, rest = location.partition("://")
    host, *parts = rest.split("/")
    root = [f"{scheme}://{host}"]
    above = ["/".join(root + parts[:count]) for count in range(len(parts))]
    return above if host else above[1:]
