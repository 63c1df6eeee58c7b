"""Requests to the page: who may see a path, sessions, parameters, deadlines, and errors.

Each path needs the right of the gRPC call that returns the same."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from hashlib import blake2b, sha256
from typing import Any
from urllib.parse import parse_qs

from cachetools import TTLCache
from cryptography.fernet import Fernet, InvalidToken
from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from distop.coordinator.access.authentication import Proof, bearer, names_of
from distop.coordinator.access.callers import Caller
from distop.coordinator.access.gate import Gate
from distop.errors import CorruptRecord, DeadlineExceeded, DistopError, InvalidArgument, Kind, Unauthenticated
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import AnswerRecord
from distop.process.secret import NONE, Secret
from distop.proto import distop_pb2 as pb

log = logging.getLogger(__name__)

REQUEST_S = 5.0
"""Deadline of a whole request, in seconds."""

HTTP_STATUS = {
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


class Query:
    """The parameters of a request, each validated where it is used; unknown ones are ignored."""

    KNOWN = frozenset(
        {
            "after",
            "do",
            "done",
            "from",
            "item",
            "jobs",
            "marks",
            "name",
            "page",
            "page_size",
            "page_token",
            "q",
            "source",
            "states",
            "table",
            "type",
        }
    )

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name: value for name, value in given.items() if name in self.KNOWN}

    def items(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self._given.items()))

    def text(self, name: str) -> str:
        """A text; empty by default."""
        return self._given.get(name, "")

    def needed(self, name: str) -> str:
        """A required text."""
        if not (value := self.text(name)):
            raise InvalidArgument(f"{name} is missing", details={"field": name})
        return value

    def number(self, name: str, most: int = 10_000) -> int:
        """A whole number, ``most`` at most; 0 by default."""
        value = self.text(name) or "0"
        if not (value.isascii() and value.isdecimal() and len(value) <= 10 and int(value) <= most):
            raise InvalidArgument(
                f"{name}={value[:50]!r} is not a number up to {most:,}", details={"field": name}
            )
        return int(value)


def proof_of(scope: Scope, token: Secret = NONE) -> Proof:
    """The credentials of a request; a given token replaces the request's own.

    Raises :class:`~distop.errors.Unauthenticated`.
    """
    given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
    address = scope["client"][0] if scope["client"] else ""
    shown = scope["state"]["certificate"]
    return Proof(token or bearer(given), address, names_of(shown) if shown else {})


@contextlib.asynccontextmanager
async def errors_of(path: str, limit_s: float = REQUEST_S) -> AsyncIterator[None]:
    """Turns every error inside into a :class:`DistopError`, and bounds the time."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise DeadlineExceeded(
            f"{path} took longer than {limit_s:g} s",
            hint="open it again: the coordinator, etcd or the storage is busy",
        ) from None
    except DistopError:
        raise
    except Exception as error:
        log.exception("page_crashed", extra={"path": path})
        raise DistopError(
            f"{path} failed: {type(error).__name__}: {error}",
            hint="see the coordinator's log; this is a defect",
        ) from error


def answer(request: Request, text: str, kind: str) -> Response:
    """The text, or only the status that it has not changed since the client's last request."""
    body = text.encode(errors="replace")
    etag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"etag": etag, "cache-control": "no-cache, private", "content-type": kind}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers)


COOKIE = "distop_session"
FORM_COOKIE = "distop_form"
"""Without a session, forms are bound to this one."""

SESSION_S = 12 * 3600
KEEP_SESSION_S = 1.0
"""Seconds a session is cached: it is read from etcd once a second, for any number of requests."""
MAX_SESSIONS = 1_000
"""A further sign-in ends the oldest one."""
MAX_FORM_BYTES = 16 << 10
MAX_FIELDS = 16


class _Call:
    """A call of the API, with the right of which a path is shown.

    Parameters
    ----------
    fields:
        Fields of its request, each with the parameter of the path that it takes; one that begins with ``?``
        may be missing.
    """

    def __init__(self, method: str, request: type[Message], **fields: str) -> None:
        self.method, self._request, self._fields = method, request, fields

    def request(self, query: Query) -> Message:
        values = {
            name: query.text(of[1:]) if of.startswith("?") else query.needed(of)
            for name, of in self._fields.items()
        }
        return self._request(**values)


_TABLES = _Call("TableService/ListTables", pb.ListTablesRequest)
_TABLE = _Call("TableService/GetTable", pb.GetTableRequest, name="name")
_OPERATION = _Call("OperationService/GetOperation", pb.GetOperationRequest, name="name")
_OPERATIONS = _Call("OperationService/ListOperations", pb.ListOperationsRequest, table="?table")
_OF_TABLE = _Call("OperationService/ListOperations", pb.ListOperationsRequest, table="name")
_EVERYTHING = _Call("ClusterService/Diagnose", pb.DiagnoseRequest)
_MEMBERS = _Call("ClusterService/ListMembers", pb.ListMembersRequest)

CALLS = {
    "/": _TABLES,
    "/table": _TABLE,
    "/table/snapshots": _Call("TableService/ListSnapshots", pb.ListSnapshotsRequest, table="name"),
    "/table/batches": _Call("BacklogService/ListBacklog", pb.ListBacklogRequest, table="name"),
    "/table/schedules": _Call("ScheduleService/ListSchedules", pb.ListSchedulesRequest, table="name"),
    "/table/watermarks": _Call("TableService/GetWatermarks", pb.GetWatermarksRequest, table="name"),
    "/table/rules": _OF_TABLE,
    "/table/quarantine": _OF_TABLE,
    "/operation": _OPERATION,
    "/operation/logs": _Call("OperationService/ListTraces", pb.GetOperationRequest, name="name"),
    "/operation/quarantine": _Call(
        "OperationService/ListQuarantinedRows", pb.ListQuarantinedRowsRequest, name="name"
    ),
    "/operations": _OPERATIONS,
    "/search": _TABLES,
    "/members": _MEMBERS,
    "/doctor": _EVERYTHING,
    "/audit": _Call("ClusterService/ListAudit", pb.ListAuditRequest, table="?table"),
    "/api/tables": _TABLES,
    "/api/table": _TABLE,
    "/api/watermarks": _Call("TableService/GetWatermarks", pb.GetWatermarksRequest, table="table"),
    "/api/operations": _OPERATIONS,
    "/api/operation": _OPERATION,
    "/api/jobs": _OPERATION,
    "/api/members": _MEMBERS,
    "/api/leaders": _Call("ClusterService/ListLeaders", pb.ListLeadersRequest),
    # Rights of the whole installation, as for the doctor.
    "/metrics": _EVERYTHING,
}
"""The gRPC call whose right a path needs. A path that is not here shows nothing of the installation."""


class PageAccess:
    """Authentication and authorisation for one page.

    A session is a key of etcd that all coordinators read, with a lease. It has the token, sealed with the
    name of the session, which only the browser has.
    """

    def __init__(self, gate: Gate, client: EtcdClient, *, secure: bool) -> None:
        self._gate, self._client, self._secure = gate, client, secure
        self._read: TTLCache[bytes, KeyValue] = TTLCache(2 * MAX_SESSIONS, KEEP_SESSION_S)
        """Sessions as they were read; names that are none, too."""

    async def enter(self, request: Request) -> Caller:
        """The caller of this path, if it is allowed; raises as :meth:`Gate.enter`."""
        # The routed path. The path of ``request.url`` is built from the Host header, too.
        call = CALLS[request.scope["path"]]
        return await self.enter_call(request, call.method, call.request(Query(request.query_params)))

    async def enter_call(self, request: Request, method: str, message: Any) -> Caller:
        """The caller, if it may make this call of the API; raises as :meth:`Gate.enter`."""
        return await self._gate.enter(f"/distop.v1.{method}", message, await self.proof(request))

    async def caller(self, request: Request) -> Caller:
        """The caller, whatever its rights."""
        return await self._gate.caller(await self.proof(request))

    async def sign_in(self, request: Request, response: Response) -> None:
        """Begin a session with the token of the request's form. It is verified again with each request: when
        it expires or is revoked, its sessions end."""
        given = (await form_of(request)).get("token", "")
        if not given:
            raise Unauthenticated("enter a token")
        who = await self._gate.caller(proof_of(request.scope, Secret(given)))
        if not who.subject:
            raise Unauthenticated("this service does not accept tokens")
        await self._end_session_of(request)
        prefix, name = self._client.keyspace.answer("session."), secrets.token_urlsafe(32)
        # Above the limit there are a few, of sign-ins at the same time.
        others = await self._client.get_range(
            prefix, prefix_end(prefix), keys_only=True, limit=2 * MAX_SESSIONS
        )
        newest_first = sorted(others.kvs, key=lambda kv: kv.create_revision, reverse=True)
        for oldest in newest_first[MAX_SESSIONS - 1 :]:
            await self._end(oldest)
        sealed = _seal(name).encrypt(given.encode()).decode()
        lease = await self._client.lease_grant(SESSION_S)
        session = encode(AnswerRecord(digest="session", result=sealed))
        try:
            await self._client.put(self._key(name), session, lease=lease)
        except DistopError:
            with contextlib.suppress(DistopError):
                await self._client.lease_revoke(lease)
            raise
        self._keep(response, COOKIE, name)

    def hold(self, response: Response, holder: str) -> None:
        """Give a browser without a session what its forms are bound to."""
        self._keep(response, FORM_COOKIE, holder)

    async def sign_out(self, request: Request, response: Response) -> None:
        """End the session: at once here, and within :data:`KEEP_SESSION_S` for the other coordinators."""
        await self._end_session_of(request)
        response.delete_cookie(COOKIE, secure=self._secure, httponly=True, samesite="strict")

    async def _end_session_of(self, request: Request) -> None:
        if name := request.cookies.get(COOKIE):
            await self._end(await self._client.get(self._key(name)))

    async def _end(self, session: KeyValue) -> None:
        if session.exists:
            await self._client.lease_revoke(session.lease)
        self._read[session.key] = KeyValue.missing(session.key)

    async def proof(self, request: Request) -> Proof:
        """The credentials of a request, or those of its session. Raises the errors of a read of etcd."""
        proof = proof_of(request.scope)
        if proof.token or not (name := request.cookies.get(COOKIE)):
            return proof
        key = self._key(name)
        if (kv := self._read.get(key)) is None:
            async with errors_of(request.scope["path"]):
                kv = await self._client.get(key)
            # If its end was noted meanwhile, this was read before.
            kv = self._read.setdefault(key, kv)
        if not kv.exists:
            return proof
        try:
            token = _seal(name).decrypt(decode(kv.value, AnswerRecord, kv.key).result)
        except InvalidToken:
            raise CorruptRecord(f"{kv.key.decode()} holds no sealed token") from None
        return replace(proof, token=Secret(token.decode()))

    def _key(self, session: str) -> bytes:
        return self._client.keyspace.answer(f"session.{sha256(session.encode()).hexdigest()}")

    def _keep(self, response: Response, cookie: str, value: str) -> None:
        response.set_cookie(cookie, value, secure=self._secure, httponly=True, samesite="strict")


def _seal(session: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(sha256(b"seal" + session.encode()).digest()))


def holder_of(request: Request) -> str:
    """What a browser holds that another site cannot use: the cookie of its session, or that of its forms;
    empty: neither."""
    return request.cookies.get(COOKIE) or request.cookies.get(FORM_COOKIE, "")


def check_same_place(request: Request) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` for a form that another site sent."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    elsewhere = origin is not None and origin.partition("://")[2] != request.headers.get("host")
    if elsewhere or site not in (None, "same-origin", "none"):
        raise InvalidArgument("this form comes from another site", details={"field": "origin"})


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, which has a bounded size."""
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_FORM_BYTES:
                raise InvalidArgument("the form is too large", details={"field": "form"})
        fields = parse_qs(body.decode(errors="replace"), max_num_fields=MAX_FIELDS)
    except ClientDisconnect:
        raise InvalidArgument("the form is incomplete", details={"field": "form"}) from None
    except ValueError:
        raise InvalidArgument("the form has too many fields", details={"field": "form"}) from None
    return {name: values[0].strip() for name, values in fields.items()}
