"""Requests about namespaces."""

from __future__ import annotations

from bisect import bisect_right

from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.typedef import Identifier

from distop.catalog.catalog import EtcdCatalog
from distop.catalog.namespaces import DEFAULT, namespace_name
from distop.coordinator.access.callers import Caller
from distop.coordinator.rest.calls import NOTHING, SEPARATOR, Reply, RestCall, error_reply, json_reply


def shown(who: Caller, namespace: Identifier) -> bool:
    """Whether a namespace exists for a caller: it may see tables there, or below."""
    name = namespace_name(namespace)
    return who.sees_below("" if name == DEFAULT else f"{name}.")


def find(catalog: EtcdCatalog, call: RestCall) -> Reply:
    """The direct children of a namespace, or the top level."""
    names = [name for name in catalog.list_namespaces(call.parent) if shown(call.who, name)]
    start = bisect_right(names, tuple(call.page_token.split(SEPARATOR))) if call.page_token else 0
    page, rest = names[start : start + call.page_size], names[start + call.page_size :]
    return json_reply({"namespaces": page, "next-page-token": SEPARATOR.join(page[-1]) if rest else None})


def create(catalog: EtcdCatalog, call: RestCall) -> Reply:
    namespace, properties = call.body.namespace, call.body.properties or {}
    catalog.create_namespace(namespace, properties)
    return json_reply({"namespace": namespace, "properties": properties})


def load(catalog: EtcdCatalog, call: RestCall) -> Reply:
    """With its place: without one Trino has a table made, and takes what it finds there for another's."""
    properties = catalog.namespace_with_place(call.namespace)
    return json_reply({"namespace": call.namespace, "properties": properties})


def exists(catalog: EtcdCatalog, call: RestCall) -> Reply:
    if not catalog.namespace_exists(call.namespace):
        raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(call.namespace)}")
    return NOTHING


def change(catalog: EtcdCatalog, call: RestCall) -> Reply:
    removals, updates = call.body.removals or set(), call.body.updates or {}
    if both := sorted(removals & updates.keys()):
        return error_reply(422, "UnprocessableEntityException", f"to be removed and set: {', '.join(both)}")
    summary = catalog.update_namespace_properties(call.namespace, removals, updates)
    return json_reply({"removed": summary.removed, "updated": summary.updated, "missing": summary.missing})


def drop(catalog: EtcdCatalog, call: RestCall) -> Reply:
    catalog.drop_namespace(call.namespace)
    return NOTHING
