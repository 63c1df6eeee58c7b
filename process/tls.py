"""Addresses that services listen on, and their certificates, which are taken over while a service runs when
their files change.
"""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from distop.errors import InvalidArgument, Unavailable
from distop.process.files import Reread
from distop.proto.addresses import is_loopback


def check_address(field: str, address: str) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` for what is not ``host:port``."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise InvalidArgument(f"{address!r} is not host:port", details={"field": field})


class AddressInUse(Unavailable):
    """The address to listen on is taken or not this host's."""

    code = "ADDRESS_IN_USE"
    default_hint = "choose another with --listen host:port"


MAX_AGE_S = 10 * 60
"""A connection lives so long: then its client has to show its certificate again."""

GRACE_S = 60
"""Calls on such a connection have so long to end."""


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """The PEM files of a server's certificate, by their paths."""

    cert: str = ""
    """The certificate, with those between it and its CA; with ``key``. Makes it TLS."""
    key: str = ""
    client_ca: str = ""
    """Of the certificates that every client of gRPC must show then, and those of the page and catalog may."""
    insecure: bool = False
    """Serve in plain text also to other hosts."""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise InvalidArgument("a certificate needs its key", details={"field": "tls_cert"})
        if self.client_ca and not self.cert:
            raise InvalidArgument(
                "certificates of clients need TLS",
                hint="give --tls-cert and --tls-key, too",
                details={"field": "tls_client_ca"},
            )

    def check(self, field: str, address: str) -> None:
        """Raises :class:`~distop.errors.InvalidArgument` for plain text to other hosts, unasked for."""
        if not (self.cert or self.insecure or is_loopback(address.rpartition(":")[0])):
            raise InvalidArgument(
                f"{address} can be reached by other hosts, and would be served in plain text",
                hint="give --tls-cert and --tls-key, or allow it: --insecure",
                details={"field": field},
            )


class Tls:
    """The files of one coordinator. Raises :class:`~distop.errors.InvalidArgument` if they make no sense."""

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        pair = (config.cert, config.key)
        client_ca = (config.client_ca,) if config.client_ca else ()
        self._grpc = Reread((*pair, *client_ca), _configuration)
        self._page = Reread((*pair, *client_ca), lambda *_: self._context())
        self._shown = self._grpc.now()
        self._lock = threading.Lock()

    def server_credentials(self) -> grpc.ServerCredentials:
        """The credentials of the gRPC server, which asks for what is new at each handshake, on threads of its
        own."""
        return grpc.dynamic_ssl_server_credentials(
            self._shown,
            self._renewed,  # type: ignore[arg-type]  # the stubs do not know that None means no change
            require_client_authentication=bool(self._config.client_ca),
        )

    def page_context(self) -> ssl.SSLContext:
        """The TLS context of the page, which hands each connection on to the one that is made of the present
        files."""
        context = self._page.now()
        context.sni_callback = self._hand_on
        return context

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        with self._lock:
            present = self._grpc.now()
            changed, self._shown = present is not self._shown, present
            return present if changed else None

    def _hand_on(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._page.now()

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._config.cert, self._config.key)
            if self._config.client_ca:
                # Who shows none may have a token, as a browser does.
                context.verify_mode = ssl.CERT_OPTIONAL
                context.load_verify_locations(self._config.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(f"{self._config.cert} and {self._config.key}: {error}") from None
        # Who comes back has to show the certificate again: the CA may be another one by then.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        return context


def _configuration(
    cert: bytes, key: bytes, client_ca: bytes | None = None
) -> grpc.ServerCertificateConfiguration:
    """Raises :class:`~distop.errors.InvalidArgument` where the files do not belong together: one of them may
    be about to be replaced."""
    try:
        theirs = x509.load_pem_x509_certificates(cert)[0].public_key()
        if theirs != load_pem_private_key(key, None).public_key():
            raise InvalidArgument("the key is not that of the certificate", details={"field": "tls_key"})
        if client_ca is not None:
            x509.load_pem_x509_certificates(client_ca)
    except (ValueError, TypeError, IndexError) as error:
        raise InvalidArgument(f"no certificate, or no key: {error}", details={"field": "tls_cert"}) from None
    return grpc.ssl_server_certificate_configuration([(key, cert)], client_ca)
