"""The catalog of a coordinator over HTTP: Apache Iceberg's REST protocol, for engines that speak it.

A request has the rights of its caller, by the roles of the policy on the tables and views that it names. It
runs in the coordinator's event loop; blocking calls run in threads, in turns between tables. The work is done
by :class:`~distop.catalog.catalog.EtcdCatalog`, which Python programs may use without a coordinator.

A request is noted in the transaction that executes it, so that every coordinator knows it, even if no client
got the reply. A refused request is not noted: nothing has happened, and it may be tried again.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from hashlib import blake2b
from urllib.parse import parse_qsl, quote
from uuid import UUID

from pydantic import ValidationError
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchViewError
from starlette.types import Receive, Scope, Send

from distop.catalog.catalog import EtcdCatalog
from distop.catalog.errors import both
from distop.catalog.namespaces import namespace_name, table_name
from distop.coordinator.access.callers import Caller
from distop.coordinator.access.gate import REFUSALS, Gate, denied, seen_by
from distop.coordinator.api.calls import Callers, Limits
from distop.coordinator.rest import tables
from distop.coordinator.rest.calls import Reply, RestCall, error_reply, json_reply, problem, unsure
from distop.coordinator.rest.namespaces import shown
from distop.coordinator.rest.routes import ROUTES, Route, match_path
from distop.coordinator.web.requests import proof_of
from distop.coordinator.work.places import Places
from distop.coordinator.work.work import Work
from distop.errors import Busy, DistopError, InvalidArgument, LeaseLost, NotFound, TableNotFound
from distop.lake.pyiceberg_private import UNCHECKED
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.tables.answers import REMEMBER_S, RememberedAnswers
from distop.operations.registry import Registry
from distop.process.http import HttpServer
from distop.process.tls import Tls
from distop.proto.addresses import caller_of

HEADER = "idempotency-key"


def key_of(scope: Scope) -> str:
    """The key of a request, which may then be the repeat of one that has happened; empty if it has none."""
    given = (value for name, value in scope["headers"] if name.lower() == HEADER.encode())
    return next(given, b"").decode("latin-1")


class Repeats:
    """The repeats of one coordinator. May be used from several threads."""

    def __init__(self, catalog: EtcdCatalog) -> None:
        self._catalog, self._answers = catalog, RememberedAnswers(catalog.etcd)

    def has_answered(self, key: str) -> bool:
        """Whether a request with this key was executed, for any sender."""
        try:
            return self._answers.has(_checked(key))
        except InvalidArgument:
            return False

    def once(self, route: Route, call: RestCall) -> Reply:
        """Execute a request, unless it was executed before: then return the same answer again.

        Requests about namespaces have no keys: a repetition is refused, or changes nothing.
        """
        key = call.headers.get(HEADER, "")
        if not key or not route.changes or not route.tables(call):
            return route.handle(self._catalog.acting(call.who.subject), call)
        key, digest = _checked(key), _digest(route, call)
        if (before := self._answers.find(key, digest)) is not None:
            return tables.answered(self._catalog, before)
        try:
            return route.handle(self._catalog.acting(call.who.subject, self._answers.note(key, digest)), call)
        except LeaseLost:
            self._answers.forget_lease()
            raise
        except Exception:
            # It may have lost to a repetition of itself, or have been executed with an unknown outcome.
            if (meanwhile := self._answers.find(key, digest)) is not None:
                return tables.answered(self._catalog, meanwhile)
            raise


def _checked(key: str) -> str:
    try:
        return str(UUID(key))
    except ValueError:
        raise InvalidArgument("the Idempotency-Key is no UUID", details={"field": HEADER}) from None


def _digest(route: Route, call: RestCall) -> str:
    parts = (str(route), call.who.subject, sorted(call.parts.items()), sorted(call.query.items()))
    return blake2b(repr(parts).encode() + call.text, digest_size=16).hexdigest()


log = logging.getLogger(__name__)


MAX_TARGET = 1_000
"""Longest text, in characters, for the tables of one request in the audit trail."""


async def admit(gate: Gate, who: Caller, route: Route, call: RestCall) -> None:
    """Raise as :func:`check` does, and record it in the audit trail."""
    try:
        check(who, route, call)
    except REFUSALS as refusal:
        named = ", ".join(map(table_name, route.tables(call)))
        await gate.denied(str(route), refusal, target=named[:MAX_TARGET])
        raise


def check(who: Caller, route: Route, call: RestCall) -> None:
    """Raise an error unless the caller has the right.

    A table or view that the caller may not see does not exist for it, and neither does a namespace in which
    it may see none; lists omit both. A request that names no table, such as creating a namespace, needs the
    role everywhere.
    """
    role, named = route.effect.value, route.tables(call)
    if route.shows:
        space = call.namespace if "namespace" in call.parts else call.parent
        if space and not shown(who, space):
            raise NoSuchNamespaceError(f"Namespace does not exist: {namespace_name(space)}")
    elif not named and who.held.everywhere < role:
        raise denied(who, role, "all tables")
    for identifier in named:
        table = table_name(identifier)
        if not who.sees(table) and not route.makes:
            kind, details = "view" if route.of_views else "table", {"table": table}
            missing = TableNotFound(f"{kind} {table!r} does not exist", details=details)
            raise both(missing, NoSuchViewError) if route.of_views else missing
        if not who.may(role, table):
            raise denied(who, role, f"table {table!r}")


THREADS, THREAD_NAME = 64, "distop-catalog"
MAX_CONNECTIONS = 1024
MAX_CALLS = 256
"""Concurrent requests, half of them from one address; more are refused."""
MAX_BODY = 16 << 20
"""Longest request, in bytes."""
MAX_PARTS = 60_000
"""Most values in its JSON. A schema with as many columns as a table may have has 40,000."""
MAX_MISTAKES = 20
"""Most mistakes of a request in its error."""
LARGE = 64 << 10
"""Requests with more bytes than this are parsed in a thread."""
BODY_S = 30.0
"""Seconds in which a request must have arrived."""
READ_S, CHANGE_S = 30.0, 120.0
"""Seconds that a request may take, with the wait for its turn."""
TURNED_AWAY = frozenset({401, 403, 404, 408})
"""The answers to requests whose key has not been looked at: the caller's token has run out, say, or its
rights have changed. A repeat of what was executed must not report that nothing has happened."""
SENDS_AGAIN = b"ClickHouse/"
"""Those that take 204 for no answer: they send the request again, which then drops what is not there."""


class RestCatalog:
    """The catalog of one coordinator.

    Parameters
    ----------
    listen:
        ``host:port``; port 0 picks a free one, see :attr:`address`.
    warehouse:
        The place of new tables without a location. Without a warehouse, each table or its namespace needs
        one.
    gate:
        Identifies callers and checks their rights.
    tls:
        The certificate to serve with; ``None``: plain text.
    limits:
        The limits of callers; here that of starts applies to new tables.
    """

    def __init__(
        self,
        listen: str,
        etcd: EtcdConfig,
        registry: Registry,
        warehouse: str | None,
        gate: Gate,
        tls: Tls | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._gate = gate
        properties = {"warehouse": warehouse} if warehouse else {}
        self._catalog = EtcdCatalog.over(SyncEtcd(etcd), "distop", **properties)
        self._repeats = Repeats(self._catalog)
        self._prefix = etcd.prefix
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=THREAD_NAME)
        self._work = Work(registry, self._threads, places=lambda: Places(most=THREADS))
        starts_per_s = (limits or Limits()).starts_per_s
        self._callers = Callers(Limits(calls_each=MAX_CALLS // 2, calls=MAX_CALLS, starts_per_s=starts_per_s))
        self._server = HttpServer(listen, self, option="--catalog", connections=MAX_CONNECTIONS, tls=tls)

    @property
    def address(self) -> str:
        return self._server.address

    async def start(self) -> None:
        """Listen and serve. Raises :class:`~distop.process.tls.AddressInUse`."""
        await self._server.start()

    async def stop(self) -> None:
        """Answer open requests, and end."""
        await self._server.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._catalog.close)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._callers.call(_address(scope)):
                reply = await self._answer(scope, receive)
                if reply.status in TURNED_AWAY and (key := key_of(scope)) and await self._may_have_done(key):
                    reply = unsure(reply)
        except Busy as error:
            reply = problem(error, changes=True)
        if reply.status == 429 and key_of(scope):
            reply = unsure(reply)
        if reply.status == 204 and _agent(scope).startswith(SENDS_AGAIN):
            reply = replace(reply, status=200)
        headers = {**reply.headers, "cache-control": "no-store", "content-length": str(len(reply.body))}
        if reply.status in (204, 304):
            del headers["content-length"]
        elif reply.body:
            headers["content-type"] = "application/json"
        named = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": named})
        body = b"" if scope["method"] == "HEAD" else reply.body
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        path, method = scope["raw_path"], scope["method"]
        if path == b"/v1/oauth/tokens":
            return json_reply(_NO_TOKENS, status=400)
        try:
            who = await self._gate.caller(proof_of(scope))
        except DistopError as error:
            return problem(error, changes=method not in ("GET", "HEAD"))
        if path == b"/v1/config" and method == "GET":
            return self._config()
        try:
            routes, parts = match_path(path, self._prefix)
        except UnicodeDecodeError:
            return error_reply(400, "BadRequestException", "the path is not UTF-8")
        if not routes:
            return problem(NotFound(f"there is no {method} {path.decode('latin-1')}"), changes=False)
        if (route := routes.get(method)) is None:
            return error_reply(405, "MethodNotAllowedException", f"{method} is not among {', '.join(routes)}")
        try:
            call = await self._call(scope, route, {**parts}, receive, who)
            await admit(self._gate, who, route, call)
            if route.makes:
                self._callers.start(who.subject or _address(scope))
            return await self._do(route, call)
        except _Refused as refused:
            return refused.reply
        except Exception as error:
            known = seen_by(who, error) if isinstance(error, DistopError) else error
            reply = problem(known, changes=route.changes)
            if reply.status >= 500:
                log.warning("catalog_request_failed", extra={"route": str(route)}, exc_info=error)
            return reply

    async def _call(
        self, scope: Scope, route: Route, parts: dict[str, str], receive: Receive, who: Caller
    ) -> RestCall:
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if (model := route.body) is None:
            return RestCall(parts=parts, query=query, headers=headers, who=who)
        if not headers.get("content-type", "").lower().startswith("application/json"):
            # Any web site can make a browser send a form or a text here, but not JSON.
            raise _Refused(415, "BadRequestException", "the content type must be application/json")
        text = await _body(receive)
        # Parsing a long one would delay all others.
        if text.count(b",") > MAX_PARTS:  # each could be a mistake, and all are reported
            raise _Refused(413, "BadRequestException", f"the request has more than {MAX_PARTS:,} parts")
        parsing = asyncio.to_thread(model.model_validate_json, text) if len(text) > LARGE else None
        try:
            body = model.model_validate_json(text) if parsing is None else await parsing
        except ValidationError as error:
            if (count := error.error_count()) <= MAX_MISTAKES:
                raise
            raise _Refused(400, "BadRequestException", f"the request has {count:,} mistakes") from None
        except UNCHECKED:
            message = "a value in the request is of another kind than it should be, as null is no object"
            raise _Refused(400, "BadRequestException", message) from None
        return RestCall(parts=parts, query=query, headers=headers, body=body, text=text, who=who)

    async def _may_have_done(self, key: str) -> bool:
        """Whether a request that was turned away repeats one that was executed, or nobody can say."""
        read = self._repeats.has_answered, key
        try:
            return await self._work.blocking("", "looking for the first answer", *read, limit_s=READ_S)
        except DistopError:
            return True

    async def _do(self, route: Route, call: RestCall) -> Reply:
        named = route.tables(call)
        key = ".".join(named[0]) if named else call.parts.get("namespace", "")
        limit_s = CHANGE_S if route.changes else READ_S
        present = copy_context()  # the audit trail names the caller

        def once() -> Reply:
            return present.run(self._repeats.once, route, call)

        return await self._work.blocking(key, str(route), once, limit_s=limit_s)

    def _config(self) -> Reply:
        overrides = {"prefix": quote(self._prefix, safe="")}
        return json_reply(
            {
                "defaults": {},
                "overrides": overrides,
                "endpoints": [str(route) for route in ROUTES],
                "idempotency-key-lifetime": f"PT{REMEMBER_S}S",
            }
        )


_NO_TOKENS = {
    "error": "unsupported_grant_type",
    "error_description": "no tokens are given out here: oauth2-server-uri must be the URL of your issuer",
}
"""For clients that have no issuer configured and ask the catalog (RFC 6749, 5.2)."""


class _Refused(Exception):
    """A request that is refused without further checks."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.reply = error_reply(status, kind, message)


def _agent(scope: Scope) -> bytes:
    return next((value for name, value in scope["headers"] if name.lower() == b"user-agent"), b"")


def _address(scope: Scope) -> str:
    return caller_of(scope["client"][0]) if scope["client"] else ""


async def _body(receive: Receive) -> bytes:
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(BODY_S):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Refused(400, "BadRequestException", "the request has broken off")
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > MAX_BODY:
                    raise _Refused(413, "BadRequestException", f"the request is over {MAX_BODY:,} bytes long")
    except TimeoutError:
        raise _Refused(408, "BadRequestException", "the request has not arrived in time") from None
    return bytes(body)
