"""Sources on the web: no connection to addresses that only this host reaches, whatever names and redirects
say."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Any

from distop.lake.storage.allowed import SOURCES, web_hosts

if TYPE_CHECKING:
    import aiohttp


def web_options(url: str) -> dict[str, Any]:
    """Options of fsspec for a source of this URL."""
    if web_hosts(SOURCES) is None or not url.lower().startswith(("http://", "https://")):
        return {}
    return {"get_client": _client}


async def _client(**given: Any) -> aiohttp.ClientSession:
    import aiohttp

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=_socket), **given)


def _socket(found: tuple[Any, ...]) -> socket.socket:
    """A socket for one resolved address; called for each connection, also after a redirect."""
    family, kind, protocol, _, place = found
    if not may_connect(place[0]):
        raise OSError(f"{place[0]} may not be reached from here")
    return socket.socket(family, kind, protocol)


def may_connect(address: str) -> bool:
    """Whether the address is a listed host's or, where any host is allowed, a public one."""
    hosts = web_hosts(SOURCES)
    if hosts is None or ("" in hosts and is_public(address)):
        return True
    return any(address in addresses(host) for host in hosts if host)


def is_public(address: str) -> bool:
    """Whether the address is public: no loopback, link-local or private address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_global


def addresses(host: str) -> set[str]:
    """The addresses of a host name; none if it is unknown."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return set()
