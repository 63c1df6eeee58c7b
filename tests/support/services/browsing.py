"""A browser without scripts, and a coordinator that serves it pages."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import quote

from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import Service, config_of, running
from support.services.rest import Answer, RestDoor
from support.waiting import eventually


class Page(Answer):
    @property
    def words(self) -> str:
        """What a reader sees: without markup."""
        return unescape(re.sub(r"<[^>]*>", "", self.text))


@dataclass(frozen=True)
class Web:
    """A browser without JavaScript."""

    address: str

    async def get(self, path: str, **headers: str) -> Page:
        return await asyncio.to_thread(self._get, path, headers)

    def _get(self, path: str, headers: dict[str, str]) -> Page:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = RestDoor(self.address, "").raw(named.pop("method", "GET"), path, None, named)
        return Page(answer.status, answer.headers, answer.text)

    async def shows(self, path: str, *texts: str, timeout_s: float = 10.0) -> Page:
        """The page once all these texts can be read on it."""

        async def shown() -> Page | None:
            answer = await self.get(path)
            return answer if answer.status == 200 and all(text in answer.words for text in texts) else None

        return await eventually(shown, timeout_s, every_s=0.05)


@asynccontextmanager
async def page(etcd: EtcdConfig, **fields: Any) -> AsyncIterator[tuple[Service, Web]]:
    config = config_of(etcd, web="127.0.0.1:0", **fields)
    async with running(config) as coordinator, Service(coordinator.address) as service:
        yield service, Web(coordinator.web_address)


def url(path: str, name: str) -> str:
    return f"{path}?name={quote(name, safe='')}"
