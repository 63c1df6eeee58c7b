"""From what comes with a call to who makes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from distop.coordinator.access.callers import Identity
from distop.coordinator.access.certificates import identity_of
from distop.coordinator.access.static import StaticTokens
from distop.coordinator.access.tokens import IssuedTokens, IssuerConfig
from distop.errors import Unauthenticated
from distop.proto.secret import MAX_TOKEN_BYTES, NONE, Secret


@dataclass(frozen=True, kw_only=True)
class IdentityConfig:
    """By what a coordinator knows who calls."""

    token_file: str = ""
    """Of hashes of tokens, see :mod:`distop.coordinator.access.static`."""
    issuers: tuple[IssuerConfig, ...] = ()
    """Whose signed tokens count."""
    certificates: bool = False
    """Whether callers show certificates that have been verified."""
    admins: tuple[str, ...] = ()
    """Who begin a policy where there is none."""

    @property
    def is_set(self) -> bool:
        """Whether there is any way to know it."""
        return bool(self.token_file or self.issuers or self.certificates)


@dataclass(frozen=True, slots=True)
class Proof:
    """What comes with a call."""

    token: Secret = NONE
    """Counts before the certificate: programs that share one may have tokens of their own."""
    address: str = ""
    """Where the call comes from, without a port."""
    names: Mapping[str, Iterable[bytes]] = field(default_factory=dict)
    """Those of the certificate that the connection has shown, as gRPC calls them."""


class Authentication:
    """Raises :class:`~distop.errors.InvalidArgument` for settings that make no sense."""

    def __init__(self, config: IdentityConfig) -> None:
        self.is_set = config.is_set
        self._static = StaticTokens(config.token_file) if config.token_file else None
        self._issued = IssuedTokens(config.issuers) if config.issuers else None

    async def identity(self, proof: Proof) -> Identity | None:
        """Who it is; ``None``: nothing says so.

        Raises :class:`~distop.errors.Unauthenticated` for a proof that does not hold.
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
            return None  # sent to a coordinator that tells nobody apart
        raise Unauthenticated("the token is not known here")


def bearer(headers: list[str]) -> Secret:
    """The token of the ``authorization`` headers of a call; empty without one."""
    if len(headers) > 1:
        raise Unauthenticated("a call has at most one authorization")
    scheme, _, token = headers[0].partition(" ") if headers else ("bearer", "", "")
    if scheme.lower() != "bearer":
        raise Unauthenticated(f"authorization is by Bearer token, not by {scheme[:20]!r}")
    return Secret(token.strip())
