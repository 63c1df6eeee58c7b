"""What the host of an address tells."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own, whoever resolves it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
