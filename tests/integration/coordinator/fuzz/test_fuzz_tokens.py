"""What strangers give for a token: whatever it is, it lets nobody in, and nothing breaks."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import example, given
from hypothesis import strategies as st

from distop.coordinator.access.authentication import Authentication, IdentityConfig, Proof, bearer
from distop.coordinator.access.tokens import IssuerConfig
from distop.errors import Unauthenticated
from distop.process.secret import Secret
from support.services.tokens import token_file
from support.untrusted import damaged, objects, texts

URL, AUDIENCE = "https://issuer.example", "distop"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EXPIRES = time.time() + 10**6


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Authentication:
    """One that knows a token, and an issuer."""
    folder: Path = tmp_path_factory.mktemp("tokens")
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    (folder / "jwks").write_text(json.dumps({"keys": [public | {"kid": "one"}]}))
    issuer = IssuerConfig(url=URL, audience=AUDIENCE, jwks=str(folder / "jwks"))
    return Authentication(IdentityConfig(token_file=token_file(folder, ["root"]), issuers=(issuer,)))


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def signed(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, KEY, algorithm="RS256", headers={"kid": "one"})


CLAIMS = {"iss": URL, "aud": AUDIENCE, "sub": "jane", "exp": EXPIRES}

odd = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), texts, st.lists(texts, max_size=3), objects
)
headers = st.fixed_dictionaries(
    {"alg": st.one_of(st.sampled_from(["none", "None", "HS256", "RS256", "ES256", "EdDSA"]), odd)},
    optional={"kid": st.one_of(st.just("one"), odd), "typ": odd, "crit": odd, "b64": odd, "jwk": objects},
)
claims = st.fixed_dictionaries(
    {"iss": st.one_of(st.just(URL), odd)},
    optional={"aud": st.one_of(st.just(AUDIENCE), odd)}
    | dict.fromkeys(("sub", "exp", "nbf", "iat", "groups"), odd),
)
signatures = st.one_of(
    st.just(""), st.binary(max_size=300).map(lambda data: base64.urlsafe_b64encode(data).decode())
)
forged = st.tuples(headers.map(part), claims.map(part), signatures).map(".".join)
broken = damaged(st.one_of(forged.map(str.encode), st.just(signed(CLAIMS).encode()))).map(
    lambda data: data.decode("latin-1")
)


async def refused(known: Authentication, token: str) -> None:
    try:
        identity = await known.identity(Proof(Secret(token)))
    except Unauthenticated:
        return
    # One that holds was not damaged where it counts: base64 has spellings that say the same.
    assert identity is None or (token.count(".") == 2 and identity.subject == "jane"), token


@given(st.one_of(forged, broken, texts, st.text(max_size=9_000)))
@example("." * 100)
@example(f"{part({'alg': 'RS256', 'kid': 'one'})}.{'[' * 5_000}.")
@example(f"{part({'alg': ['RS256']})}.{part({'iss': URL})}.")
@example("\ud800.\ud800.\ud800")
async def test_no_text_lets_anybody_in(known: Authentication, token: str) -> None:
    """S3"""
    await refused(known, token)


@given(st.fixed_dictionaries({name: st.one_of(st.just(value), odd) for name, value in CLAIMS.items()}))
@example(CLAIMS | {"exp": float("inf")})
@example(CLAIMS | {"exp": 10**400})
@example(CLAIMS | {"sub": "group:x"})
@example(CLAIMS | {"sub": "\u202eenaj"})
async def test_nonsense_that_an_issuer_signs_is_refused(known: Authentication, said: dict[str, Any]) -> None:
    """S3: an issuer that is trusted may still be wrong."""
    try:
        token = signed(said)
    except (TypeError, ValueError):
        return  # jwt signs no such thing
    try:
        identity = await known.identity(Proof(Secret(token)))
    except Unauthenticated:
        return
    assert identity is not None
    assert identity.subject == said["sub"]
    assert said["iss"] == URL
    assert AUDIENCE in said["aud"]


@given(st.lists(texts, max_size=3))
@example(["Bearer"])
@example(["Basic eA=="])
@example(["", ""])
def test_no_header_is_a_defect(given_headers: list[str]) -> None:
    with contextlib.suppress(Unauthenticated):
        assert isinstance(bearer(given_headers), Secret)
