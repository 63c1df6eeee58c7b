"""Rights of requests: the roles of the policy, on the tables and views that a request names."""

from __future__ import annotations

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchViewError

from distop.catalog.errors import both
from distop.catalog.namespaces import namespace_name, table_name
from distop.coordinator.access.callers import Caller
from distop.coordinator.access.gate import REFUSALS, Gate, denied
from distop.coordinator.rest.calls import Call
from distop.coordinator.rest.namespaces import shown
from distop.coordinator.rest.routes import Route
from distop.errors import TableNotFound

MAX_TARGET = 1_000
"""Longest text, in characters, for the tables of one request in the audit trail."""


async def admit(gate: Gate, who: Caller, route: Route, call: Call) -> None:
    """Raise as :func:`check` does, and record it in the audit trail."""
    try:
        check(who, route, call)
    except REFUSALS as refusal:
        named = ", ".join(map(table_name, route.tables(call)))
        await gate.denied(str(route), refusal, target=named[:MAX_TARGET])
        raise


def check(who: Caller, route: Route, call: Call) -> None:
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
            what, details = "view" if route.of_views else "table", {"table": table}
            missing = TableNotFound(f"{what} {table!r} does not exist", details=details)
            raise both(missing, NoSuchViewError) if route.of_views else missing
        if not who.may(role, table):
            raise denied(who, role, f"table {table!r}")
