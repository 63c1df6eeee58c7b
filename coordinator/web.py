"""The read-only page of a coordinator, its JSON twin under ``/api/``, and ``/metrics``.

It runs in the coordinator's event loop, with a connection to etcd of its own, and can be left out: nothing
of it is loaded without ``--web``. Whoever reaches the port may read everything, so it listens on loopback
unless told otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from hashlib import blake2b
from importlib.resources import files
from typing import Any

import uvicorn
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from distop.coordinator.listing import list_operations
from distop.coordinator.prometheus import PrometheusMetrics
from distop.coordinator.server import AddressInUse
from distop.coordinator.web_cache import Answers
from distop.coordinator.web_pages import LARGE_GRID, Frame
from distop.coordinator.web_reads import Reads
from distop.errors import DeadlineExceeded, DistopError, InvalidArgument, Kind, NotFound
from distop.metastore.client import EtcdClient
from distop.metastore.config import EtcdConfig
from distop.metastore.keyspace import OperationId
from distop.proto import distop_pb2 as pb

log = logging.getLogger(__name__)

ETCD_S, REQUEST_S = 2.0, 5.0
"""Deadlines of one call to etcd and of a whole request, in seconds."""

KEEP_S = 0.2
"""Seconds a page is kept: as many lookers as there may be, etcd is asked five times a second."""

MAX_CONNECTIONS = 256
GRACE_S = 1

_HTTP = {
    Kind.INVALID: 400,
    Kind.NOT_FOUND: 404,
    Kind.EXISTS: 409,
    Kind.PRECONDITION: 412,
    Kind.CONFLICT: 409,
    Kind.EXHAUSTED: 429,
    Kind.UNAVAILABLE: 503,
    Kind.DEADLINE: 504,
    Kind.UNIMPLEMENTED: 501,
    Kind.DENIED: 403,
    Kind.UNAUTHENTICATED: 401,
    Kind.INTERNAL: 500,
}

_HEADERS = [
    # Nothing from elsewhere, nothing inline: a name that got past the escaping would still do nothing.
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]

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
    threads:
        The coordinator's threads for blocking work.
    member:
        Tells the coordinator's present member id.
    """

    def __init__(
        self,
        listen: str,
        etcd: EtcdConfig,
        threads: Executor,
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
        self._reads = Reads(self._client, threads, wall=wall)
        self._answers = Answers()
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen and serve. Raises :class:`~distop.coordinator.server.AddressInUse`."""
        listener = _listen(self.address)
        host = self.address.rpartition(":")[0]
        self.address = f"{host}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            _Guard(self._app(), loopback_only=_is_loopback(host)),
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
        await self._answers.close()
        await self._reads.close()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
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
                return _answer(request, await self._fresh(request, make), "text/html; charset=utf-8")
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
                return _answer(request, await self._fresh(request, written), "application/json")
            except DistopError as error:
                told = {
                    "code": error.code,
                    "message": error.message,
                    "hint": error.hint,
                    "retryable": error.retryable,
                    "details": error.details,
                }
                text = json.dumps({"error": told}, ensure_ascii=False)
                return Response(text, _HTTP[error.kind], media_type="application/json")

        return endpoint

    async def _fresh(self, request: Request, make: Callable[[Query], Awaitable[str]]) -> str:
        """What ``make`` makes of the request's query; shared by all who ask the same within a moment."""
        query = Query(request.query_params)

        async def made() -> str:
            async with _errors_of(request.url.path):
                return await make(query)

        return await self._answers.get((request.url.path, *query.items()), made, keep_s=KEEP_S)

    def _frame(self) -> Frame:
        return Frame(keyspace=self._client.keyspace.name, member=self._member(), now=self._wall())

    def _problem(self, error: DistopError) -> Response:
        status = _HTTP[error.kind]
        return Response(self._frame().problem(error), status, media_type="text/html")

    def _not_found(self, request: Request, _: Exception) -> Response:
        return self._problem(NotFound("there is no such page", details={"path": request.url.path}))

    async def _show_metrics(self, request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._metrics.registry), headers={"content-type": kind})

    # -- pages ---------------------------------------------------------------------------------------

    async def _overview(self, query: Query) -> str:
        return self._frame().overview(await self._reads.overview(query.text("after")))

    async def _table(self, query: Query) -> str:
        name, page, marks = query.needed("name"), query.number("page"), query.number("marks")
        view = await self._reads.table(name, page=page)
        watermarks = await self._reads.watermarks(name)
        return self._frame().table(view, watermarks, page=page, marks=marks)

    async def _operation(self, query: Query) -> str:
        operation, grid, reason = await self._reads.operation(OperationId.parse(query.needed("name")))
        return self._frame().operation(operation, grid, reason)

    async def _members(self, _: Query) -> str:
        return self._frame().members(await self._reads.members(), await self._reads.leaders())

    # -- JSON ----------------------------------------------------------------------------------------

    async def _api_tables(self, query: Query) -> dict[str, Any]:
        request = pb.ListTablesRequest(
            page_size=query.number("page_size"), page_token=query.text("page_token")
        )
        return _plain(await self._reads.tables.ListTables(request, None))

    async def _api_table(self, query: Query) -> dict[str, Any]:
        view = await self._reads.table(query.needed("name"), page=0)
        reason = {"mood": view.reason.mood.name, "sentence": view.reason.sentence}
        return {"table": _plain(view.table), "why": reason, "watermarkCount": view.watermarks}

    async def _api_watermarks(self, query: Query) -> dict[str, Any]:
        request = pb.GetWatermarksRequest(table=query.needed("table"), source=query.text("source"))
        return _plain(await self._reads.tables.GetWatermarks(request, None))

    async def _api_operations(self, query: Query) -> dict[str, Any]:
        request = pb.ListOperationsRequest(
            table=query.text("table"),
            type=query.text("type"),
            states=[_state(name) for name in query.text("states").split(",") if name],
            page_size=query.number("page_size"),
            page_token=query.text("page_token"),
        )
        return _plain(await list_operations(self._client, request))

    async def _api_operation(self, query: Query) -> dict[str, Any]:
        message, _, _ = await self._reads.operation(OperationId.parse(query.needed("name")))
        return _plain(message)

    async def _api_jobs(self, query: Query) -> dict[str, Any]:
        """The partition grid: a letter a cell (``.`` waiting, ``r`` at work, ``s`` done, ``f`` failed)."""
        operation, grid, reason = await self._reads.operation(OperationId.parse(query.needed("name")))
        told: dict[str, Any] = {"operation": _plain(operation)}
        if grid is not None:
            told["cells"] = grid.text(LARGE_GRID)
            told["failures"] = grid.failures
        if reason is not None:
            told["why"] = {"mood": reason.mood.name, "sentence": reason.sentence}
        return told

    async def _api_members(self, _: Query) -> dict[str, Any]:
        return {"members": [_plain(member) for member in await self._reads.members()]}

    async def _api_leaders(self, _: Query) -> dict[str, Any]:
        return {"leaders": [_plain(leader) for leader in await self._reads.leaders()]}


class Query:
    """The parameters of a request, each checked where it is used; others are left out."""

    KNOWN = frozenset(
        {"after", "marks", "name", "page", "page_size", "page_token", "source", "states", "table", "type"}
    )

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name: value for name, value in given.items() if name in self.KNOWN}

    def items(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self._given.items()))

    def text(self, name: str) -> str:
        """A text; empty without one."""
        return self._given.get(name, "")

    def needed(self, name: str) -> str:
        """A text that must be given."""
        if not (value := self.text(name)):
            raise InvalidArgument(f"{name} is missing", details={"field": name})
        return value

    def number(self, name: str) -> int:
        """A whole number from 0 to 10,000; 0 without one."""
        value = self.text(name) or "0"
        if not (value.isascii() and value.isdecimal() and len(value) <= 5 and int(value) <= 10_000):
            raise InvalidArgument(f"{name}={value[:50]!r} is no number up to 10,000", details={"field": name})
        return int(value)


@contextlib.asynccontextmanager
async def _errors_of(path: str) -> Any:
    """Everything that goes wrong inside is a :class:`DistopError`, and nothing goes on for ever."""
    try:
        async with asyncio.timeout(REQUEST_S):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"{path} took longer than {REQUEST_S:g} s") from None
    except DistopError:
        raise
    except Exception as error:
        log.exception("page_crashed", extra={"path": path})
        raise DistopError(
            f"{path} failed: {type(error).__name__}: {error}",
            hint="see the coordinator's log; this is a defect",
        ) from error


def _answer(request: Request, text: str, kind: str) -> Response:
    """The text, or just the word that it has not changed since the asker saw it last."""
    body = text.encode(errors="replace")
    etag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"etag": etag, "cache-control": "no-cache, private", "content-type": kind}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers)


def _static(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    text = (files(__package__) / "page" / name).read_text(encoding="utf-8")

    async def endpoint(request: Request) -> Response:
        return _answer(request, text, kind)

    return endpoint


def _plain(message: Message) -> dict[str, Any]:
    """A message of the gRPC API as JSON, zeros and empty texts included."""
    plain: dict[str, Any] = MessageToDict(message, always_print_fields_with_no_presence=True)
    return plain


def _state(name: str) -> pb.OperationState:
    try:
        return pb.OperationState.Value(name.upper())
    except ValueError:
        known = ", ".join(pb.OperationState.keys()[1:])
        raise InvalidArgument(
            f"{name[:50]!r} is no state; known are {known}", details={"field": "states"}
        ) from None


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise AddressInUse(f"cannot listen on {address}: {error}", hint="choose another with --web") from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    """Leaves signals to the coordinator, which ends this server in its turn."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Guard:
    """Adds the headers that keep a browser in its place, and turns away who came by another name.

    A page on loopback is asked for by a name of loopback. Another name means that some web site has pointed
    its own name here (DNS rebinding) to read with the eyes of whoever visits it.
    """

    def __init__(self, app: ASGIApp, *, loopback_only: bool) -> None:
        self._app = app
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        if self._loopback_only and not self._welcome(scope):
            answer = PlainTextResponse("this page is served to loopback names only\n", 421)
            await answer(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

    def _welcome(self, scope: Scope) -> bool:
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        name = host if host.endswith("]") else host.rpartition(":")[0] if ":" in host else host
        return _is_loopback(name)
