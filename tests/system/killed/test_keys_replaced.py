"""Certificates, their CA and tokens are replaced while everybody calls: a process, and each of its doors."""

import asyncio
import os
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trustme

from distop.client import AsyncClient, Credentials
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from support.services import preloaded
from support.services.certs import put, put_pair
from support.services.tokens import token_line
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("replaces twelve keys under load, and waits until each is in use"),
]

ROUNDS = 2
CALLERS = 3
SUBJECT = "jane"


class Keys:
    """Everybody's files, of the generation that counts at present."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ca, self._generation = trustme.CA(), 0
        self.trust([self._ca])
        self.issue()
        self.know([0])
        self.hand_out()

    def trust(self, authorities: list[trustme.CA]) -> None:
        """Of these, clients and the service take certificates."""
        roots = b"".join(one.cert_pem.bytes() for one in authorities)
        for name in ("ca.crt", "clients.crt"):
            put(self.folder / name, roots)

    def issue(self) -> None:
        """New certificates for both sides."""
        put_pair(self.folder, "server", self._ca.issue_cert("127.0.0.1"))
        put_pair(self.folder, "client", self._ca.issue_cert("spare@example.org"))

    def know(self, generations: list[int]) -> None:
        """The tokens that count."""
        lines = (token_line(SUBJECT, f"token {number}") for number in generations)
        put(self.folder / "tokens", "".join(lines).encode())

    def hand_out(self) -> None:
        """The present token, to the client."""
        put(self.folder / "token", f"token {self._generation}\n".encode())

    def steps(self) -> Iterator[Callable[[], None]]:
        """One rotation of all of it: each step once everybody has called after the one before."""
        old, self._ca = self._ca, trustme.CA()
        yield lambda: self.trust([old, self._ca])
        yield self.issue
        yield lambda: self.trust([self._ca])
        self._generation += 1
        yield lambda: self.know([self._generation - 1, self._generation])
        yield self.hand_out
        yield lambda: self.know([self._generation])

    @property
    def token(self) -> str:
        return (self.folder / "token").read_text().strip()

    @property
    def credentials(self) -> Credentials:
        """Of a client, by files."""
        ca, cert, key, token = (
            str(self.folder / name) for name in ("ca.crt", "client.crt", "client.key", "token")
        )
        return Credentials(ca=ca, cert=cert, key=key, token_file=token)

    def options(self) -> list[str]:
        """Of the service."""
        names = {"cert": "server.crt", "key": "server.key", "client-ca": "clients.crt"}
        given = [f"--tls-{option}={self.folder / name}" for option, name in names.items()]
        return [*given, f"--token-file={self.folder / 'tokens'}", "--admin", SUBJECT]


@contextmanager
def coordinator(etcd: EtcdConfig, log: Path, *options: str) -> Iterator[None]:
    environment = {**os.environ, **etcd.to_env()}
    process = preloaded.start("distop.cli", ["coordinator", *options], env=environment, log=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def test_everything_is_replaced_under_load_and_no_call_fails(
    etcd_config: EtcdConfig, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """S3, S4: calls on open connections, and a new connection with each request to page and catalog."""
    keys = Keys(tmp_path)
    grpc, web, catalog = (f"127.0.0.1:{free_port()}" for _ in range(3))
    made: Counter[str] = Counter()
    failed: list[str] = []
    over = asyncio.Event()

    async def calling(name: str, call: Callable[[], Awaitable[object]]) -> None:
        while not over.is_set():
            try:
                await call()
            except Exception as error:
                failed.append(f"{name}: {error!r}")
                await asyncio.sleep(0.1)
            made[name] += 1

    async def asked(url: str) -> None:
        trust = ssl.create_default_context(cafile=keys.folder / "ca.crt")
        async with httpx.AsyncClient(verify=trust) as browser:
            headers = {"authorization": f"Bearer {keys.token}"}
            (await browser.get(url, headers=headers, timeout=30)).raise_for_status()

    addresses = ("--listen", grpc, "--web", web, "--catalog", catalog)
    with coordinator(etcd_config, tmp_path / "log", *keys.options(), *addresses):
        clients = [
            AsyncClient(grpc, timeout_s=60, connect_timeout_s=60, credentials=keys.credentials)
            for _ in range(CALLERS)
        ]
        first = await clients[0].grants()
        assert first.subject == SUBJECT
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            f"client {number}": client.grants for number, client in enumerate(clients)
        }
        calls["page"] = lambda: asked(f"https://{web}/api/tables")
        calls["catalog"] = lambda: asked(f"https://{catalog}/v1/config")
        callers = [asyncio.create_task(calling(name, call)) for name, call in calls.items()]
        try:
            for _ in range(ROUNDS):
                for step in keys.steps():
                    step()
                    before = Counter(made)

                    def everybody_has_called(before: Counter[str] = before) -> bool:
                        # One call may have begun before the step; its end says nothing.
                        return all(made[name] >= before[name] + 3 for name in calls)

                    await eventually(everybody_has_called, 90)
            # What has been taken away counts no more: all that was replaced was in use.
            trust = ssl.create_default_context(cafile=keys.folder / "ca.crt")
            async with httpx.AsyncClient(verify=trust) as browser:
                headers = {"authorization": "Bearer token 0"}
                assert (await browser.get(f"https://{web}/api/tables", headers=headers)).status_code == 401
        finally:
            over.set()
            await asyncio.gather(*callers)
            for client in clients:
                await client.close()
    record_property("rotation_calls", made.total())
    record_property("rotation_failed_calls", len(failed))
    assert not failed
