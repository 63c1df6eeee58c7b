"""Identifies the caller from a call's credentials: a token, or the client certificate of its connection.

A token is looked up in a file of hashes, for CI and other callers without an issuer, or verified as one of an
issuer. A line of the file is ``SUBJECT:SHA256[:GROUP,GROUP...]``, with the SHA-256 of the token in
hexadecimal digits; ``#`` begins a comment. The file is read again when it changes: removing a line revokes
its token at once. The chain of a certificate has been verified by TLS before its names are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from cryptography import x509

from distop.coordinator.access.callers import CERTIFICATE, SPIFFE, Identity, check_name, check_subject
from distop.coordinator.access.tokens import IssuedTokens, IssuerConfig
from distop.errors import InvalidArgument, Unauthenticated
from distop.process.files import Reread
from distop.process.secret import MAX_TOKEN_BYTES, NONE, Secret

_LINE = re.compile(r"(?P<subject>\S.*?):(?P<hash>[0-9a-fA-F]{64})(?::(?P<groups>.*))?")


class StaticTokens:
    """The tokens of one file. Raises :class:`~distop.errors.InvalidArgument` if it cannot be read."""

    def __init__(self, path: str) -> None:
        self._known = Reread((path,), _parse)

    def identity(self, token: str) -> Identity | None:
        """The identity of a token; ``None``: unknown.

        It is looked up by its hash, which an attacker cannot choose: the time it takes reveals nothing about
        tokens.
        """
        return self._known.now().get(sha256(token.encode(errors="replace")).hexdigest())


def _parse(content: bytes) -> dict[str, Identity]:
    known: dict[str, Identity] = {}
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if (match := _LINE.fullmatch(text)) is None:
            raise InvalidArgument(
                f"line {number} of the token file is not SUBJECT:SHA256[:GROUP,...]",
                hint="the hash: printf %s TOKEN | sha256sum",
                details={"field": "token_file"},
            )
        groups = frozenset(part.strip() for part in (match["groups"] or "").split(",") if part.strip())
        try:
            subject = check_subject(match["subject"])
        except Unauthenticated as error:
            raise InvalidArgument(
                f"line {number} of the token file: {error.message}", details={"field": "token_file"}
            ) from None
        known[match["hash"].lower()] = Identity(subject, groups, "token")
    return known


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
    return [text for value in context.get(name, ()) if (text := value.decode(errors="replace").strip())]


@dataclass(frozen=True, kw_only=True)
class IdentityConfig:
    """How a coordinator identifies callers.

    Raises :class:`~distop.errors.InvalidArgument` for admins whom it could not identify: their policy would
    lock everybody out, through every coordinator.
    """

    token_file: str = ""
    """File of token hashes, see :mod:`distop.coordinator.access.authentication`."""
    issuers: tuple[IssuerConfig, ...] = ()
    """Issuers of accepted signed tokens."""
    certificates: bool = False
    """Whether callers present verified certificates."""
    admins: tuple[str, ...] = ()
    """The admins of a new policy."""

    def __post_init__(self) -> None:
        if self.admins and not self.is_set:
            raise InvalidArgument(
                f"nobody could show to be the admin {self.admins[0]!r}: no callers are identified here",
                hint="give --token-file, --issuer or --tls-client-ca as well",
                details={"field": "admin"},
            )

    @property
    def is_set(self) -> bool:
        """Whether any method is configured."""
        return bool(self.token_file or self.issuers or self.certificates)


@dataclass(frozen=True, slots=True)
class Proof:
    """The credentials of a call."""

    token: Secret = NONE
    """Takes precedence over the certificate: programs that share one may have tokens of their own."""
    address: str = ""
    """Address of the caller, without a port."""
    names: Mapping[str, Iterable[bytes]] = field(default_factory=dict)
    """Names in the client certificate of the connection, as gRPC calls them."""


class Authentication:
    """Raises :class:`~distop.errors.InvalidArgument` for invalid settings."""

    def __init__(self, config: IdentityConfig) -> None:
        self.is_set = config.is_set
        self._static = StaticTokens(config.token_file) if config.token_file else None
        self._issued = IssuedTokens(config.issuers) if config.issuers else None

    async def identity(self, proof: Proof) -> Identity | None:
        """The caller's identity; ``None``: no credentials.

        Raises :class:`~distop.errors.Unauthenticated` for invalid credentials.
        """
        if not (token := proof.token.reveal()):
            return identity_of(proof.names)
        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthenticated(f"the token is longer than {MAX_TOKEN_BYTES:,} bytes")
        if self._static is not None and (caller := self._static.identity(token)) is not None:
            return caller
        if self._issued is not None:
            return await self._issued.identity(token)
        if not self.is_set:
            return None  # sent to a coordinator without authentication
        raise Unauthenticated("the token is unknown")


def bearer(headers: list[str]) -> Secret:
    """The token of the ``authorization`` headers of a call; empty without one."""
    if len(headers) > 1:
        raise Unauthenticated("a call may have only one authorization")
    scheme, _, token = headers[0].partition(" ") if headers else ("bearer", "", "")
    if scheme.lower() != "bearer":
        raise Unauthenticated(f"authorization is by Bearer token, not by {scheme[:20]!r}")
    return Secret(token.strip())
