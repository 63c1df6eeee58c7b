"""The identity in a client certificate. TLS has verified its chain before these names are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography import x509

from distop.coordinator.access.callers import Identity
from distop.coordinator.access.subjects import CERTIFICATE, SPIFFE, check_name

_KINDS: dict[str, Any] = {
    "peer_email": x509.RFC822Name,
    "peer_dns": x509.DNSName,
    "peer_ip": x509.IPAddress,
    "peer_uri": x509.UniformResourceIdentifier,
}
"""Kinds of names in a certificate, apart from the common name, by precedence."""

_SPIFFE_ID = re.compile(rb"spiffe://[^/]{1,255}/[^/].*")


def identity_of(context: Mapping[str, Iterable[bytes]]) -> Identity | None:
    """The identity in gRPC's description of a peer; ``None``: it has no certificate.

    A SPIFFE id is the subject as it is. Otherwise it is ``cert:`` and the first alternative name, or, for a
    certificate without any, the common name: it counts only then, as for servers (RFC 9525).

    Raises :class:`~distop.errors.Unauthenticated` for an unreadable or too long name.
    """
    subject = _subject(context)
    return Identity(check_name(subject), how="certificate") if subject else None


def _subject(context: Mapping[str, Iterable[bytes]]) -> str:
    for name in _texts(context, "peer_spiffe_id"):
        if name.startswith(SPIFFE):
            return name
    for kind in _KINDS:
        for name in _texts(context, kind):
            return CERTIFICATE + name
    if not any(_texts(context, "x509_subject_alternative_name")):
        for name in _texts(context, "x509_common_name"):
            return CERTIFICATE + name
    return ""


def names_of(certificate: bytes) -> dict[str, list[bytes]]:
    """gRPC's description of a peer with this certificate (DER, verified). Empty if the certificate cannot be
    parsed."""
    try:
        parsed = x509.load_der_x509_certificate(certificate)
        common = parsed.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        names = {"x509_common_name": [str(name.value).encode() for name in common]}
        others = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return names
    except ValueError:
        return {}
    for label, kind in _KINDS.items():
        names[label] = [str(value).encode() for value in others.get_values_for_type(kind)]
    names["x509_subject_alternative_name"] = [name for label in _KINDS for name in names[label]]
    # SPIFFE standard: an id counts only if it is the only URI.
    if len(uris := names["peer_uri"]) == 1 and _SPIFFE_ID.fullmatch(uris[0]):
        names["peer_spiffe_id"] = uris
    return names


def _texts(context: Mapping[str, Iterable[bytes]], name: str) -> list[str]:
    return [text for one in context.get(name, ()) if (text := one.decode(errors="replace").strip())]
