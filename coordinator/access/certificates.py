"""Who a client certificate says that somebody is. Its chain has been verified when these names are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from distop.coordinator.access.callers import Identity
from distop.coordinator.access.subjects import CERTIFICATE, SPIFFE

_NAMES = ("peer_email", "peer_dns", "peer_ip", "peer_uri")
"""Kinds of names that a certificate may have beside its common name, the one that counts first."""


def identity_of(context: Mapping[str, Iterable[bytes]]) -> Identity | None:
    """The identity in gRPC's description of a peer; ``None``: it has shown no certificate.

    A SPIFFE id is the subject as it is. Else it is ``cert:`` and the first alternative name, of a certificate
    without any the common name: that one counts only where it is all there is, as for servers (RFC 9525).
    """
    for name in _texts(context, "peer_spiffe_id"):
        if name.startswith(SPIFFE):
            return Identity(name, how="certificate")
    for kind in _NAMES:
        for name in _texts(context, kind):
            return Identity(CERTIFICATE + name, how="certificate")
    if not any(_texts(context, "x509_subject_alternative_name")):
        for name in _texts(context, "x509_common_name"):
            return Identity(CERTIFICATE + name, how="certificate")
    return None


def _texts(context: Mapping[str, Iterable[bytes]], name: str) -> list[str]:
    return [text for one in context.get(name, ()) if (text := one.decode(errors="replace").strip())]
