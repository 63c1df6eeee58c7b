"""The read-only page of a coordinator, its JSON twin under ``/api/``, and ``/metrics``.

It runs in the coordinator's event loop, with a connection to etcd of its own, and can be left out: nothing
of it is loaded without ``--web``. Whoever reaches the port may read everything, so it listens on loopback
unless told otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from distop.coordinator.api.server import AddressInUse
from distop.coordinator.metrics.prometheus import PrometheusMetrics
from distop.coordinator.views.listing import list_operations
from distop.coordinator.views.why import Reason
from distop.coordinator.web.cache import Answers
from distop.coordinator.web.http import HTTP_STATUS, Guard, Query, answer, errors_of, is_loopback
from distop.coordinator.web.pages import LARGE_GRID, render
from distop.coordinator.web.reads import NO_CONTEXT, Reads
from distop.errors import DistopError, InvalidArgument, NotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.keyspace import OperationId
from distop.proto import distop_pb2 as pb
from distop.proto.plain import plain

log = logging.getLogger(__name__)

ETCD_S = 2.0
"""Deadline of one call to etcd, in seconds: who looks at a page wants to know soon that etcd is away."""

KEEP_S = 0.2
"""Seconds a page is kept: as many lookers as there may be, etcd is asked five times a second."""

MAX_CONNECTIONS = 256
GRACE_S = 1

_STATIC = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class WebServer:
    """The page of one coordinator.

    Parameters
    ----------
    listen:
        ``host:port``; port 0 picks a free one, which :attr:`address` then tells.
    member:
        Tells the coordinator's present member id.
    """

    def __init__(
        self,
        listen: str,
        etcd: EtcdConfig,
        metrics: PrometheusMetrics,
        member: Callable[[], str],
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.address = listen
        self._metrics = metrics
        self._member = member
        self._wall = wall
        self._client = EtcdClient(replace(etcd, timeout_s=min(etcd.timeout_s, ETCD_S)))
        self._reads = Reads(self._client, wall=wall)
        self._answers = Answers()
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen and serve. Raises :class:`~distop.coordinator.api.server.AddressInUse`."""
        listener = _listen(self.address)
        host = self.address.rpartition(":")[0]
        self.address = f"{host}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            Guard(self._app(), loopback_only=is_loopback(host)),
            loop="none",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=GRACE_S,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([listener]), name="web")
        log.info("web_listening", extra={"address": self.address})

    async def stop(self) -> None:
        """Answer what was asked, and end."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
        await self._answers.close()
        await self._reads.close()
        await self._client.close()

    # -- routes --------------------------------------------------------------------------------------

    def _app(self) -> Starlette:
        pages = {
            "/": self._overview,
            "/table": self._table,
            "/operation": self._operation,
            "/members": self._members,
        }
        api = {
            "/api/tables": self._api_tables,
            "/api/table": self._api_table,
            "/api/watermarks": self._api_watermarks,
            "/api/operations": self._api_operations,
            "/api/operation": self._api_operation,
            "/api/jobs": self._api_jobs,
            "/api/members": self._api_members,
            "/api/leaders": self._api_leaders,
        }
        routes = [Route(path, self._page(make)) for path, make in pages.items()]
        routes += [Route(path, self._json(make)) for path, make in api.items()]
        routes += [Route(f"/static/{name}", _static(name, kind)) for name, kind in _STATIC.items()]
        routes.append(Route("/metrics", self._show_metrics))
        return Starlette(routes=routes, exception_handlers={404: self._not_found})

    def _page(self, make: Callable[[Query], Awaitable[str]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                return answer(request, await self._fresh(request, make), "text/html; charset=utf-8")
            except DistopError as error:
                return self._problem(error)

        return endpoint

    def _json(
        self, make: Callable[[Query], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def written(query: Query) -> str:
            return json.dumps(await make(query), ensure_ascii=False, indent=1)

        async def endpoint(request: Request) -> Response:
            try:
                return answer(request, await self._fresh(request, written), "application/json")
            except DistopError as error:
                told = {
                    "code": error.code,
                    "message": error.message,
                    "hint": error.hint,
                    "retryable": error.retryable,
                    "details": error.details,
                }
                text = json.dumps({"error": told}, ensure_ascii=False)
                return Response(text, HTTP_STATUS[error.kind], media_type="application/json")

        return endpoint

    async def _fresh(self, request: Request, make: Callable[[Query], Awaitable[str]]) -> str:
        """What ``make`` makes of the request's query; shared by all who ask the same within a moment."""
        query = Query(request.query_params)

        async def made() -> str:
            async with errors_of(request.url.path):
                return await make(query)

        return await self._answers.get((request.url.path, *query.items()), made, keep_s=KEEP_S)

    def _render(self, template: str, **values: object) -> str:
        return render(
            template, keyspace=self._client.keyspace.name, member=self._member(), now=self._wall(), **values
        )

    def _problem(self, error: DistopError) -> Response:
        page = self._render("problem.html", error=error)
        return Response(page, HTTP_STATUS[error.kind], media_type="text/html")

    def _not_found(self, request: Request, _: Exception) -> Response:
        return self._problem(NotFound("there is no such page", details={"path": request.url.path}))

    async def _show_metrics(self, request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._metrics.registry), headers={"content-type": kind})

    # -- pages ---------------------------------------------------------------------------------------

    async def _overview(self, query: Query) -> str:
        return self._render("overview.html", view=await self._reads.overview(query.text("after")))

    async def _table(self, query: Query) -> str:
        name, page, marks = query.needed("name"), query.number("page"), query.number("marks")
        view = await self._reads.table(name, page=page)
        watermarks = await self._reads.watermarks(name)
        return self._render("table.html", view=view, watermarks=watermarks, page=page, marks=marks)

    async def _operation(self, query: Query) -> str:
        view = await self._reads.operation(OperationId.parse(query.needed("name")))
        return self._render("operation.html", view=view)

    async def _members(self, _: Query) -> str:
        members, leaders = await self._reads.members(), await self._reads.leaders()
        led = Counter(leader.member for leader in leaders)
        return self._render("members.html", members=members, leaders=leaders, led=led)

    # -- JSON ----------------------------------------------------------------------------------------

    async def _api_tables(self, query: Query) -> dict[str, Any]:
        request = pb.ListTablesRequest(
            page_size=query.number("page_size"), page_token=query.text("page_token")
        )
        return plain(await self._reads.tables.ListTables(request, NO_CONTEXT))

    async def _api_table(self, query: Query) -> dict[str, Any]:
        view = await self._reads.table(query.needed("name"), page=0)
        return {"table": plain(view.table), "why": _told(view.reason), "watermark_count": view.watermarks}

    async def _api_watermarks(self, query: Query) -> dict[str, Any]:
        request = pb.GetWatermarksRequest(table=query.needed("table"), source=query.text("source"))
        return plain(await self._reads.tables.GetWatermarks(request, NO_CONTEXT))

    async def _api_operations(self, query: Query) -> dict[str, Any]:
        request = pb.ListOperationsRequest(
            table=query.text("table"),
            type=query.text("type"),
            states=[_state(name) for name in query.text("states").split(",") if name],
            page_size=query.number("page_size"),
            page_token=query.text("page_token"),
        )
        return plain(await list_operations(self._client, request))

    async def _api_operation(self, query: Query) -> dict[str, Any]:
        return plain((await self._reads.operation(OperationId.parse(query.needed("name")))).operation)

    async def _api_jobs(self, query: Query) -> dict[str, Any]:
        """The partition grid: a letter a cell (``.`` waiting, ``r`` at work, ``s`` done, ``f`` failed)."""
        view = await self._reads.operation(OperationId.parse(query.needed("name")))
        told: dict[str, Any] = {"operation": plain(view.operation)}
        if view.grid is not None:
            told |= {"cells": view.grid.text(LARGE_GRID), "failures": view.grid.failures}
        if view.reason is not None:
            told["why"] = _told(view.reason)
        return told

    async def _api_members(self, _: Query) -> dict[str, Any]:
        return {"members": [plain(member) for member in await self._reads.members()]}

    async def _api_leaders(self, _: Query) -> dict[str, Any]:
        return {"leaders": [plain(leader) for leader in await self._reads.leaders()]}


def _static(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """One file. Starlette's ``StaticFiles`` would take its kind from the machine's table of media types."""
    text = (files(__package__) / "page" / name).read_text(encoding="utf-8")

    async def endpoint(request: Request) -> Response:
        return answer(request, text, kind)

    return endpoint


def _told(reason: Reason) -> dict[str, str]:
    return {"mood": reason.mood.name.lower(), "sentence": reason.sentence}


def _state(name: str) -> str:
    if (known := name.upper()) not in (names := pb.OperationState.keys()[1:]):
        raise InvalidArgument(
            f"{name[:50]!r} is no state; known are {', '.join(names)}", details={"field": "states"}
        )
    return known


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise AddressInUse(
            f"cannot listen on {address}: {error}", hint="choose another with --web host:port"
        ) from error


class _Server(uvicorn.Server):
    """Leaves signals to the coordinator, which ends this server in its turn."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
