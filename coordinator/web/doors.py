"""Access to the page: each path needs the right of the gRPC call that returns the same; and sessions."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from distop.coordinator.access.authentication import Proof
from distop.coordinator.access.callers import Caller
from distop.coordinator.access.gate import Gate
from distop.coordinator.web.http import Query, proof_of
from distop.errors import InvalidArgument, Unauthenticated
from distop.process.secret import NONE, Secret
from distop.proto import distop_pb2 as pb

COOKIE = "distop_session"

SESSION_S = 12 * 3600.0
MAX_SESSIONS = 1_000
MAX_FORM_BYTES = 16 << 10

Asked = tuple[str, Callable[[Query], Any]]

ASKS: dict[str, Asked] = {
    "/": ("TableService/ListTables", lambda _: pb.ListTablesRequest()),
    "/table": ("TableService/GetTable", lambda query: pb.GetTableRequest(name=query.needed("name"))),
    "/operation": (
        "OperationService/GetOperation",
        lambda query: pb.GetOperationRequest(name=query.needed("name")),
    ),
    "/members": ("ClusterService/ListMembers", lambda _: pb.ListMembersRequest()),
    "/api/tables": ("TableService/ListTables", lambda _: pb.ListTablesRequest()),
    "/api/table": ("TableService/GetTable", lambda query: pb.GetTableRequest(name=query.needed("name"))),
    "/api/watermarks": (
        "TableService/GetWatermarks",
        lambda query: pb.GetWatermarksRequest(table=query.needed("table")),
    ),
    "/api/operations": (
        "OperationService/ListOperations",
        lambda query: pb.ListOperationsRequest(table=query.text("table")),
    ),
    "/api/operation": (
        "OperationService/GetOperation",
        lambda query: pb.GetOperationRequest(name=query.needed("name")),
    ),
    "/api/jobs": (
        "OperationService/GetOperation",
        lambda query: pb.GetOperationRequest(name=query.needed("name")),
    ),
    "/api/members": ("ClusterService/ListMembers", lambda _: pb.ListMembersRequest()),
    "/api/leaders": ("ClusterService/ListLeaders", lambda _: pb.ListLeadersRequest()),
    # Rights of the whole installation, as for the doctor.
    "/metrics": ("ClusterService/Diagnose", lambda _: pb.DiagnoseRequest()),
}
"""The gRPC call whose right a path needs, and its request. A path that is not here shows nothing of the
installation."""


class Doors:
    """Authentication and authorisation for one page."""

    def __init__(self, gate: Gate, *, secure: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._gate, self._secure, self._clock = gate, secure, clock
        self._sessions: OrderedDict[str, tuple[float, Secret]] = OrderedDict()

    async def enter(self, request: Request) -> Caller:
        """The caller of this path, if it is allowed; raises as :meth:`Gate.enter`."""
        # The routed path. The path of ``request.url`` is built from the Host header, too.
        method, asked = ASKS[request.scope["path"]]
        message = asked(Query(request.query_params))
        return await self._gate.enter(f"/distop.v1.{method}", message, self._proof(request))

    async def caller(self, request: Request) -> Caller:
        """The caller, whatever its rights."""
        return await self._gate.caller(self._proof(request))

    async def sign_in(self, request: Request, response: Response) -> None:
        """Begin a session with the token of the request's form. It is verified again with each request: when
        it expires or is revoked, its sessions end."""
        token = Secret(await _form(request, "token"))
        if not token:
            raise Unauthenticated("enter a token")
        who = await self._gate.caller(proof_of(request.scope, token))
        if not who.subject:
            raise Unauthenticated("this service does not accept tokens")
        name = secrets.token_urlsafe(32)
        self._sessions[name] = (self._clock() + SESSION_S, token)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        response.set_cookie(COOKIE, name, secure=self._secure, httponly=True, samesite="strict")

    def sign_out(self, request: Request, response: Response) -> None:
        """End the session."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)
        response.delete_cookie(COOKIE, secure=self._secure, httponly=True, samesite="strict")

    def _proof(self, request: Request) -> Proof:
        proof = proof_of(request.scope)
        if not proof.token and (name := request.cookies.get(COOKIE)):
            until, known = self._sessions.get(name, (0.0, NONE))
            return replace(proof, token=known if self._clock() < until else NONE)
        return proof


def check_same_place(request: Request) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` for a form that another site sent."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise InvalidArgument("this form comes from another site", details={"field": "origin"})


async def _form(request: Request, field: str) -> str:
    """One field of a form, of bounded size."""
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_FORM_BYTES:
                raise InvalidArgument("the form is too large", details={"field": field})
        fields = parse_qs(body.decode(errors="replace"), max_num_fields=10)
    except ClientDisconnect:
        raise InvalidArgument("the form is incomplete", details={"field": field}) from None
    except ValueError:
        raise InvalidArgument("the form has too many fields", details={"field": field}) from None
    return fields.get(field, [""])[0].strip()
