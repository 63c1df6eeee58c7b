"""Identifies the caller from a call's credentials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from distop.coordinator.access.callers import Identity
from distop.coordinator.access.certificates import identity_of
from distop.coordinator.access.static import StaticTokens
from distop.coordinator.access.tokens import IssuedTokens, IssuerConfig
from distop.errors import InvalidArgument, Unauthenticated
from distop.process.secret import MAX_TOKEN_BYTES, NONE, Secret


@dataclass(frozen=True, kw_only=True)
class IdentityConfig:
    """How a coordinator identifies callers.

    Raises :class:`~distop.errors.InvalidArgument` for admins whom it could not identify: their policy would
    lock everybody out, through every coordinator.
    """

    token_file: str = ""
    """File of token hashes, see :mod:`distop.coordinator.access.static`."""
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
        if self._static is not None and (found := self._static.identity(token)) is not None:
            return found
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
