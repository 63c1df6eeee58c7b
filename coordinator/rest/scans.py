"""Planning of scans for engines: which files may hold the requested rows, by statistics and indexes.

Nothing is stored between requests. A plan task repeats the request, with the part of the scan that it stands
for: a snapshot never changes, so every coordinator finds the same files for it.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import Any

import msgspec
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from distop.commit.catalog.catalog import EtcdCatalog
from distop.commit.catalog.namespaces import table_name
from distop.commit.index.lookup import left_of
from distop.commit.scans.pages import MAX_TASKS, Span, parted, planned, whole
from distop.commit.scans.scan import Scan, Wanted
from distop.commit.scans.wire import Wire
from distop.coordinator.rest.bodies import Planning
from distop.coordinator.rest.calls import NOTHING, Call, Reply, json_reply
from distop.coordinator.rest.problems import told
from distop.errors import InvalidArgument
from distop.metastore.records.structs import from_json
from distop.metastore.tables.indexes import read_indexes

MAX_FILTER = 256 << 10
"""Longest filter, in bytes: the answer repeats it for each file with other rows, too."""
MAX_ANSWER = 32 << 20
"""Approximate size of an answer, in bytes."""
TASK_BYTES = 600
"""Approximate bytes of a file in an answer, without the filter."""
PARTS, MAX_TOKENS = 16, 1 << 20
"""Most plan tasks of one answer, and their bytes, if there are several."""
MAX_PLAN_ID = 1_500
"""Longest id of a plan, in characters. It is part of a path that fetches the result again."""
MAX_TOKEN = 1 << 20
"""Longest content of a plan task, in bytes."""


class _Asked(msgspec.Struct, frozen=True, array_like=True):
    """The content of a plan task: a scan, and the part of it to plan."""

    wanted: Wanted
    stats: list[int]
    span: Span | None
    """The part; ``None``: the whole scan."""


def plan(catalog: EtcdCatalog, call: Call) -> Reply:
    """The files of a scan: a page of them, and tasks for the others."""
    table, body = catalog.load_table(call.table), call.body
    scan = Scan(table.metadata, table.io, _wanted(table, body))
    present = None if scan.snapshot is None else scan.snapshot.snapshot_id
    wanted = Wanted(
        snapshot_id=present,
        after=body.start_snapshot_id,
        schema_id=scan.schema.schema_id,
        filter=body.filter,
        case_sensitive=body.case_sensitive,
    )
    asked = _Asked(wanted, _ids(scan.schema, body), None)
    token = _token(asked)
    short = token if len(token) <= MAX_PLAN_ID else blake2b(token.encode(), digest_size=16).hexdigest()
    return json_reply({"status": "completed", "plan-id": short, **_page(catalog, call, scan, asked)})


def result(catalog: EtcdCatalog, call: Call) -> Reply:
    """Return a plan again: it was complete when it was created."""
    found = _asked(catalog, call, call.parts["plan-id"])
    if found is None:
        return told(404, "NoSuchPlanIdException", "there is no such plan (any more): plan again")
    return json_reply({"status": "completed", **_page(catalog, call, *found)})


def cancel(catalog: EtcdCatalog, call: Call) -> Reply:
    """Cancel a plan: nothing is stored for one."""
    catalog.metadata_location(call.table)
    return NOTHING


def tasks(catalog: EtcdCatalog, call: Call) -> Reply:
    """The files of a plan task: a page of them, and a task for the others."""
    found = _asked(catalog, call, call.body.plan_task)
    if found is None:
        return told(404, "NoSuchPlanTaskException", "there is no such plan task (any more): plan again")
    return json_reply(_page(catalog, call, *found))


def _wanted(table: Table, body: Planning) -> Wanted:
    """The scan of a request. Raises :class:`~distop.errors.InvalidArgument`."""
    if "filter" in body.model_fields_set and body.filter is None:
        raise InvalidArgument("the filter is null; leave it out for all rows", details={"field": "filter"})
    try:
        length = len(msgspec.json.encode(body.filter))
    except (OverflowError, RecursionError) as error:
        raise InvalidArgument(f"the filter cannot be used: {error}", details={"field": "filter"}) from error
    if length > MAX_FILTER:
        raise InvalidArgument(
            f"the filter is {length:,} bytes long, at most {MAX_FILTER:,} are taken",
            details={"field": "filter"},
        )
    start, end = body.start_snapshot_id, body.end_snapshot_id
    if (start is None) is not (end is None) or (start is not None and body.snapshot_id is not None):
        raise InvalidArgument(
            "give snapshot-id, or both start-snapshot-id and end-snapshot-id, or none",
            details={"field": "snapshot-id"},
        )
    snapshot_id = body.snapshot_id if end is None else end
    schema_id = None
    if body.use_snapshot_schema and snapshot_id is not None:
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        schema_id = None if snapshot is None else snapshot.schema_id
    return Wanted(
        snapshot_id=snapshot_id,
        after=start,
        schema_id=schema_id,
        filter=body.filter,
        case_sensitive=body.case_sensitive,
    )


def _ids(schema: Schema, body: Planning) -> list[int]:
    """The columns whose statistics are requested; engines also name columns that the table does not have."""
    found = []
    for name in body.stats_fields or ():
        try:
            found.append(schema.find_field(name or "", case_sensitive=body.case_sensitive).field_id)
        except ValueError:
            continue
    return found


def _page(catalog: EtcdCatalog, call: Call, scan: Scan, asked: _Asked) -> dict[str, Any]:
    """The first page of the part of a plan task, and plan tasks for the rest of it."""
    residual = msgspec.Raw(msgspec.json.encode(asked.wanted.filter))
    root, io, schema = scan.metadata.location.rstrip("/"), scan.io, scan.schema
    keys = catalog.etcd.keyspace.table(table_name(call.table))
    indexes = catalog.etcd.run(lambda client: read_indexes(client, keys))
    page = planned(
        scan,
        whole(scan) if asked.span is None else asked.span,
        lambda expression, files: left_of(indexes, io, root, schema, expression, files),
        most=max(1, min(MAX_TASKS, MAX_ANSWER // (TASK_BYTES + len(bytes(residual))))),
    )
    answer = Wire(scan.metadata, residual, asked.stats).tasks(page.tasks)
    if page.rest is not None:
        # The rest of a task is one task: parallel parts were cut when the scan was planned.
        parts = 1 if asked.span is not None else min(PARTS, MAX_TOKENS // len(_token(asked)))
        spans = parted(scan, page.rest, max(1, parts))
        answer["plan-tasks"] = [_token(msgspec.structs.replace(asked, span=span)) for span in spans]
    return answer


def _token(asked: _Asked) -> str:
    return urlsafe_b64encode(zlib.compress(msgspec.json.encode(asked))).decode().rstrip("=")


def _asked(catalog: EtcdCatalog, call: Call, token: str) -> tuple[Scan, _Asked] | None:
    """The content of a token for the present table; ``None`` if it is invalid, or its snapshot is gone.

    A reader of the table may forge tokens: one contains nothing that could not be requested.
    """
    table = catalog.load_table(call.table)
    try:
        packed = urlsafe_b64decode(f"{token}{'=' * (-len(token) % 4)}")
        text = zlib.decompressobj().decompress(packed, MAX_TOKEN + 1)
        asked = from_json(text, _Asked)
        return Scan(table.metadata, table.io, asked.wanted), asked
    except (InvalidArgument, ValueError, zlib.error, RecursionError):
        return None
