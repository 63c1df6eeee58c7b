"""The REST catalog of a coordinator, without the rest of it, and clients of it."""

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import RestCatalog as RestClient

from distop.catalog.catalog import EtcdCatalog
from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.access.gate import Gate, Policies
from distop.coordinator.rest.app import RestCatalog
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.operations.registry import Registry
from distop.process.threads import LoopThread


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def problem(self) -> tuple[int, str]:
        """Status and kind of an error, which says the status twice."""
        error = self.json["error"]
        assert error["code"] == self.status
        assert error["message"]
        return self.status, error["type"]


@dataclass(frozen=True)
class RestDoor:
    """One REST catalog that is served."""

    address: str
    prefix: str
    served: RestCatalog | None = None

    @property
    def behind(self) -> EtcdCatalog:
        """What does it all."""
        assert self.served is not None
        return self.served._catalog

    def client(self, **properties: str) -> RestClient:
        """pyiceberg's client of it."""
        return RestClient("rest", uri=f"http://{self.address}", **properties)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request; ``path`` goes behind the prefix, as it is."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        text = None
        if body is not None:
            named = {"content-type": "application/json", **named}
            text = body if isinstance(body, str) else json.dumps(body)
        return self.raw(method, f"/v1/{self.prefix}/{path}", text, named)

    def raw(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self.address, timeout=30)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            given = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, given, answer.read().decode())
        finally:
            connection.close()


@contextlib.contextmanager
def rest_door(etcd: EtcdConfig, folder: Path, identity: IdentityConfig | None = None) -> Iterator[RestDoor]:
    """A REST catalog in a thread of its own, whose tables lie below ``folder``."""
    warehouse = f"file://{folder}/warehouse"
    thread = LoopThread("rest-catalog")

    async def start() -> tuple[EtcdClient, RestCatalog]:
        client, known, registry = EtcdClient(etcd), identity or IdentityConfig(), Registry(())
        gate = Gate(Policies(client, known.admins), registry, known)
        made = RestCatalog("127.0.0.1:0", etcd, registry, warehouse, gate)
        await made.start()
        return client, made

    client, served = thread.submit(start).result(30)
    try:
        yield RestDoor(served.address, etcd.prefix, served)
    finally:
        thread.submit(served.stop).result(30)
        thread.submit(client.close).result(30)
        thread.loop.call_soon_threadsafe(thread.loop.stop)
