"""Repeated requests: one with an ``Idempotency-Key`` is executed once.

A request is noted in the transaction that executes it, so that every coordinator knows it, even if no client
got the reply. A refused request is not noted: nothing has happened, and it may be tried again.
"""

from __future__ import annotations

from hashlib import blake2b
from uuid import UUID

from starlette.types import Scope

from distop.catalog.catalog import EtcdCatalog
from distop.coordinator.rest import tables
from distop.coordinator.rest.calls import Reply, RestCall
from distop.coordinator.rest.routes import Route
from distop.errors import InvalidArgument, LeaseLost
from distop.metastore.tables.answers import RememberedAnswers

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
        """Whether a request with this key was executed, whoever has sent it."""
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
