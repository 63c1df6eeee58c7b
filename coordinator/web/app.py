"""The page of a coordinator, its JSON twin under ``/api/``, ``/metrics``, and probes.

It runs in the coordinator's event loop, with its own connection to etcd, and is optional: nothing is loaded
without ``--web``. Each path shows what the caller may see (``requests.py``); without authentication every
caller may read everything.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from distop.coordinator.access.callers import answer_to
from distop.coordinator.api.calls import ApiCalls
from distop.coordinator.metrics.prometheus import PrometheusMetrics
from distop.coordinator.state.grid import MAX_DYNAMIC
from distop.coordinator.views.following import Following
from distop.coordinator.views.listing import list_operations
from distop.coordinator.views.why import Reason
from distop.coordinator.web.actions import VERBS
from distop.coordinator.web.doing import Doing, place_of
from distop.coordinator.web.forms import Forms
from distop.coordinator.web.pages import LARGE_GRID, render, url
from distop.coordinator.web.reads import MOST_MATCHES, NO_CONTEXT, Answers, Reads
from distop.coordinator.web.requests import (
    HTTP_STATUS,
    PageAccess,
    Query,
    answer,
    check_same_place,
    errors_of,
    form_of,
    holder_of,
)
from distop.coordinator.work.work import Work
from distop.errors import (
    Busy,
    CorruptRecord,
    DistopError,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    Unauthenticated,
)
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.installation import page_secret
from distop.metastore.records.names import OperationId
from distop.process.http import HttpServer, alive, ready, show_metrics
from distop.process.tls import Tls
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import from_json
from distop.proto.messages import plain

ETCD_S = 2.0
"""Deadline of one call to etcd, in seconds: a page must show soon that etcd is unreachable."""

KEEP_S = 0.2
"""Seconds a page is cached: for any number of viewers it is read from etcd five times a second, and each
session once."""

MAX_CONNECTIONS = 256

OPERATIONS = 50
"""Operations on one page of a list."""

_STATIC = {
    "page.css": "text/css; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class _Exactly(Route):
    """Matches exactly one path, since its right belongs to that path. Starlette's own routes also match it
    with a newline appended."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if scope["path"] == self.path else (Match.NONE, {})


class _Elsewhere(str):
    """The address of another page, which has what was looked for."""


class WebServer:
    """The page of one coordinator.

    Parameters
    ----------
    listen:
        ``host:port``; port 0 picks a free one, then see :attr:`address`.
    member:
        Returns the coordinator's present member id; empty while it has none.
    answering:
        Where the storage of tables is read, with a bound on what hangs there: that of the API's callers.
    following:
        The operations that the coordinator follows for viewers.
    calls:
        Answers what the page asks to be done, as those of gRPC.
    tls:
        The certificate to serve with; ``None``: in plain text.
    """

    def __init__(
        self,
        listen: str,
        etcd: EtcdConfig,
        metrics: PrometheusMetrics,
        member: Callable[[], str],
        answering: Work,
        following: Following,
        calls: ApiCalls,
        tls: Tls | None = None,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = metrics
        self._member = member
        self._wall = wall
        self._client = EtcdClient(replace(etcd, timeout_s=min(etcd.timeout_s, ETCD_S)))
        self._reads = Reads(self._client, answering, following, wall=wall)
        self._answers = Answers()
        self._shared_secret = b""
        self._identifies_callers = calls.gate.identifies_callers
        self._access = PageAccess(calls.gate, self._client, secure=tls is not None)
        self._forms = Forms(self._client, self._secret)
        self._doing = Doing(calls, self._access, answering, wall, self._forms)
        self._server = HttpServer(listen, self._app(), option="--web", connections=MAX_CONNECTIONS, tls=tls)

    @property
    def address(self) -> str:
        return self._server.address

    async def start(self) -> None:
        """Listen and serve. Raises :class:`~distop.process.tls.AddressInUse`."""
        await self._server.start()

    async def stop(self) -> None:
        """Answer open requests, and end."""
        await self._server.stop()
        await self._answers.close()
        await self._forms.close()
        await self._reads.close()
        await self._client.close()

    async def _secret(self) -> bytes:
        """The secret of the installation, read once: etcd may not answer when this process begins."""
        if not self._shared_secret:
            self._shared_secret = await page_secret(self._client)
        return self._shared_secret

    def _app(self) -> Starlette:
        pages = {
            "/": ("overview.html", self._overview),
            "/table": ("table.html", self._table),
            "/table/snapshots": ("table_snapshots.html", self._snapshots),
            "/table/batches": ("table_batches.html", self._batches),
            "/table/schedules": ("table_schedules.html", self._schedules),
            "/table/watermarks": ("table_watermarks.html", self._watermarks),
            "/table/rules": ("table_rules.html", self._rules),
            "/table/quarantine": ("table_quarantine.html", self._table_quarantine),
            "/operation": ("operation.html", self._operation),
            "/operation/logs": ("operation_logs.html", self._logs),
            "/operation/quarantine": ("operation_quarantine.html", self._quarantine),
            "/operations": ("operations.html", self._operations),
            "/search": ("search.html", self._search),
            "/members": ("members.html", self._members),
            "/doctor": ("doctor.html", self._doctor),
            "/audit": ("audit.html", self._audit),
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
        routes: list[BaseRoute] = [_Exactly(path, self._page(*page)) for path, page in pages.items()]
        routes += [_Exactly(path, self._json(make)) for path, make in api.items()]
        routes += [_Exactly(f"/static/{name}", _static(name, kind)) for name, kind in _STATIC.items()]
        routes += [_Exactly("/livez", alive), _Exactly("/readyz", self._ready)]
        routes.append(_Exactly("/metrics", self._json_errors(self._show_metrics)))
        routes.append(_Exactly("/action", self._action, methods=["GET", "POST"]))
        routes.append(_Exactly("/sign-in", self._sign_in, methods=["GET", "POST"]))
        routes.append(_Exactly("/sign-out", self._sign_out, methods=["POST"]))
        return Starlette(routes=routes, exception_handlers={404: self._not_found})

    def _page(
        self, template: str, look: Callable[[Query], Awaitable[dict[str, Any] | _Elsewhere]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The page of a template, with the values that ``look`` returns."""

        async def endpoint(request: Request) -> Response:
            query = Query(request.query_params)
            address = url(request.scope["path"], **dict(query.items()))

            async def made(query: Query) -> str:
                values = await look(query)
                if isinstance(values, _Elsewhere):
                    return values
                done = VERBS[verb].done if (verb := query.text("done")) in VERBS else ""
                return self._render(
                    template, address=address, done=done, offered=self._doing.offered, **values
                )

            try:
                answer_to(await self._access.enter(request))
                page = await self._fresh(request, made)
                if isinstance(page, _Elsewhere):
                    return RedirectResponse(page, 303)
                return answer(request, page, "text/html; charset=utf-8")
            except Unauthenticated:
                return RedirectResponse("/sign-in", 303)
            except DistopError as error:
                return self._problem(error, address)

        return endpoint

    def _json(
        self, make: Callable[[Query], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def written(query: Query) -> str:
            return json.dumps(await make(query), ensure_ascii=False, indent=1)

        async def shown(request: Request) -> Response:
            return answer(request, await self._fresh(request, written), "application/json")

        return self._json_errors(shown)

    def _json_errors(
        self, show: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                answer_to(await self._access.enter(request))
                return await show(request)
            except DistopError as error:
                return _json_problem(error)

        return endpoint

    async def _fresh(self, request: Request, make: Callable[[Query], Awaitable[str]]) -> str:
        """The result of ``make`` for the request's query; shared by equal requests within a moment."""
        query = Query(request.query_params)

        async def made() -> str:
            async with errors_of(request.scope["path"]):
                return await make(query)

        return await self._answers.get((request.scope["path"], *query.items()), made, keep_s=KEEP_S)

    def _render(self, template: str, **values: object) -> str:
        return render(
            template,
            keyspace=self._client.keyspace.name,
            member=self._member(),
            now=self._wall(),
            identifies_callers=self._identifies_callers,
            **values,
        )

    def _problem(self, error: DistopError, address: str = "", again: str = "", back: str = "") -> Response:
        """The page of an error; with an address, it asks there until there is something else to show."""
        page = self._render("problem.html", error=error, address=address, again=again, back=back)
        return Response(page, HTTP_STATUS[error.kind], media_type="text/html")

    def _not_found(self, request: Request, _: Exception) -> Response:
        path = request.scope["path"]
        error = NotFound("there is no such page", details={"path": path})
        return _json_problem(error) if path.startswith("/api/") else self._problem(error)

    async def _ready(self, _: Request) -> Response:
        return ready(bool(self._member()))

    async def _show_metrics(self, request: Request) -> Response:
        return show_metrics(request, self._metrics.registry)

    async def _action(self, request: Request) -> Response:
        """Ask back what somebody wants to do, and, sent back as a form, do it."""
        given: Mapping[str, str] = request.query_params
        try:
            if request.method == "POST":
                given = await form_of(request)
                return RedirectResponse(await self._doing.act(request, given), 303)
            asked, holder = await self._doing.ask(request)
        except Unauthenticated:
            return RedirectResponse("/sign-in", 303)
        except DistopError as error:
            named = {name: given.get(name, "") for name in ("do", "name", "item")}
            again = url("/action", **named) if request.method == "POST" else ""
            return self._problem(error, again=again, back=place_of(named["do"], named["name"]))
        page = self._render("action.html", address="", **asked)
        response = Response(page, 200, {"cache-control": "no-store"}, "text/html")
        if not holder_of(request):
            self._access.hold(response, holder)
        return response

    async def _sign_in(self, request: Request) -> Response:
        error = None
        try:
            if request.method == "POST":
                check_same_place(request)
                inside = RedirectResponse("/", 303)
                await self._access.sign_in(request, inside)
                return inside
            subject = (await self._access.caller(request)).subject
        except Unauthenticated as refusal:
            subject, error = "", refusal if request.method == "POST" else None
        except DistopError as refusal:
            return self._problem(refusal)
        page = self._render("sign_in.html", subject=subject, error=error, address="")
        return Response(page, 401 if error else 200, {"cache-control": "no-store"}, "text/html")

    async def _sign_out(self, request: Request) -> Response:
        outside = RedirectResponse("/sign-in", 303)
        try:
            check_same_place(request)
            await self._access.sign_out(request, outside)
        except DistopError as refusal:
            return self._problem(refusal)
        return outside

    async def _overview(self, query: Query) -> dict[str, Any]:
        return {"view": await self._reads.overview(query.text("after"))}

    async def _table(self, query: Query) -> dict[str, Any]:
        page = query.number("page")
        view = await self._reads.table(query.needed("name"), page=page)
        content, snapshots = await self._reads.content(view.table), pb.ListSnapshotsResponse()
        if view.table.format == "iceberg":
            # Why the storage does not have them is what its content says, too.
            with suppress(PreconditionFailed, Busy, CorruptRecord):
                snapshots = await self._reads.snapshots(view.table)
        return {"view": view, "content": content, "snapshots": snapshots, "page": page}

    async def _snapshots(self, query: Query) -> dict[str, Any]:
        view, token = await self._reads.table(query.needed("name"), page=0), query.text("page_token")
        return {"view": view, "listed": await self._reads.snapshots(view.table, token), "token": token}

    async def _batches(self, query: Query) -> dict[str, Any]:
        view, token = await self._reads.table(query.needed("name"), page=0), query.text("page_token")
        return {"view": view, "batches": await self._reads.batches(view.name, token), "token": token}

    async def _schedules(self, query: Query) -> dict[str, Any]:
        view = await self._reads.table(query.needed("name"), page=0)
        request = pb.ListSchedulesRequest(table=view.name)
        listed = await self._reads.ask(self._reads.schedules.ListSchedules, request)
        return {"view": view, "schedules": listed.schedules}

    async def _watermarks(self, query: Query) -> dict[str, Any]:
        view, marks = await self._reads.table(query.needed("name"), page=0), query.text("marks")
        watermarks = await self._reads.watermarks(view.table, marks)
        return {"view": view, "watermarks": watermarks, "marks": marks}

    async def _rules(self, query: Query) -> dict[str, Any]:
        view = await self._reads.table(query.needed("name"), page=0)
        listed = await self._reads.last_operations(view.table)
        return {"view": view, "listed": listed, "options": from_json(view.table.options_json, "options")}

    async def _table_quarantine(self, query: Query) -> dict[str, Any]:
        view = await self._reads.table(query.needed("name"), page=0)
        return {"view": view, "listed": await self._reads.last_operations(view.table)}

    async def _operation(self, query: Query) -> dict[str, Any]:
        operation, jobs = OperationId.parse(query.needed("name")), query.text("jobs")
        start = query.number("from", MAX_DYNAMIC)
        view = await self._reads.operation(operation, jobs=jobs, start=start)
        return {"view": view, "jobs": jobs, "start": start}

    async def _logs(self, query: Query) -> dict[str, Any]:
        name = query.needed("name")
        request = pb.GetOperationRequest(name=name)
        listed = await self._reads.ask(self._reads.operations.ListTraces, request)
        return {"name": name, "traces": listed.traces}

    async def _quarantine(self, query: Query) -> dict[str, Any]:
        name, token = query.needed("name"), query.text("page_token")
        request = pb.ListQuarantinedRowsRequest(name=name, page_token=token)
        listed = await self._reads.ask(self._reads.operations.ListQuarantinedRows, request)
        return {"name": name, "listed": listed, "token": token}

    async def _operations(self, query: Query) -> dict[str, Any]:
        asked = {name: query.text(name) for name in ("table", "type", "states", "page_token")}
        request = _operations(query, page_size=OPERATIONS)
        listed = await self._reads.ask(self._reads.operations.ListOperations, request, keep_s=1.0)
        return {"listed": listed, "asked": asked, "OPERATIONS": OPERATIONS}

    async def _search(self, query: Query) -> dict[str, Any] | _Elsewhere:
        text = query.needed("q").strip()
        if text.count("/") >= 2:
            return _Elsewhere(url("/operation", name=text))
        tables, after = await self._reads.names(query.text("after"), MOST_MATCHES, text)
        if text in tables:
            return _Elsewhere(url("/table", name=text))
        return {"text": text, "found": tables, "after": after}

    async def _doctor(self, _: Query) -> dict[str, Any]:
        return {"found": self._reads.examined()}

    async def _audit(self, query: Query) -> dict[str, Any]:
        table, token = query.text("table"), query.text("page_token")
        request = pb.ListAuditRequest(table=table, page_token=token)
        listed = await self._reads.ask(self._reads.cluster.ListAudit, request, keep_s=1.0)
        return {"listed": listed, "table": table, "token": token}

    async def _members(self, _: Query) -> dict[str, Any]:
        members, leaders = await self._reads.members(), await self._reads.leaders()
        return {"members": members, "leaders": leaders, "led": Counter(leader.member for leader in leaders)}

    async def _api_tables(self, query: Query) -> dict[str, Any]:
        request = pb.ListTablesRequest(
            page_size=query.number("page_size"), page_token=query.text("page_token")
        )
        return plain(await self._reads.tables.ListTables(request, NO_CONTEXT))

    async def _api_table(self, query: Query) -> dict[str, Any]:
        view = await self._reads.table(query.needed("name"), page=0)
        return {"table": plain(view.table), "why": _reason(view.reason), "watermark_count": view.watermarks}

    async def _api_watermarks(self, query: Query) -> dict[str, Any]:
        request = pb.GetWatermarksRequest(
            table=query.needed("table"),
            source=query.text("source"),
            page_size=query.number("page_size"),
            page_token=query.text("page_token"),
        )
        return plain(await self._reads.tables.GetWatermarks(request, NO_CONTEXT))

    async def _api_operations(self, query: Query) -> dict[str, Any]:
        request = _operations(query, page_size=query.number("page_size"))
        return plain(await list_operations(self._client, request))

    async def _api_operation(self, query: Query) -> dict[str, Any]:
        return plain((await self._reads.operation(OperationId.parse(query.needed("name")))).operation)

    async def _api_jobs(self, query: Query) -> dict[str, Any]:
        """The partition grid: a letter a cell (``.`` waiting, ``r`` running, ``s`` done, ``f`` failed)."""
        view = await self._reads.operation(OperationId.parse(query.needed("name")))
        body: dict[str, Any] = {"operation": plain(view.operation)}
        if view.grid is not None:
            body |= {"cells": view.grid.text(LARGE_GRID), "failures": view.grid.failures}
        if view.reason is not None:
            body["why"] = _reason(view.reason)
        return body

    async def _api_members(self, _: Query) -> dict[str, Any]:
        return {"members": [plain(member) for member in await self._reads.members()]}

    async def _api_leaders(self, _: Query) -> dict[str, Any]:
        return {"leaders": [plain(leader) for leader in await self._reads.leaders()]}


def _static(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """One file. Starlette's ``StaticFiles`` would take its media type from the machine's table."""
    text = (files(__package__) / "page" / name).read_text(encoding="utf-8")

    async def endpoint(request: Request) -> Response:
        return answer(request, text, kind)

    return endpoint


def _json_problem(error: DistopError) -> Response:
    text = json.dumps({"error": error.fields()}, ensure_ascii=False)
    return Response(text, HTTP_STATUS[error.kind], media_type="application/json")


def _reason(reason: Reason) -> dict[str, str]:
    return {"mood": reason.mood.name.lower(), "sentence": reason.sentence}


def _operations(query: Query, page_size: int) -> pb.ListOperationsRequest:
    return pb.ListOperationsRequest(
        table=query.text("table"),
        type=query.text("type"),
        states=[_state(name) for name in query.text("states").split(",") if name],
        page_size=page_size,
        page_token=query.text("page_token"),
    )


def _state(name: str) -> str:
    if (known := name.upper()) not in (names := pb.OperationState.keys()[1:]):
        raise InvalidArgument(
            f"{name[:50]!r} is not a state; known: {', '.join(names)}", details={"field": "states"}
        )
    return known
