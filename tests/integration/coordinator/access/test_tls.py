"""A coordinator behind TLS: accepted clients, the errors of the others, and replaced certificates."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import trustme

from distop.client import AsyncClient, Credentials
from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.service import Coordinator
from distop.errors import InvalidArgument, Unavailable
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from distop.process.tls import TlsConfig
from support.services.certs import put, put_pair
from support.services.coordinators import config_of, running
from support.services.tokens import token_file, token_of
from support.waiting import eventually


class Place:
    """Everybody's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self.strangers = trustme.CA(), trustme.CA()
        self.root = put(folder / "ca.crt", self.ca.cert_pem.bytes())
        self.other_root = put(folder / "other.crt", self.strangers.cert_pem.bytes())

    def server(self) -> tuple[str, str]:
        return put_pair(self.folder, "server", self.ca.issue_cert("127.0.0.1", "localhost"))

    def client(
        self, name: str = "jane@example.org", ca: trustme.CA | None = None, **span: Any
    ) -> Credentials:
        cert, key = put_pair(self.folder, "client", (ca or self.ca).issue_cert(name, **span))
        return Credentials(ca=self.root, cert=cert, key=key)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest_asyncio.fixture
async def mutual(etcd_config: EtcdConfig, place: Place) -> AsyncIterator[Coordinator]:
    """A coordinator that wants certificates of its clients."""
    cert, key = place.server()
    tls = TlsConfig(cert=cert, key=key, client_ca=place.root)
    identity = IdentityConfig(certificates=True, admins=("cert:jane@example.org",))
    async with running(config_of(etcd_config, tls=tls, identity=identity)) as coordinator:
        yield coordinator


async def subject(address: str, credentials: Credentials, connect_timeout_s: float = 20.0) -> str:
    async with AsyncClient(
        address, timeout_s=60, connect_timeout_s=connect_timeout_s, credentials=credentials
    ) as client:
        return (await client.grants()).subject


async def test_a_certificate_says_who_calls_and_others_are_told(mutual: Coordinator, place: Place) -> None:
    """S3, U5: another CA, an expired one, none, plain text; and what is no server at all."""
    address = mutual.address
    assert await subject(address, place.client()) == "cert:jane@example.org"
    assert await subject(address, place.client("joe@example.org")) == "cert:joe@example.org"
    past = datetime.now(UTC) - timedelta(days=2)
    refused = {
        "a certificate of another CA": place.client(ca=place.strangers),
        "no certificate": Credentials(ca=place.root),
        "plain text": Credentials(),
        "a server that is not trusted": Credentials(ca=place.other_root),
    }
    for why, credentials in refused.items():
        with pytest.raises(Unavailable, match="no TLS connection"):
            pytest.fail(f"{why} is let in as {await subject(address, credentials, 0.3)!r}")
    expired = place.client(not_before=past - timedelta(days=2), not_after=past)
    with pytest.raises(Unavailable, match="no TLS connection"):
        await subject(address, expired, 0.3)
    with pytest.raises(Unavailable, match="refused"):
        await subject(f"127.0.0.1:{free_port()}", place.client(), 0.3)


async def test_certificates_replaced_under_load_fail_no_call(mutual: Coordinator, place: Place) -> None:
    """S4: on both sides; new connections get the new certificate."""
    host, _, port = mutual.address.rpartition(":")
    made, failed, over = 0, [], asyncio.Event()
    credentials = place.client()

    async def calls() -> None:
        nonlocal made
        async with AsyncClient(mutual.address, credentials=credentials) as client:
            while not over.is_set():
                try:
                    await client.grants()
                    made += 1
                except Exception as error:
                    failed.append(error)

    def shown() -> bytes:
        """The certificate that a new connection gets."""
        context = ssl.create_default_context(cafile=place.root)
        context.load_cert_chain(credentials.cert, credentials.key)
        with (
            socket.create_connection((host, int(port))) as plain,
            context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            return wrapped.getpeercert(binary_form=True) or b""

    callers = [asyncio.create_task(calls()) for _ in range(4)]
    try:
        for _ in range(3):
            before, done = await asyncio.to_thread(shown), made
            place.server()
            place.client()

            async def replaced(before: bytes = before, done: int = done) -> bool:
                return made > done + 20 and await asyncio.to_thread(shown) != before

            await eventually(replaced)
    finally:
        over.set()
        await asyncio.gather(*callers)
    assert not failed
    # A certificate whose key has not come yet is not taken.
    before = await asyncio.to_thread(shown)
    put(place.folder / "server.crt", place.ca.issue_cert("127.0.0.1").cert_chain_pems[0].bytes())
    assert await asyncio.to_thread(shown) == before


async def test_the_page_follows_its_certificate(
    etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    """S4: and its cookie is never sent in plain text."""
    cert, key = place.server()
    identity = IdentityConfig(token_file=token_file(tmp_path, ["root"]), admins=("root",))
    config = config_of(etcd_config, tls=TlsConfig(cert=cert, key=key), identity=identity, web="127.0.0.1:0")
    async with running(config) as coordinator:
        page = f"https://{coordinator.web_address}"
        trust = ssl.create_default_context(cafile=place.root)
        for _ in range(2):
            async with httpx.AsyncClient(verify=trust) as browser:
                signed = await browser.post(f"{page}/sign-in", data={"token": token_of("root")})
                assert {"secure", "httponly", "samesite=strict"} <= {
                    part.strip().lower() for part in signed.headers["set-cookie"].split(";")
                }
                shown = await asyncio.to_thread(_certificate, coordinator.web_address, place.root)
            place.server()
            assert await asyncio.to_thread(_certificate, coordinator.web_address, place.root) != shown


def _certificate(address: str, root: str) -> str:
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), ca_certs=root)


@pytest.mark.parametrize("door", ["listen", "web", "catalog"])
def test_no_door_is_open_to_other_hosts_in_plain_text(etcd_config: EtcdConfig, door: str) -> None:
    """S3: unless somebody says so; a name may be anybody's address."""
    for address in ("0.0.0.0:0", "[::]:0", "10.0.0.1:0", "coordinator.example:0", ":0"):
        with pytest.raises(InvalidArgument) as told:
            config_of(etcd_config, **{door: address})
        assert told.value.details["field"] == door
    for address in ("127.0.0.1:0", "127.9.9.9:0", "[::1]:0", "localhost:0"):
        config_of(etcd_config, **{door: address})


async def test_plain_text_that_is_allowed_is_told_of_at_the_start(
    etcd_config: EtcdConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """S3"""
    config = config_of(etcd_config, listen="0.0.0.0:0", tls=TlsConfig(insecure=True))
    async with running(config) as coordinator:
        port = coordinator.address.rpartition(":")[2]
        assert await subject(f"127.0.0.1:{port}", Credentials()) == ""
    warnings = [one.levelname for one in caplog.records if one.getMessage() == "coordinator_insecure"]
    assert warnings == ["WARNING"]
