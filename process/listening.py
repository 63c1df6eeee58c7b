"""Addresses that services listen on."""

from __future__ import annotations

from distop.errors import InvalidArgument, Unavailable


def check_address(field: str, address: str) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` for what is not ``host:port``."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise InvalidArgument(f"{address!r} is not host:port", details={"field": field})


class AddressInUse(Unavailable):
    """The address to listen on is taken or not this host's."""

    code = "ADDRESS_IN_USE"
    default_hint = "choose another with --listen host:port"
