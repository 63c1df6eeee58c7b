"""Requests about views."""

from __future__ import annotations

from distop.catalog.catalog import EtcdCatalog
from distop.coordinator.rest.calls import NOTHING, Reply, RestCall
from distop.coordinator.rest.tables import absolute, check_same, loaded, loaded_reply, page_of


def find(catalog: EtcdCatalog, call: RestCall) -> Reply:
    """The views directly in a namespace."""
    return page_of(call, catalog.views_after)


def create(catalog: EtcdCatalog, call: RestCall) -> Reply:
    wanted = call.body
    location, properties = absolute(wanted.location), wanted.properties or {}
    return loaded_reply(
        catalog.create_view(call.named, wanted.columns, wanted.view_version, location, properties)
    )


def register(catalog: EtcdCatalog, call: RestCall) -> Reply:
    return loaded_reply(catalog.register_view(call.named, call.body.metadata_location))


def load(catalog: EtcdCatalog, call: RestCall) -> Reply:
    """The view's metadata as stored, unless the client has it already."""
    return loaded(catalog, call, catalog.view_metadata_location(call.view))


def exists(catalog: EtcdCatalog, call: RestCall) -> Reply:
    catalog.view_metadata_location(call.view)
    return NOTHING


def commit(catalog: EtcdCatalog, call: RestCall) -> Reply:
    check_same(call, call.view)
    return loaded_reply(catalog.commit_view(call.view, call.body.requirements, call.body.updates))


def drop(catalog: EtcdCatalog, call: RestCall) -> Reply:
    catalog.drop_view(call.view)
    return NOTHING


def rename(catalog: EtcdCatalog, call: RestCall) -> Reply:
    catalog.rename_view(call.body.source.identifier, call.body.destination.identifier)
    return NOTHING
