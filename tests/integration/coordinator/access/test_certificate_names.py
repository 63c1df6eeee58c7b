"""Who a certificate says that somebody is: the same at every door."""

import asyncio
import contextlib
import http.client
import ipaddress
import itertools
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from distop.client import AsyncClient, Credentials, Grant
from distop.coordinator.access.authentication import IdentityConfig, identity_of, names_of
from distop.coordinator.service import Coordinator
from distop.errors import Unauthenticated
from distop.metastore.etcd.config import EtcdConfig
from distop.process import http as serving
from distop.process.tls import TlsConfig
from support.services.certs import issued, put, put_pair
from support.services.coordinators import config_of, running
from support.services.tokens import token_file, token_of
from support.tables.nowhere import nowhere

CA = trustme.CA()

DNS, EMAIL, URI = x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier
IP = x509.IPAddress

SPIFFE = "spiffe://example.org/a"
SUBJECTS: dict[str, tuple[list[Any], str, str]] = {
    "a SPIFFE id": ([URI("spiffe://example.org/ns/a")], "", "spiffe://example.org/ns/a"),
    "a SPIFFE id before others": ([DNS("a.example"), URI(SPIFFE)], "root", SPIFFE),
    "of two of them neither": ([URI(SPIFFE), URI(f"{SPIFFE}/b")], "", f"cert:{SPIFFE}"),
    "one without a path is none": ([URI("spiffe://example.org")], "", "cert:spiffe://example.org"),
    "any other URI": ([URI("urn:a:b")], "", "cert:urn:a:b"),
    "a mail address before a host": ([DNS("a.example"), EMAIL("jane@a.example")], "", "cert:jane@a.example"),
    "a host": ([DNS("b.example"), DNS("a.example")], "", "cert:b.example"),
    "an address": ([IP(ipaddress.ip_address("fe80::1"))], "", "cert:fe80::1"),
    "the common name where it is all there is": ([], "jane", "cert:jane"),
    "and not beside another": ([DNS("a.example")], "root", "cert:a.example"),
    "a name that begins as a group does": ([], "group:admins", "cert:group:admins"),
    "of what nobody reads nothing": ([], "ja\u202ene", ""),
    "of a name that is too long nothing": ([DNS("a." * 300 + "b")], "", ""),
}


REFUSED = (ssl.SSLError, ConnectionError, http.client.HTTPException)
"""What a client sees whose certificate is not taken."""


class Place:
    """A coordinator with all doors, and who comes with a certificate."""

    def __init__(self, folder: Path, coordinator: Coordinator) -> None:
        self.folder, self.coordinator = folder, coordinator
        self.root = str(folder / "ca.crt")
        self._count = itertools.count()

    def credentials(self, names: list[Any], common: str, ca: trustme.CA = CA) -> Credentials:
        cert, key = put_pair(self.folder, f"client{next(self._count)}", issued(ca, *names, common=common))
        return Credentials(ca=self.root, cert=cert, key=key)

    def names(self, shown: Credentials) -> dict[str, list[bytes]]:
        """Those of a certificate, as we read them."""
        parsed = x509.load_pem_x509_certificate(Path(shown.cert).read_bytes())
        return names_of(parsed.public_bytes(Encoding.DER))

    def get(self, address: str, path: str, shown: Credentials | None, **headers: str) -> tuple[int, Any]:
        """Status, and the headers, of one request on a connection of its own."""
        context = ssl.create_default_context(cafile=self.root)
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        connection = http.client.HTTPSConnection(address, context=context, timeout=30)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.headers
        finally:
            connection.close()


@pytest_asyncio.fixture
async def place(etcd_config: EtcdConfig, tmp_path: Path) -> AsyncIterator[Place]:
    put(tmp_path / "ca.crt", CA.cert_pem.bytes())
    clients = put(tmp_path / "clients.crt", CA.cert_pem.bytes())
    cert, key = put_pair(tmp_path, "server", CA.issue_cert("127.0.0.1"))
    tls, tokens = TlsConfig(cert=cert, key=key, client_ca=clients), token_file(tmp_path, ["jo"])
    identity = IdentityConfig(certificates=True, admins=("cert:root",), token_file=tokens)
    doors = {"web": "127.0.0.1:0", "catalog": "127.0.0.1:0"}
    config = config_of(etcd_config, tls=tls, identity=identity, **doors)
    async with running(config) as coordinator:
        yield Place(tmp_path, coordinator)


async def test_grpc_page_and_catalog_read_the_same_name_from_a_certificate(place: Place) -> None:
    """S3: gRPC reads it in its own way, the page and the catalog in ours; both come to the same."""
    for case, (names, common, expected) in SUBJECTS.items():
        shown = place.credentials(names, common)
        found = read = ""
        async with AsyncClient(place.coordinator.address, timeout_s=60, credentials=shown) as client:
            with contextlib.suppress(Unauthenticated):
                found = (await client.grants()).subject
        with contextlib.suppress(Unauthenticated):
            identity = identity_of(place.names(shown))
            read = identity.subject if identity is not None else ""
        assert (found, read) == (expected, expected), case


async def test_a_certificate_counts_on_page_and_in_catalog(place: Place, etcd_config: EtcdConfig) -> None:
    """S3, U5: one is asked for, and who shows none may have a token."""
    at = place.coordinator
    root = place.credentials([], "root")
    async with AsyncClient(at.address, timeout_s=60, credentials=root) as client:
        await client.create_table("t", nowhere())
        await client.change_grants([Grant(who="cert:jane", role="reader", tables=("t",))])
    namespace = f"/v1/{etcd_config.prefix}/namespaces/default"

    async def statuses(shown: Credentials | None, **headers: str) -> list[int]:
        doors = [
            (at.web_address, "/api/table?name=t"),
            (at.web_address, "/metrics"),
            (at.catalog_address, namespace),
        ]
        return [(await asyncio.to_thread(place.get, *door, shown, **headers))[0] for door in doors]

    assert await statuses(place.credentials([], "root")) == [200, 200, 200]
    assert await statuses(place.credentials([], "jane")) == [200, 403, 200]
    assert await statuses(place.credentials([], "joe")) == [404, 403, 404]
    assert await statuses(None) == [401, 401, 401]
    assert await statuses(None, authorization=f"Bearer {token_of('jo')}") == [404, 403, 404]
    # A token counts before a certificate; one that does not hold is not made up for by it.
    assert await statuses(place.credentials([], "root"), authorization="Bearer x") == [401, 401, 401]
    with pytest.raises(REFUSED):
        await statuses(place.credentials([], "root", trustme.CA()))


async def test_an_old_connection_ends_with_an_answer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4: so a certificate that is not to count any more has to be shown again."""
    shown = place.credentials([], "root")
    for address in (place.coordinator.web_address, place.coordinator.catalog_address):
        _, headers = await asyncio.to_thread(place.get, address, "/", shown)
        assert headers.get("connection") != "close"
    monkeypatch.setattr(serving, "MAX_AGE_S", -1)
    for address in (place.coordinator.web_address, place.coordinator.catalog_address):
        _, headers = await asyncio.to_thread(place.get, address, "/", shown)
        assert headers["connection"] == "close"


async def test_another_ca_of_clients_counts_at_once(place: Place) -> None:
    """S4: on the page too, and nobody comes back with what he has agreed on before."""
    other = trustme.CA()
    new = place.credentials([], "root", other)
    old = place.credentials([], "root")
    asked = (place.coordinator.web_address, "/metrics")
    assert (await asyncio.to_thread(place.get, *asked, old))[0] == 200
    put(place.folder / "clients.crt", other.cert_pem.bytes())
    assert (await asyncio.to_thread(place.get, *asked, new))[0] == 200
    with pytest.raises(REFUSED):
        await asyncio.to_thread(place.get, *asked, old)
