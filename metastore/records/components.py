"""Names as components of keys, and ranges of keys.

A component's own dots, percent signs, spaces, control and non-ASCII bytes are percent-encoded, so that a key
is readable in ``etcdctl`` and can be split at its dots in only one way.
"""

from __future__ import annotations

import functools
from urllib.parse import quote, unquote

# Printable ASCII that needs no escaping, in addition to letters, digits and "_-~", which quote() always
# keeps. "." separates, "%" escapes, "/" stays readable since names are often paths.
_SAFE = "!#$&'()*+,/:;<=>?@[]^`{|}\\\""


def escape(name: str) -> str:
    """One name as one component of a key."""
    if name.isascii() and name.isalnum():
        return name  # most partitions are numbers, and there may be a hundred thousand
    return _quoted(name)


@functools.lru_cache(maxsize=4096)
def _quoted(name: str) -> str:
    return quote(name, safe=_SAFE).replace(".", "%2E")


def unescape(component: str) -> str:
    """The name in a component of a key."""
    return unquote(component, errors="strict") if "%" in component else component


def prefix_end(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with ``prefix``."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
