"""Tokens that issuers sign: whose they are, and all those that do not hold."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from distop.coordinator.access import keys as issuer_keys
from distop.coordinator.access.keys import IssuerKeys, parse
from distop.coordinator.access.tokens import IssuedTokens, IssuerConfig
from distop.errors import InvalidArgument, Unauthenticated, Unavailable

URL, AUDIENCE = "https://issuer.example", "distop"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def key_set(**keys: Any) -> bytes:
    """Public keys by their ids."""
    listed = []
    for kid, key in keys.items():
        kind = (
            jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        )
        listed.append(json.loads(kind.to_jwk(key.public_key())) | {"kid": kid, "use": "sig"})
    return json.dumps({"keys": listed}).encode()


def signed(key: Any = RSA, kid: str = "one", alg: str = "RS256", **claims: Any) -> str:
    """A token; a claim that is None is left out."""
    now = int(time.time())
    said = {"iss": URL, "aud": AUDIENCE, "sub": "jane", "exp": now + 600, "iat": now} | claims
    kept = {name: value for name, value in said.items() if value is not None}
    return jwt.encode(kept, key, algorithm=alg, headers={"kid": kid})


@pytest.fixture
def tokens(tmp_path: Path) -> IssuedTokens:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(one=RSA, two=EC))
    return IssuedTokens((IssuerConfig(url=URL, audience=AUDIENCE, jwks=str(path)),))


async def test_a_token_that_holds_says_who_it_is(tokens: IssuedTokens) -> None:
    identity = await tokens.identity(signed(groups=["ops", 7]))
    assert (identity.subject, identity.groups, identity.how) == ("jane", frozenset({"ops"}), "token")
    assert (await tokens.identity(signed(EC, "two", "ES256", aud=["x", AUDIENCE]))).subject == "jane"
    assert (await tokens.identity(signed(exp=int(time.time()) - 10))).subject == "jane"  # clocks differ


async def test_a_token_without_a_key_id_is_of_the_only_key(tokens: IssuedTokens, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(key_set(one=RSA))
    alone = IssuedTokens((IssuerConfig(url=URL, audience=AUDIENCE, jwks=str(path)),))
    assert (await alone.identity(signed(kid=""))).subject == "jane"
    with pytest.raises(Unauthenticated):
        await tokens.identity(signed(kid=""))


def unsigned() -> str:
    """A token that says of itself that nobody has signed it."""
    header, body, _ = signed().split(".")
    header = base64.urlsafe_b64encode(b'{"alg":"none","kid":"one"}').decode().rstrip("=")
    return f"{header}.{body}."


def signed_with_the_public_key() -> str:
    """A token whose shared secret is what everybody knows."""
    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').rstrip(b"=")
    content = header + b"." + signed().split(".")[1].encode()
    key = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    return (content + b"." + base64.urlsafe_b64encode(key.sign(content, public)).rstrip(b"=")).decode()


BAD = {
    "garbage": lambda: "garbage",
    "dots": lambda: "..",
    "no unicode": lambda: "\udcff.a.b",
    "deep": lambda: base64.urlsafe_b64encode(b"[" * 3000).decode() + ".e30.",
    "alg none": unsigned,
    "the public key as a secret": signed_with_the_public_key,
    "another key of that id": lambda: signed(rsa.generate_private_key(public_exponent=65537, key_size=2048)),
    "the key of another way to sign": lambda: signed(EC, "one", "ES256"),
    "an unknown key": lambda: signed(kid="three"),
    "another issuer": lambda: signed(iss="https://elsewhere.example"),
    "no issuer": lambda: signed(iss=None),
    "another audience": lambda: signed(aud="someone"),
    "no audience": lambda: signed(aud=None),
    "expired": lambda: signed(exp=int(time.time()) - 60),
    "without an end": lambda: signed(exp=None),
    "not yet valid": lambda: signed(nbf=int(time.time()) + 600),
    "no subject": lambda: signed(sub=None),
    "an empty subject": lambda: signed(sub=""),
    "a subject that passes for a group": lambda: signed(sub="group:ops"),
    "a subject that passes for a certificate": lambda: signed(sub="cert:jane"),
    "changed": lambda: signed()[:-8] + "AAAAAAAA",
}


@pytest.mark.parametrize("bad", BAD)
async def test_a_token_that_does_not_hold_is_refused(tokens: IssuedTokens, bad: str) -> None:
    """U5, S3"""
    with pytest.raises(Unauthenticated):
        await tokens.identity(BAD[bad]())


async def test_an_issuer_with_a_name_speaks_for_its_own_callers_only(tmp_path: Path) -> None:
    """S3"""
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(one=RSA))
    other = "https://cluster.example"
    issuers = [
        IssuerConfig(url=URL, audience=AUDIENCE, jwks=str(path)),
        IssuerConfig(url=other, audience=AUDIENCE, jwks=str(path), name="k8s"),
    ]
    tokens = IssuedTokens(tuple(issuers))
    subject = "system:serviceaccount:ns:job"
    identity = await tokens.identity(signed(iss=other, sub=subject, groups=["all"]))
    assert (identity.subject, identity.groups) == (f"k8s:{subject}", frozenset({"k8s:all"}))
    with pytest.raises(InvalidArgument, match="name each"):
        IssuedTokens((issuers[0], IssuerConfig(url=other, audience=AUDIENCE, jwks=str(path))))


class Issuer(HTTPServer):
    """One that tells its keys, as long as it is not away."""

    keys = key_set(one=RSA)
    away = False
    asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        issuer = self.server
        assert isinstance(issuer, Issuer)
        issuer.asked += 1
        self.send_response(503 if issuer.away else 200)
        self.end_headers()
        config = json.dumps({"jwks_uri": f"{issuer.url}/keys"}).encode()
        self.wfile.write(issuer.keys if self.path == "/keys" else config)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def issuing() -> Iterator[Issuer]:
    with Issuer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


async def test_keys_that_are_rotated_are_fetched_and_the_last_ones_are_kept() -> None:
    """S4: at most one fetch a minute for unknown keys, and none is forgotten while the issuer is away."""
    now = 0.0
    with issuing() as issuer:
        keys = IssuerKeys(issuer.url, clock=lambda: now)
        issuer.away = True
        with pytest.raises(Unavailable):
            await keys.key("one")
        issuer.away, now = False, 2.0
        assert await keys.key("one") is not None
        issuer.keys = key_set(two=EC)
        asked = issuer.asked
        assert await keys.key("two") is None  # somebody may just be guessing
        assert issuer.asked == asked
        now += issuer_keys.AGAIN_S
        assert await keys.key("two") is not None
        assert await keys.key("one") is None  # it was taken away
        issuer.away, now = True, now + issuer_keys.AGAIN_S
        assert await keys.key("three") is None
        assert await keys.key("two") is not None


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"keys": 7}', b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "eA"}]}']
)
def test_what_is_no_set_of_public_keys_is_refused(content: bytes) -> None:
    """U3: a shared secret is none."""
    with pytest.raises(InvalidArgument):
        parse(content)


@pytest.mark.parametrize("url", ["http://issuer.example", "ftp://a", "issuer", ""])
def test_keys_come_over_tls(url: str) -> None:
    """S5: whoever sits between could let anybody in."""
    with pytest.raises(InvalidArgument):
        IssuerKeys("https://issuer.example", url) if url else IssuerKeys("http://issuer.example")
