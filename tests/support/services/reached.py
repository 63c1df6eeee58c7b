"""A coordinator as untrusted callers reach it: the command itself, with all its servers on loopback."""

import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from distop.client import Client, Credentials
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from support.services.tokens import token_file, token_of

ADMIN = "root"

PATIENCE_S = 60.0
"""What has not been answered by then hangs."""

SIGNS = ("Traceback", "_crashed", "Fatal error", "lease_lost", "incarnation_failed")


@dataclass(frozen=True)
class Reached:
    """One that runs."""

    grpc: str
    page: str
    catalog: str
    folder: Path
    """The only one that it opens for callers; the table ``t`` lies in it."""
    process: subprocess.Popen[bytes]

    _log: BinaryIO

    def crashes(self) -> str:
        """The log since the last call, if it shows a defect or a lost lease; else empty."""
        logged = self._log.read().decode(errors="replace")
        return logged if any(sign in logged for sign in SIGNS) else ""

    def client(self) -> Client:
        known = Credentials(token=token_of(ADMIN))
        return Client(self.grpc, timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S, credentials=known)

    def members(self) -> list[str]:
        with self.client() as client:
            return [member.id for member in client.members()]


@contextmanager
def reached(etcd: EtcdConfig, folder: Path) -> Iterator[Reached]:
    """A coordinator that knows one token, the admin's."""
    grpc, page, catalog = (f"127.0.0.1:{free_port()}" for _ in range(3))
    given = {
        "--listen": grpc,
        "--web": page,
        "--catalog": catalog,
        "--warehouse": f"file://{folder}/warehouse",
        "--token-file": token_file(folder, [ADMIN]),
        "--admin": ADMIN,
        "--lease-ttl": "15",  # a busy machine costs no lease, a request that holds up the process does
        "--allow-source": str(folder),
        "--allow-location": str(folder),
    }
    options = [text for option in given.items() for text in option]
    listed = {"DISTOP_ALLOW_SOURCES": "", "DISTOP_ALLOW_LOCATIONS": "", "DISTOP_ALLOW_ENDPOINTS": ""}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "distop.cli", "coordinator", *options],
            env={**os.environ, **etcd.to_env(), **listed},
            stdout=log,
            stderr=log,
        )
    coordinator = Reached(grpc, page, catalog, folder, process, (folder / "log").open("rb"))
    try:
        with coordinator.client() as client:
            client.create_table("t", f"file://{folder}/t")
        yield coordinator
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        coordinator._log.close()


def answer(address: str, sent: bytes, *, method: str = "GET", ends: bool = True) -> tuple[int, bytes] | None:
    """What is answered to bytes: status and body; ``None``: nothing, the connection is closed.

    Raises :class:`TimeoutError` where neither happens.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        try:
            connection.sendall(sent)
            if ends:
                with suppress(OSError):  # cut off already
                    connection.shutdown(socket.SHUT_WR)
            response = http.client.HTTPResponse(connection, method=method)
            response.begin()
            return response.status, response.read()
        except (http.client.HTTPException, ConnectionError):
            return None  # cut off, as who floods is
