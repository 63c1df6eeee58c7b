"""Signed tokens of issuers (JWT, RFC 7519): verifies them and returns their subject."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import jwt

from distop.coordinator.access.callers import Identity
from distop.coordinator.access.keys import IssuerKeys
from distop.coordinator.access.subjects import check_subject
from distop.errors import InvalidArgument, Unauthenticated

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a private key. With a shared secret (HS256) every verifier could also sign."""

LEEWAY_S = 30
"""Tolerated clock skew."""

MAX_GROUPS = 200

REMEMBER_S, MAX_REMEMBERED = 30.0, 2_000
"""For how long, and for how many tokens, a successful verification is cached."""


@dataclass(frozen=True, kw_only=True)
class IssuerConfig:
    """An issuer of tokens, and what they must contain."""

    url: str
    """The ``iss`` of its tokens."""
    audience: str
    """An audience that ``aud`` of its tokens must contain."""
    name: str = ""
    """Prefix: its subjects and groups are called ``NAME:sub``. Needed with several issuers, so that none can
    impersonate another one's callers."""
    jwks: str = ""
    """The path of a file, or a URL, of its keys, if it does not publish one."""
    ca: str = ""
    """The CA (path of a PEM) of the host of its keys; empty: those of the system."""
    token_file: str = ""
    """The path of a token for the host of its keys; empty: it needs none."""


class IssuedTokens:
    """The tokens of some issuers. Raises :class:`~distop.errors.InvalidArgument` for invalid settings."""

    def __init__(self, issuers: tuple[IssuerConfig, ...], *, wall: Callable[[], float] = time.time) -> None:
        names = [issuer.name for issuer in issuers]
        if len(set(names)) < len(names) or len({issuer.url for issuer in issuers}) < len(issuers):
            raise InvalidArgument(
                "several issuers need a name each, and a URL each",
                hint="--issuer NAME=URL",
                details={"field": "issuer"},
            )
        self._issuers = {
            one.url: (one, IssuerKeys(one.url, one.jwks, ca=one.ca, token_file=one.token_file))
            for one in issuers
        }
        self._others = tuple(f"{name}:" for name in names if name)
        """What no subject of the issuer without a name may begin with, and no group."""
        self._wall = wall
        self._held: dict[bytes, tuple[float, Identity]] = {}

    async def identity(self, token: str) -> Identity:
        """The subject of a token. Raises :class:`~distop.errors.Unauthenticated` if it is invalid."""
        digest = sha256(token.encode(errors="replace")).digest()
        until, known = self._held.get(digest, (0.0, None))
        if known is not None and self._wall() < until:
            return known
        try:
            header = jwt.get_unverified_header(token)
            said = jwt.decode(token, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise Unauthenticated("the token is unknown, and is not a JWT") from None
        issuer = said.get("iss")
        if not isinstance(issuer, str) or issuer not in self._issuers:
            raise Unauthenticated("the token is from an issuer that is not trusted here")
        config, keys = self._issuers[issuer]
        algorithm, kid = header.get("alg"), header.get("kid", "")
        if algorithm not in ALGORITHMS or not isinstance(kid, str):
            raise Unauthenticated("the token is not signed with an accepted algorithm")
        key = await keys.key(kid)
        if key is None:
            raise Unauthenticated(f"the token is signed with a key that {issuer} does not have")
        identity, expires = self._verified(token, key, algorithm, config)
        self._remember(digest, identity, expires)
        return identity

    def _verified(
        self, token: str, key: jwt.PyJWK, algorithm: str, config: IssuerConfig
    ) -> tuple[Identity, float]:
        if key.algorithm_name != algorithm and not (
            key.key_type == "RSA" and algorithm.startswith(("RS", "PS"))
        ):
            raise Unauthenticated("the token is signed with another algorithm than its key's")
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=config.audience,
                issuer=config.url,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            expires = float(claims["exp"])
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise Unauthenticated(f"the token is invalid: {error}") from None
        prefix = f"{config.name}:" if config.name else ""
        subject = check_subject(prefix + claims["sub"])
        if not prefix and subject.startswith(self._others):
            raise Unauthenticated("the token's subject begins with the name of another issuer")
        groups = claims.get("groups", [])
        if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
            groups = []
        named = frozenset(
            prefix + group
            for group in groups
            if isinstance(group, str) and group and (prefix or not group.startswith(self._others))
        )
        return Identity(subject, named, "token"), expires

    def _remember(self, digest: bytes, identity: Identity, expires: float) -> None:
        self._held.pop(digest, None)
        self._held[digest] = (min(self._wall() + REMEMBER_S, expires), identity)
        if len(self._held) > MAX_REMEMBERED:
            del self._held[next(iter(self._held))]
