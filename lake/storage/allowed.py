"""Which files a process may open for callers: those that the operator has listed (checklist S1).

A caller that starts an operation names the files that it reads, and a caller that creates a table names its
folder, but the services open them with their own rights. So each process that serves callers checks,
when it opens a file, that the file is below a listed prefix. The lists are in the environment, so child
processes inherit them. A program that is not a service has no lists and opens anything: it acts for its own
user.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

from distop.errors import InvalidArgument, NotAllowed
from distop.metastore.tables.locations import place_of, refuse_password

log = logging.getLogger(__name__)

SOURCES, LOCATIONS, ENDPOINTS = "DISTOP_ALLOW_SOURCES", "DISTOP_ALLOW_LOCATIONS", "DISTOP_ALLOW_ENDPOINTS"
OPTIONS = {SOURCES: "--allow-source", LOCATIONS: "--allow-location", ENDPOINTS: "--allow-endpoint"}
"""The environment variables, and the service options that set them."""

EVERYTHING = "*"
ALL = dict.fromkeys(OPTIONS, EVERYTHING)
"""Environment of services that open anything that callers name."""

_PREFIX = re.compile(r"/.*|\*|[A-Za-z][A-Za-z0-9+.-]*://.*")
_FILE = re.compile(r"(?:file|local):/*", re.IGNORECASE)
_WEB = ("http", "https")


def restrict() -> None:
    """From now on this process serves callers: it opens only what is listed."""
    for variable, option in OPTIONS.items():
        if variable not in os.environ:
            os.environ[variable] = ""
            if variable != ENDPOINTS:
                log.warning(
                    "nothing_allowed",
                    extra={"hint": f"no file can be opened until {option} lists folders or URL prefixes"},
                )


def allow(variable: str, prefixes: Iterable[str]) -> None:
    """List prefixes in addition to those of the environment.

    Raises :class:`~distop.errors.InvalidArgument` for one that is not a folder, a URL or ``*``.
    """
    given, listed = list(prefixes), list(filter(None, os.environ.get(variable, "").split(",")))
    for prefix in given:
        if not _PREFIX.fullmatch(prefix) or "," in prefix:
            raise InvalidArgument(
                f"{prefix!r} is neither an absolute folder nor a URL such as s3://bucket/folder",
                hint=f"{EVERYTHING} stands for everything",
                details={"field": OPTIONS[variable].removeprefix("--").replace("-", "_")},
            )
    if given:
        os.environ[variable] = ",".join(dict.fromkeys([*listed, *given]))


def lists() -> dict[str, str]:
    """The lists of this process, for a process that does not inherit the environment."""
    return {variable: os.environ[variable] for variable in OPTIONS if variable in os.environ}


def adopt(given: Mapping[str, str]) -> None:
    """Adopt the lists of another process."""
    os.environ.update({variable: given[variable] for variable in OPTIONS if variable in given})


def check_source(url: str) -> None:
    """Raise :class:`~distop.errors.NotAllowed` unless files of this URL or path may be read.

    Raises :class:`~distop.errors.InvalidArgument`, without repeating the URL, if it contains a password.
    """
    _check(SOURCES, url, "paths")


def check_location(url: str) -> None:
    """As :func:`check_source`, for locations of tables."""
    _check(LOCATIONS, url, "location")


def is_below(url: str, prefixes: Sequence[str]) -> bool:
    """Whether it is below one of these prefixes."""
    if EVERYTHING in prefixes:
        return True
    path = _canonical(url)
    return path is not None and any(_below(path, prefix) for prefix in prefixes if prefix)


def web_sources() -> set[str] | None:
    """The hosts of web servers that are listed as sources; ``None`` if everything is listed."""
    listed = os.environ.get(SOURCES)
    if listed is None or EVERYTHING in (prefixes := listed.split(",")):
        return None
    return {_host(prefix) for prefix in prefixes if prefix.lower().startswith(("http://", "https://"))}


def _check(variable: str, url: str, field: str) -> None:
    refuse_password(url, field)
    listed = os.environ.get(variable)
    if listed is not None and not is_below(url, listed.split(",")):
        raise NotAllowed(
            f"{url} may not be opened here",
            hint=f"ask the operator to list it: {OPTIONS[variable]}, on coordinators and executors",
            details={"field": field},
        )


def _canonical(url: str) -> str | None:
    """A URL or path in canonical form, for comparison; ``None`` if no prefix can cover it.

    Links in a local path are resolved.
    """
    if url.startswith("/") or _FILE.match(url):
        return os.path.realpath("/" + _FILE.sub("", url, count=1).lstrip("/"))
    scheme, separator, rest = url.partition("://")
    if not separator or "::" in url or "\\" in url or any(ord(letter) < 32 for letter in url):
        return None  # some library interprets it differently
    canonical = place_of(f"{scheme.lower()}://{rest}")
    path = canonical.partition("://")[2].partition("/")[2]
    parts = {*path.split("/"), *(unquote(path).split("/") if scheme.lower() in _WEB else ())}
    return None if parts & {".", ".."} else canonical


def _below(path: str, prefix: str) -> bool:
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://", prefix) and not prefix.lower().startswith("file:"):
        return path.startswith(place_of(prefix.lower()))
    above = (_canonical(prefix) or "").rstrip("/")
    return bool(above or prefix == "/") and (path == above or path.startswith(f"{above}/"))


def _host(url: str) -> str:
    authority = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    return re.sub(r":\d*$", "", authority).strip("[]").lower()
