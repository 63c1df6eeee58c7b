"""The host of an address: whether it is this machine, and how it is written."""

from __future__ import annotations

import functools
import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own, on any resolver."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@functools.lru_cache(maxsize=4096)
def plain_address(host: str) -> str:
    """An address in its usual form; IPv4 mapped into IPv6 is converted."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)


def caller_of(address: str) -> str:
    """The unit that counts as one caller: an address; for IPv6 a /64 network, which one host may own."""
    plain = plain_address(address)
    return str(ipaddress.ip_network((plain, 64), strict=False)) if ":" in plain else plain
