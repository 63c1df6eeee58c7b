"""Signed tokens of issuers (JWT, RFC 7519): verifies them and returns their subject.

The public keys of an issuer come from a file, or are fetched from it, and stay in use while it is
unreachable.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import ssl
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import jwt
from cachetools import TLRUCache

from distop.coordinator.access.callers import Identity, check_subject
from distop.errors import InvalidArgument, Unauthenticated, Unavailable
from distop.process.files import Reread
from distop.process.secret import token_in
from distop.proto.addresses import is_loopback

log = logging.getLogger(__name__)

AGAIN_S = 60.0
"""Interval between fetches for tokens with an unknown key."""

FETCH_S = 5.0
"""Deadline of one fetch, and longest that a caller waits for it."""

MAX_BYTES = 256 << 10
MAX_KEYS = 100

Keys = dict[str, jwt.PyJWK]
"""Keys by id."""


class IssuerKeys:
    """The keys of one issuer; belongs to one event loop.

    Parameters
    ----------
    issuer:
        Its URL; ``/.well-known/openid-configuration`` below it names the URL of its keys.
    source:
        Where the keys are instead: the path of a file, or a URL.
    ca:
        The path of the CA (PEM) of its host, if it is not one of the system's.
    token_file:
        The path of a token that its host requires, as the API server of Kubernetes does. It is sent only to
        the host of ``source`` (without one: of ``issuer``), whatever URL the issuer publishes.
    """

    def __init__(
        self,
        issuer: str,
        source: str = "",
        *,
        ca: str = "",
        token_file: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer, self._source, self._clock = issuer, source, clock
        self._shown_to = urlsplit(source or issuer).netloc
        self._trusted = Reread((ca,), _trusting) if ca else None
        shown = partial(token_in, field="issuer_token_file")
        self._token = Reread((token_file,), shown) if token_file else None
        self._file = Reread((source,), parse) if source and "://" not in source else None
        for url in (issuer, source) if self._file is None else ():
            if url:
                _check_url(url)
        self._keys: Keys = {}
        self._tried_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def key(self, name: str) -> jwt.PyJWK | None:
        """The key with this id, or without an id the only one; ``None``: the issuer has none.

        Raises :class:`~distop.errors.Unavailable` when no key has been fetched so far.
        """
        if self._file is not None:
            return _chosen(self._file.now(), name)
        if name not in self._keys and (self._fetching or self._clock() - self._tried_at >= self._pause_s()):
            if self._fetching is None:
                self._tried_at = self._clock()
                self._fetching = asyncio.create_task(self._fetch(), name="issuer keys")
            await asyncio.wait((self._fetching,), timeout=FETCH_S)
        if not self._keys:
            raise Unavailable(f"the keys of {self._issuer} cannot be fetched", hint="try again in a moment")
        return _chosen(self._keys, name)

    def _pause_s(self) -> float:
        return AGAIN_S if self._keys else 1.0  # without a key no caller is accepted

    async def _fetch(self) -> None:
        try:
            self._keys = await asyncio.to_thread(self._read)
            log.info("issuer_keys_fetched", extra={"issuer": self._issuer, "keys": len(self._keys)})
        except (OSError, http.client.HTTPException, ValueError, RecursionError, InvalidArgument) as error:
            log.warning("issuer_keys_not_fetched", extra={"issuer": self._issuer, "error": str(error)})
        finally:
            self._fetching = None

    def _read(self) -> Keys:
        source = self._source
        if not source:
            known = json.loads(self._get(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"))
            source = str(known["jwks_uri"]) if isinstance(known, dict) and "jwks_uri" in known else ""
            _check_url(source)
        return parse(self._get(source))

    def _get(self, url: str) -> bytes:
        """Both files are read again for each fetch: Kubernetes replaces its tokens every hour."""
        content, end = b"", time.monotonic() + FETCH_S
        https = urllib.request.HTTPSHandler(context=self._trusted.now() if self._trusted else None)
        request = urllib.request.Request(url)
        if self._token is not None and urlsplit(url).netloc == self._shown_to:
            request.add_header("Authorization", f"Bearer {self._token.now().reveal()}")
        with urllib.request.build_opener(_SamePlace, https).open(request, timeout=FETCH_S) as response:
            while piece := response.read1(MAX_BYTES):
                content += piece
                if len(content) > MAX_BYTES:
                    raise ValueError(f"{url} has more than {MAX_BYTES:,} bytes")
                if time.monotonic() > end:
                    raise TimeoutError(f"{url} has not sent everything within {FETCH_S:g} s")
        return content


def _chosen(keys: Keys, name: str) -> jwt.PyJWK | None:
    only = next(iter(keys.values())) if len(keys) == 1 and not name else None
    return keys.get(name, only)


def parse(content: bytes) -> Keys:
    """A set of keys (RFC 7517). Unusable kinds are ignored, shared secrets included."""
    try:
        listed: Any = json.loads(content)["keys"]
        chosen = [key for key in listed if key.get("kty") != "oct" and key.get("use", "sig") == "sig"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"this is not a set of keys: {error}", details={"field": "jwks"}) from None
    keys: Keys = {}
    for key in chosen[:MAX_KEYS]:
        try:
            keys[str(key.get("kid", ""))] = jwt.PyJWK(key)
        except jwt.PyJWTError as error:
            log.warning(
                "issuer_key_left_out", extra={"kid": str(key.get("kid", ""))[:100], "error": str(error)}
            )
    if not keys:
        raise InvalidArgument("it contains no usable key", details={"field": "jwks"})
    return keys


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise InvalidArgument(
            f"{url!r} is not an https:// URL: an attacker could answer there",
            details={"field": "issuer"},
        )


class _SamePlace(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it could leave https."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _trusting(content: bytes) -> ssl.SSLContext:
    # Not `create_default_context`, which reads an empty file as "the CAs of the system".
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=content.decode())
    except (ValueError, ssl.SSLError) as error:
        raise InvalidArgument(
            f"this is not a CA certificate: {error}", details={"field": "issuer_ca"}
        ) from None
    return context


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
            item.url: (item, IssuerKeys(item.url, item.jwks, ca=item.ca, token_file=item.token_file))
            for item in issuers
        }
        self._others = tuple(f"{name}:" for name in names if name)
        """What no subject of the issuer without a name may begin with, and no group."""
        # By the digest of a token: whose it is, and when it expires.
        self._verified_before: TLRUCache[bytes, tuple[Identity, float]] = TLRUCache(
            MAX_REMEMBERED, lambda _, verified, now: min(now + REMEMBER_S, verified[1]), timer=wall
        )

    async def identity(self, token: str) -> Identity:
        """The subject of a token. Raises :class:`~distop.errors.Unauthenticated` if it is invalid."""
        digest = sha256(token.encode(errors="replace")).digest()
        if (known := self._verified_before.get(digest)) is not None:
            return known[0]
        try:
            header = jwt.get_unverified_header(token)
            claims = jwt.decode(token, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise Unauthenticated("the token is unknown, and is not a JWT") from None
        issuer = claims.get("iss")
        if not isinstance(issuer, str) or issuer not in self._issuers:
            raise Unauthenticated("the token is from an issuer that is not trusted here")
        config, keys = self._issuers[issuer]
        algorithm, kid = header.get("alg"), header.get("kid", "")
        if algorithm not in ALGORITHMS or not isinstance(kid, str):
            raise Unauthenticated("the token is not signed with an accepted algorithm")
        key = await keys.key(kid)
        if key is None:
            raise Unauthenticated(f"the token is signed with a key that {issuer} does not have")
        verified = self._verified_before[digest] = self._verified(token, key, algorithm, config)
        return verified[0]

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
