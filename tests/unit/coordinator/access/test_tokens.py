"""Tokens that issuers sign, and those of a file: whose they are, and all those that do not hold."""

import asyncio
import base64
import time
from contextlib import suppress
from pathlib import Path

import jwt
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from distop.coordinator.access import tokens as issuer_keys
from distop.coordinator.access.authentication import IdentityConfig, StaticTokens, bearer
from distop.coordinator.access.callers import Identity
from distop.coordinator.access.tokens import IssuedTokens, IssuerConfig, IssuerKeys, parse
from distop.errors import InvalidArgument, Unauthenticated, Unavailable
from support.refusals import refused
from support.services.certs import put
from support.services.issuers import AUDIENCE, EC, RSA, URL, issuing, key_set, signed
from support.services.tokens import token_line


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
    with pytest.raises(Unauthenticated, match="another issuer"):
        await tokens.identity(signed(sub=f"k8s:{subject}"))
    identity = await tokens.identity(signed(groups=["ops", "k8s:all"]))
    assert (identity.subject, identity.groups) == ("jane", frozenset({"ops"}))
    with pytest.raises(InvalidArgument, match="name each"):
        IssuedTokens((issuers[0], IssuerConfig(url=other, audience=AUDIENCE, jwks=str(path))))


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
    "answer",
    [
        b"no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 200_000,
    ],
)
async def test_an_issuer_that_talks_nonsense_is_away(answer: bytes) -> None:
    """U3"""

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(answers, "127.0.0.1") as server:
        with pytest.raises(Unavailable):
            await IssuerKeys(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}").key("one")


@pytest.mark.parametrize("told", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
async def test_an_issuer_that_never_comes_to_an_end_is_not_waited_for(
    told: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U4: neither in what it says nor in what comes before."""
    monkeypatch.setattr(issuer_keys, "FETCH_S", 0.5)
    enough = asyncio.Event()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(told)
        while not enough.is_set():
            writer.write(b" ")
            with suppress(TimeoutError):
                await asyncio.wait_for(enough.wait(), 0.05)
        writer.close()

    async with await asyncio.start_server(answers, "127.0.0.1") as server:
        keys = IssuerKeys(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            with pytest.raises(Unavailable):
                await asyncio.wait_for(keys.key("one"), 60)
        finally:
            enough.set()


async def test_keys_behind_a_private_ca_and_a_token_as_those_of_kubernetes(tmp_path: Path) -> None:
    """S4, S5: nothing is fetched from who only passes for the issuer; both files are read again."""
    ca = trustme.CA()
    trusted, shown = tmp_path / "ca.crt", tmp_path / "token"
    put(trusted, ca.cert_pem.bytes())
    put(shown, b"first\n")
    now = 0.0

    async def fetched(keys: IssuerKeys) -> bool:
        try:
            return await keys.key("one") is not None
        except Unavailable:
            return False

    with issuing(ca) as server:
        server.bearer = "first"
        source = f"{server.url}/openid/v1/jwks"
        ours, token = str(trusted), str(shown)
        assert await fetched(IssuerKeys(URL, source, ca=ours, token_file=token))
        assert await fetched(IssuerKeys(server.url, ca=ours, token_file=token))
        assert not await fetched(IssuerKeys(URL, source, ca=ours))
        asked = server.asked
        assert not await fetched(IssuerKeys(URL, source, token_file=token))
        put(trusted, trustme.CA().cert_pem.bytes())
        keys = IssuerKeys(URL, source, ca=ours, token_file=token, clock=lambda: now)
        assert not await fetched(keys)
        assert server.asked == asked  # whoever is there has not seen the token
        put(trusted, ca.cert_pem.bytes())
        server.bearer, now = "second", now + 60
        assert not await fetched(keys)
        put(shown, b"second")
        now += 60
        assert await fetched(keys)


async def test_the_token_for_one_host_is_not_shown_to_another(tmp_path: Path) -> None:
    """S5: an issuer says where its keys are, not who gets to see the token."""
    ca = trustme.CA()
    ours, token = put(tmp_path / "ca.crt", ca.cert_pem.bytes()), put(tmp_path / "token", b"mine")
    with issuing(ca) as server, issuing(ca) as other:
        server.elsewhere = f"{other.url}/keys"
        assert await IssuerKeys(server.url, ca=ours, token_file=token).key("one") is not None
        assert [shown for _, shown in server.shown] == ["Bearer mine"]
        assert other.shown == [("/keys", None)]


@pytest.mark.parametrize(
    ("file", "content"),
    [("ca", b""), ("ca", b"no PEM"), ("ca", b"\xff"), ("token_file", b" \n"), ("token_file", b"a\r\nb: c")],
)
def test_files_that_make_no_sense_are_refused_at_the_start(tmp_path: Path, file: str, content: bytes) -> None:
    """U3"""
    path = put(tmp_path / "file", content)
    with pytest.raises(InvalidArgument):
        IssuerKeys(URL, **{file: path})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="cannot be read"):
        IssuerKeys(URL, **{file: str(tmp_path / "none")})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"keys": 7}', b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "eA"}]}']
)
def test_what_is_no_set_of_public_keys_is_refused(content: bytes) -> None:
    """U3: a shared secret is none."""
    with pytest.raises(InvalidArgument):
        parse(content)


@pytest.mark.parametrize("url", ["http://issuer.example", "ftp://a", "issuer", ""])
def test_keys_come_over_tls(url: str) -> None:
    """S5: a man in the middle could admit any caller."""
    with pytest.raises(InvalidArgument):
        IssuerKeys("https://issuer.example", url) if url else IssuerKeys("http://issuer.example")


def test_a_token_is_told_from_its_hash_and_the_file_is_read_again(tmp_path: Path) -> None:
    """S4: a line that is taken away ends its token, without a restart."""
    path = tmp_path / "tokens"
    path.write_text("# CI\n\n" + token_line("ci:main", "one", ["ops", "dev"]))
    tokens = StaticTokens(str(path))
    assert tokens.identity("one") == Identity("ci:main", frozenset({"ops", "dev"}), "token")
    assert tokens.identity("two") is None
    path.write_text(token_line("jane", "two"))
    assert (tokens.identity("one"), tokens.identity("two")) == (None, Identity("jane", how="token"))


def test_a_file_that_makes_no_sense_or_is_away_changes_nothing(tmp_path: Path) -> None:
    """S4"""
    path = tmp_path / "tokens"
    path.write_text(token_line("jane", "one"))
    tokens = StaticTokens(str(path))
    path.write_text("jane:one\n")
    assert tokens.identity("one") is not None
    path.unlink()
    assert tokens.identity("one") is not None


@pytest.mark.parametrize("line", ["jane", "jane:abc", ":" + "0" * 64, "group:ops:" + "0" * 64])
def test_a_line_that_is_none_is_refused_at_the_start(tmp_path: Path, line: str) -> None:
    """U3"""
    path = tmp_path / "tokens"
    path.write_text(line)
    with pytest.raises(InvalidArgument, match="line 1"):
        StaticTokens(str(path))


def test_a_call_has_at_most_one_authorization() -> None:
    assert [bearer(one).reveal() for one in ([], ["Bearer abc"], ["bearer  abc "])] == ["", "abc", "abc"]
    for headers in (["Basic abc"], ["Bearer a", "Bearer b"]):
        with pytest.raises(Unauthenticated):
            bearer(headers)


def test_an_admin_whom_nobody_could_identify_is_refused(tmp_path: Path) -> None:
    """S4: its policy would lock everybody out."""
    with refused("admin", "'root'"):
        IdentityConfig(admins=("root",))
    assert IdentityConfig(admins=("root",), token_file=str(tmp_path / "tokens")).is_set
