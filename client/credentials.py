"""A client's credentials, and its trust in the service: a token, certificates, or both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import grpc

from distop.errors import InvalidArgument, PreconditionFailed
from distop.process.files import Reread
from distop.process.secret import NONE, Secret, token_in
from distop.proto.addresses import is_loopback

SYSTEM = "system"

_VARIABLES = {
    "token": "DISTOP_TOKEN",
    "token_file": "DISTOP_TOKEN_FILE",
    "ca": "DISTOP_CA",
    "cert": "DISTOP_CERT",
    "key": "DISTOP_KEY",
}


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The credentials for coordinators. Files are read again when they change."""

    token: Secret | str = NONE
    """A :class:`~distop.process.secret.Secret` after construction; so it is shown as ``***``."""
    token_file: str = ""
    """Path of a file with the token; issuers that renew it rewrite the file."""
    ca: str = ""
    """Path of the CA certificates (PEM) of coordinators; enables TLS. ``system``: those of gRPC, as for
    public servers."""
    cert: str = ""
    """Path of the client's certificate; with ``key``."""
    key: str = ""
    insecure: bool = False
    """Send the token in plain text, also to other hosts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token", Secret(self.token))
        if self.token and self.token_file:
            raise InvalidArgument("give a token or the file of one, not both", details={"field": "token"})
        if bool(self.cert) != bool(self.key):
            raise InvalidArgument("a client certificate needs its key", details={"field": "cert"})
        if self.cert and not self.ca:
            raise InvalidArgument(
                "a client certificate needs TLS", hint="name a CA: DISTOP_CA", details={"field": "cert"}
            )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """From ``DISTOP_TOKEN``, ``DISTOP_TOKEN_FILE``, ``DISTOP_CA``, ``DISTOP_CERT``, ``DISTOP_KEY``."""
        texts = {name: environ[variable] for name, variable in _VARIABLES.items() if environ.get(variable)}
        return cls(**texts, insecure=environ.get("DISTOP_INSECURE", "") not in ("", "0"))

    def to_env(self) -> dict[str, str]:
        """The environment of a child process with the same credentials."""
        texts = {variable: getattr(self, name) for name, variable in _VARIABLES.items()}
        texts["DISTOP_TOKEN"] = Secret(self.token).reveal()
        return {name: text for name, text in texts.items() if text} | (
            {"DISTOP_INSECURE": "1"} if self.insecure else {}
        )


class Shown:
    """The credentials in use by one client.

    Raises :class:`~distop.errors.InvalidArgument` when a file cannot be read, or a token cannot be sent.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.tls = bool(credentials.ca)
        files = (credentials.token_file,) if credentials.token_file else ()
        given = Secret(credentials.token)
        if given:
            given = token_in(given.reveal().encode(errors="surrogatepass"), "token")
        self._token = Reread(files, lambda *read: token_in(read[0], "token_file") if read else given)
        named = (credentials.ca, credentials.cert, credentials.key)
        paths = tuple(path for path in named if path and path != SYSTEM)
        self._channel = Reread(paths, self._channel_credentials)

    def metadata(self, address: str) -> tuple[tuple[str, str], ...]:
        """The metadata of a call to this address."""
        if not (token := self._token.now()):
            return ()
        if not (self.tls or self._credentials.insecure or is_loopback(address.rpartition(":")[0])):
            raise PreconditionFailed(
                f"the token would go to {address} in plain text",
                hint="name the CA of the service (DISTOP_CA), or allow it (DISTOP_INSECURE=1)",
            )
        return (("authorization", f"Bearer {token.reveal()}"),)

    def channel(self) -> grpc.ChannelCredentials | None:
        """Credentials of a new channel; another object once a file has changed. ``None``: plain text."""
        return self._channel.now()

    def _channel_credentials(self, *read: bytes) -> grpc.ChannelCredentials | None:
        if not self.tls:
            return None
        contents = list(read)
        roots = None if self._credentials.ca == SYSTEM else contents.pop(0)
        cert, key = contents or (None, None)
        return grpc.ssl_channel_credentials(roots, key, cert)
