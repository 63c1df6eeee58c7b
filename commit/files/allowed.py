"""Which files may be opened for a caller: what the operator has listed (checklist S1).

Whoever may start an operation names the files that it reads, and whoever may create a table the folder that
it lives in, but processes of distop open them with rights of their own. So each process that serves callers
checks, at the moment it opens something, that it lies below a prefix that was listed. The lists stand in the
environment, where processes that it starts find them, too. A program without them, one that is not of a
service, opens what it likes: it acts for whoever runs it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

from distop.errors import InvalidArgument, NotAllowed
from distop.metastore.records.locations import place_of, refuse_password

log = logging.getLogger(__name__)

SOURCES, LOCATIONS, ENDPOINTS = "DISTOP_ALLOW_SOURCES", "DISTOP_ALLOW_LOCATIONS", "DISTOP_ALLOW_ENDPOINTS"
OPTIONS = {SOURCES: "--allow-source", LOCATIONS: "--allow-location", ENDPOINTS: "--allow-endpoint"}
"""The environment variables, and the options of services that set them."""

EVERYTHING = "*"
ALL = dict.fromkeys(OPTIONS, EVERYTHING)
"""The environment of services that open whatever callers name."""

_PREFIX = re.compile(r"/.*|\*|[A-Za-z][A-Za-z0-9+.-]*://.*")
_FILE = re.compile(r"(?:file|local):/*", re.IGNORECASE)
_WEB = ("http", "https")


def restrict() -> None:
    """Serve callers from now on: what is not listed is not opened."""
    for variable, option in OPTIONS.items():
        if variable not in os.environ:
            os.environ[variable] = ""
            if variable != ENDPOINTS:
                log.warning(
                    "nothing_allowed",
                    extra={"hint": f"no file can be opened until {option} lists folders or URL prefixes"},
                )


def allow(variable: str, prefixes: Iterable[str]) -> None:
    """List prefixes besides those of the environment.

    Raises :class:`~distop.errors.InvalidArgument` for one that is neither a folder, a URL, nor ``*``.
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
    """What is listed here, for a process that does not inherit the environment."""
    return {variable: os.environ[variable] for variable in OPTIONS if variable in os.environ}


def adopt(given: Mapping[str, str]) -> None:
    """Take the lists of another process over."""
    os.environ.update({variable: given[variable] for variable in OPTIONS if variable in given})


def check_source(url: str) -> None:
    """Raise :class:`~distop.errors.NotAllowed` unless files of this URL or path may be read.

    Raises :class:`~distop.errors.InvalidArgument` for a URL with a password in it, and does not repeat it.
    """
    _check(SOURCES, url, "paths")


def check_location(url: str) -> None:
    """As :func:`check_source`, of where tables have files."""
    _check(LOCATIONS, url, "location")


def is_below(url: str, prefixes: Sequence[str]) -> bool:
    """Whether it lies below one of these prefixes."""
    if EVERYTHING in prefixes:
        return True
    place = _place(url)
    return place is not None and any(_below(place, prefix) for prefix in prefixes if prefix)


def web_hosts(variable: str) -> set[str] | None:
    """The hosts of web servers that are listed; ``None`` where everything is."""
    listed = os.environ.get(variable)
    if listed is None or EVERYTHING in (prefixes := listed.split(",")):
        return None
    return {_host(prefix) for prefix in prefixes if prefix.lower().startswith(("http://", "https://"))}


def _check(variable: str, url: str, field: str) -> None:
    refuse_password(url, field)
    listed = os.environ.get(variable)
    if listed is not None and not is_below(url, listed.split(",")):
        raise NotAllowed(
            f"{url} is not among what may be opened here",
            hint=f"ask the operator to list it: {OPTIONS[variable]}, on coordinators and executors",
            details={"field": field},
        )


def _place(url: str) -> str | None:
    """A URL or path in the spelling that is compared; ``None`` of one that no prefix covers.

    Of a local path what it leads to through links.
    """
    if url.startswith("/") or _FILE.match(url):
        return os.path.realpath("/" + _FILE.sub("", url, count=1).lstrip("/"))
    scheme, separator, rest = url.partition("://")
    if not separator or "::" in url or "\\" in url or any(ord(letter) < 32 for letter in url):
        return None  # some library reads it in another way
    place = place_of(f"{scheme.lower()}://{rest}")
    path = place.partition("://")[2].partition("/")[2]
    parts = {*path.split("/"), *(unquote(path).split("/") if scheme.lower() in _WEB else ())}
    return None if parts & {".", ".."} else place


def _below(place: str, prefix: str) -> bool:
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://", prefix) and not prefix.lower().startswith("file:"):
        return place.startswith(place_of(prefix.lower()))
    above = (_place(prefix) or "").rstrip("/")
    return bool(above or prefix == "/") and (place == above or place.startswith(f"{above}/"))


def _host(url: str) -> str:
    authority = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    return re.sub(r":\d*$", "", authority).strip("[]").lower()
