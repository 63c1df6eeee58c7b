"""JSON in the text fields of the API (``argument_json``, ``options_json``, ``facts_json``), on both sides;
and what page and command line show alike: values, facts with a form of their own, sizes, durations, and
characters that would not be seen.

Numbers are what was written: a whole number stays one, however large (up to 64 bits, as stored in etcd).
Refused is what JSON does not know, or readers understand differently: NaN, keys that stand twice, text that
is no unicode.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from distop.errors import InvalidArgument

MAX_DEPTH = 100
"""Deepest nesting. A limit of ours, so that every reader can follow."""

LINKS = "links"
"""The fact that has the links of an operation's type."""
MAX_LINKS, MAX_LINK_NAME, MAX_LINK_URL = 10, 64, 1000
"""How many an operation may have, and how long name and URL may be."""

_LEAST, _MOST = -(2**63), 2**64 - 1

# Facts are whatever JSON an operation type reports: one that has such a name and another shape is shown like
# any other.
_SERIES = {"name": str, "operations": int, "rows": int, "since": str, "last": list}
_VIOLATION = {"rule": str, "rows": int, "partitions": int, "most": Mapping}


def to_json(value: Mapping[str, Any], field: str) -> str:
    """A JSON object as text; nothing at all for an empty one.

    Raises
    ------
    InvalidArgument
        Something in it is not JSON, or is nested too deep. ``details["field"]`` is the path of the culprit.
    """
    _check(value, field, 0)
    return json.dumps(value, default=dict, ensure_ascii=False, allow_nan=False) if value else ""


def from_json(text: str, field: str) -> dict[str, Any]:
    """The inverse of :func:`to_json`, for text that anybody may have written. Raises as that does."""
    if not text:
        return {}
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _refused(field, f"is no JSON: {str(error) or 'it is nested too deep'}") from None
    if not isinstance(value, dict):
        raise _refused(field, "is no JSON object")
    _check(value, field, 0)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return value


def _check(value: Any, path: str, depth: int) -> None:
    match value:
        case None | bool():
            return
        case str():
            _check_text(value, path)
        case int():
            if not _LEAST <= value <= _MOST:
                raise _refused(path, "is an integer of more than 64 bits; send a string")
        case float():
            if not math.isfinite(value):
                raise _refused(path, f"is {value}, which JSON does not know")
        case Mapping() | list() | tuple():
            if depth >= MAX_DEPTH:
                raise _refused(path, f"is nested more than {MAX_DEPTH} deep")
            if isinstance(value, Mapping):
                for key, item in value.items():
                    if not isinstance(key, str):
                        raise _refused(path, f"has the key {key!r}, which is no string")
                    _check_text(key, path)
                    _check(item, f"{path}.{key}", depth + 1)
            else:
                for index, item in enumerate(value):
                    _check(item, f"{path}[{index}]", depth + 1)
        case _:
            raise _refused(path, f"is a {type(value).__name__}, which is not JSON")


def _check_text(value: str, path: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refused(path, "is not valid unicode") from None


def _refused(path: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{path} {why}", details={"field": path})


def series_of(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The summary of a series; empty if there is none."""
    series: Any = facts.get("series")
    return series if _fits(series, _SERIES) else {}


def violations_of(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What is known of each broken rule; empty if none is."""
    violations: Any = facts.get("violations")
    known = isinstance(violations, list) and all(
        _fits(violation, _VIOLATION) and all(isinstance(rows, int) for rows in violation["most"].values())
        for violation in violations
    )
    return violations if known else []


def links_of(facts: Mapping[str, Any]) -> Mapping[str, str]:
    """The links of an operation's type: name -> URL; empty if one of them is no link."""
    links: Any = facts.get(LINKS)
    good = isinstance(links, Mapping) and len(links) <= MAX_LINKS
    return links if good and all(is_link(name, url) for name, url in links.items()) else {}


def is_link(name: Any, url: Any) -> bool:
    """Whether this may be shown as a link: both are short, and the URL is that of a web page."""
    if not (isinstance(name, str) and isinstance(url, str) and 0 < len(name) <= MAX_LINK_NAME):
        return False
    if not url.startswith(("http://", "https://")) or len(url) > MAX_LINK_URL:
        return False
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        return False  # browsers read these as something else than urlsplit does
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return False


def printable(text: str) -> str:
    """``text`` with every invisible character, such as a change of writing direction or of a terminal's
    colour, spelled out."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def text_of(value: Any) -> str:
    """Any value of JSON, on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text_of(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(text_of, value))
    if value is None or isinstance(value, bool):
        return json.dumps(value)  # the notation of arguments
    if isinstance(value, int) and abs(value) < 1 << 53:
        return f"{value:,}"
    return str(value)


def duration(seconds: float | None) -> str:
    """``"310 ms"``, ``"1.31 s"``, ``"12.3 s"``, ``"4 min 10 s"``, ``"2 h 5 min"``; empty if it is unknown."""
    if seconds is None:
        return ""
    if (milliseconds := round(max(seconds, 0.0) * 1000)) < 1000:
        return f"{milliseconds} ms"
    if round(seconds, 2) < 10:
        return f"{seconds:.2f} s"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def in_bytes(size: int) -> str:
    """``"512 B"``, ``"1.4 KiB"``, ``"12.0 GiB"``."""
    units = iter(("B", "KiB", "MiB", "GiB", "TiB"))
    scaled, unit = float(size), next(units)
    while scaled >= 1024 and unit != "TiB":
        scaled, unit = scaled / 1024, next(units)
    return f"{size} B" if unit == "B" else f"{scaled:,.1f} {unit}"


def _fits(value: Any, shape: Mapping[str, type]) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(value.get(name), kind) for name, kind in shape.items()
    )
