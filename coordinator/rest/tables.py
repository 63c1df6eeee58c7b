"""Requests about tables and views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Identifier

from distop.catalog.catalog import EtcdCatalog
from distop.catalog.namespaces import table_name
from distop.catalog.view_catalog import StoredView
from distop.coordinator.rest.calls import NOTHING, Reply, RestCall, json_reply
from distop.errors import InvalidArgument
from distop.lake.layout.metadata import metadata_text
from distop.metastore.records.table import AnswerRecord

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def find(catalog: EtcdCatalog, call: RestCall) -> Reply:
    """The tables directly in a namespace."""
    return page_of(call, catalog.tables_after)


def page_of(call: RestCall, after: Callable[[Identifier, Identifier], Iterator[Identifier]]) -> Reply:
    """One page of the entries of a namespace. ``after``: returns all behind the last one seen."""
    last = (*call.namespace, call.page_token) if call.page_token else ()
    visible = (entry for entry in after(call.namespace, last) if call.who.sees(table_name(entry)))
    identifiers = list(islice(visible, call.page_size + 1))
    page, more = identifiers[: call.page_size], len(identifiers) > call.page_size
    named = [{"namespace": identifier[:-1], "name": identifier[-1]} for identifier in page]
    return json_reply({"identifiers": named, "next-page-token": page[-1][-1] if more else None})


def create(catalog: EtcdCatalog, call: RestCall) -> Reply:
    """Create a table; a staged one is only described, and created by its commit."""
    wanted = call.body
    shape = (
        wanted.columns,
        absolute(wanted.location),
        wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC,
        wanted.write_order or UNSORTED_SORT_ORDER,
        wanted.properties or {},
    )
    if wanted.stage_create:
        return _staged(catalog.staged(call.named, *shape))
    return loaded_reply(catalog.create_table(call.named, *shape))


def absolute(location: str | None) -> str | None:
    """Some engines send relative locations, which have no meaning here: the catalog chooses one instead."""
    return location if location and (location.startswith("/") or _SCHEME.match(location)) else None


def register(catalog: EtcdCatalog, call: RestCall) -> Reply:
    """Take a table over; its metadata is answered as stored, since pyiceberg writes none of format 3."""
    made = catalog.register_table(call.named, call.body.metadata_location, call.body.overwrite)
    location = made.metadata_location
    stored = msgspec.Raw(_text(catalog, location))
    return json_reply(_loaded(location, stored), etag=_etag(location, "all"))


def load(catalog: EtcdCatalog, call: RestCall) -> Reply:
    """The table's metadata as stored, unless the client has it already."""
    snapshots = call.query.get("snapshots", "") or "all"
    if snapshots not in ("all", "refs"):
        raise InvalidArgument("snapshots is all or refs", details={"field": "snapshots"})
    return loaded(catalog, call, catalog.metadata_location(call.table), snapshots)


def loaded(catalog: EtcdCatalog, call: RestCall, location: str, snapshots: str = "all") -> Reply:
    """The stored metadata of a table or a view, unless the client has it already."""
    etag = _etag(location, snapshots)
    tags = [tag.strip().removeprefix("W/") for tag in call.headers.get("if-none-match", "").split(",")]
    if etag in tags:
        return Reply(status=304, headers={"etag": etag})
    text = _text(catalog, location)
    metadata = _with_refs(text) if snapshots == "refs" else msgspec.Raw(text)
    return json_reply(_loaded(location, metadata), etag=etag)


def exists(catalog: EtcdCatalog, call: RestCall) -> Reply:
    catalog.metadata_location(call.table)
    return NOTHING


def commit(catalog: EtcdCatalog, call: RestCall) -> Reply:
    check_same(call, call.table)
    done = catalog.commit(call.table, call.body.requirements, call.body.updates)
    metadata = msgspec.Raw(done.metadata.model_dump_json().encode())
    return json_reply({"metadata-location": done.metadata_location, "metadata": metadata})


def check_same(call: RestCall, named: Identifier) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if the body names another one than the path."""
    if call.body.identifier is not None and call.body.identifier.identifier != named:
        raise InvalidArgument("path and body have different names", details={"field": "identifier"})


def commit_all(catalog: EtcdCatalog, call: RestCall) -> Reply:
    """Several tables, in one transaction of etcd."""
    changes = call.body.table_changes
    catalog.commit_all(
        [(change.identifier.identifier, change.requirements, change.updates) for change in changes]
    )
    return NOTHING


def answered(catalog: EtcdCatalog, record: AnswerRecord) -> Reply:
    """The earlier answer, for a repeated request."""
    if not record.result:
        return NOTHING
    return json_reply(_loaded(record.result, msgspec.Raw(_text(catalog, record.result))))


def drop(catalog: EtcdCatalog, call: RestCall) -> Reply:
    if call.query.get("purgeRequested", "").lower() == "true":
        catalog.purge_table(call.table)
    else:
        catalog.drop_table(call.table)
    return NOTHING


def rename(catalog: EtcdCatalog, call: RestCall) -> Reply:
    catalog.rename(call.body.source.identifier, call.body.destination.identifier)
    return NOTHING


def report(_: EtcdCatalog, __: RestCall) -> Reply:
    """Metrics of a scan or commit are accepted and ignored."""
    return NOTHING


def _text(catalog: EtcdCatalog, location: str) -> bytes:
    return metadata_text(catalog.file_io(location), location)


def loaded_reply(made: Table | StoredView) -> Reply:
    """The answer with a created or changed table or view."""
    location, metadata = made.metadata_location, msgspec.Raw(made.metadata.model_dump_json().encode())
    return json_reply(_loaded(location, metadata), etag=_etag(location, "all"))


def _staged(table: StagedTable) -> Reply:
    metadata = msgspec.Raw(table.metadata.model_dump_json().encode())
    return json_reply({"metadata": metadata, "config": {}})


def _loaded(location: str, metadata: Any) -> dict[str, Any]:
    return {"metadata-location": location, "metadata": metadata, "config": {}}


def _etag(location: str, snapshots: str) -> str:
    # A metadata file never changes.
    return f'"{blake2b(f"{snapshots} {location}".encode(), digest_size=16).hexdigest()}"'


def _with_refs(text: bytes) -> dict[str, Any]:
    """Metadata with only the snapshots that a branch or a tag refers to."""
    metadata: dict[str, Any] = msgspec.json.decode(text)
    named = {ref["snapshot-id"] for ref in metadata.get("refs", {}).values()}
    named.add(metadata.get("current-snapshot-id"))
    metadata["snapshots"] = [
        snapshot for snapshot in metadata.get("snapshots", ()) if snapshot["snapshot-id"] in named
    ]
    return metadata


def find_views(catalog: EtcdCatalog, call: RestCall) -> Reply:
    """The views directly in a namespace."""
    return page_of(call, catalog.views_after)


def create_view(catalog: EtcdCatalog, call: RestCall) -> Reply:
    wanted = call.body
    location, properties = absolute(wanted.location), wanted.properties or {}
    return loaded_reply(
        catalog.create_view(call.named, wanted.columns, wanted.view_version, location, properties)
    )


def register_view(catalog: EtcdCatalog, call: RestCall) -> Reply:
    return loaded_reply(catalog.register_view(call.named, call.body.metadata_location))


def load_view(catalog: EtcdCatalog, call: RestCall) -> Reply:
    """The view's metadata as stored, unless the client has it already."""
    return loaded(catalog, call, catalog.view_metadata_location(call.view))


def exists_view(catalog: EtcdCatalog, call: RestCall) -> Reply:
    catalog.view_metadata_location(call.view)
    return NOTHING


def commit_view(catalog: EtcdCatalog, call: RestCall) -> Reply:
    check_same(call, call.view)
    return loaded_reply(catalog.commit_view(call.view, call.body.requirements, call.body.updates))


def drop_view(catalog: EtcdCatalog, call: RestCall) -> Reply:
    catalog.drop_view(call.view)
    return NOTHING


def rename_view(catalog: EtcdCatalog, call: RestCall) -> Reply:
    catalog.rename_view(call.body.source.identifier, call.body.destination.identifier)
    return NOTHING
