"""What stands in etcd of a table beside its operations, and of what tables are named by."""

from __future__ import annotations

from typing import Any

from distop.metastore.records.record import Record, decode_plain

Watermarks = dict[str, dict[str, str]]
"""source -> partition -> value. Plain JSON object, no envelope; see ``watermarks.py``."""

RunOps = dict[str, list[str]]
"""``<table>.runOps``: operation type -> slots of its running operations. Plain JSON object."""


class TableRecord(Record, kw_only=True):
    """``<table>.table``: what a table is."""

    name: str
    location: str
    """URL of the folder (any fsspec file system) that the table's files live in."""
    format: str = "iceberg"
    """``iceberg`` (default), ``files`` or ``delta``."""
    options: dict[str, Any] = {}
    """Format options; for Iceberg ``schema``, ``partitionBy`` and ``properties``."""
    created_at: float = 0.0
    created_by: str = ""
    uuid: str = ""
    found_empty: bool = False
    """Whether nothing was in its folder before who made it wrote there: so all of it is the table's own, also
    where the owner file is still missing."""
    altered: list[str] = []
    """Request ids of its last alterations. Each changes the record, which every start compares."""


class Head(Record, kw_only=True):
    """``<table>.head``: the published state. One key, so that a reader needs one read."""

    metadata_location: str
    """Of an Iceberg table; else empty."""
    snapshot_id: int | None = None
    operation: str = ""
    """Who moved it: an operation id, or ``foreign`` for a program that wrote through the catalog."""
    layout: dict[str, Any] = {}
    """Columns and partitioning of a table that has no metadata of its own (format ``files``)."""


class IndexRecord(Record, kw_only=True):
    """``<table>.index.<column>``: the published state of an index of a column."""

    column: str
    field_id: int
    """Of the column: names may be given to other columns."""
    manifest: str
    """Location of the list of its parts and of the data files that they cover."""
    snapshot_id: int
    """The snapshot whose files it covers."""
    sequence_number: int = 0
    """Of that snapshot."""
    files: int = 0
    """Data files that it covers."""
    left_out: int = 0
    """Files of that snapshot that it could not cover: readers always open these."""
    parts: int = 0
    entries: int = 0
    bytes: int = 0
    operation: str = ""
    at: float = 0.0


class DropRecord(Record, kw_only=True):
    """``_dropped.<table>``: no table has this name any more; what it has left there is not gone yet."""

    name: str
    location: str
    uuid: str = ""
    storage: dict[str, Any] = {}
    purge: bool = False
    """Whether its files are to go, too."""
    renamed_to: str = ""
    """The table has this name now: history and audit trail go there."""
    by: str = ""
    at: float = 0.0


class ViewRecord(Record, kw_only=True):
    """``_views.<name>``: an Iceberg view. What it says stands in its metadata file."""

    location: str
    """URL of its folder, which no table or other view shares."""
    metadata_location: str
    uuid: str
    """Of this key, not of the view: it tells this attempt from another one to register the same file."""
    created_at: float = 0.0
    created_by: str = ""


class LocationRecord(Record, kw_only=True):
    """``_locations.<place>``: whose folder it is."""

    table: str
    uuid: str


class AnswerRecord(Record, kw_only=True):
    """``_answers.<key>``: a request of the catalog that carries a key was done. Goes with its lease."""

    digest: str
    """Of the request."""
    result: str = ""
    """Where the metadata of the table lies that it has changed; empty: it has another answer."""


class AuditRecord(Record, kw_only=True):
    """``<table>.auditTrail.<id>`` and ``_audit.<id>``: one control action. Written with the action itself."""

    action: str
    """Such as ``start``, ``cancel``, ``pause``."""
    target: str
    """What it was done to: an operation, a table, a member."""
    by: str = ""
    """Who did it: the verified name, or else what the caller says of itself."""
    claimed: str = ""
    """What the caller says of itself, where :attr:`by` is verified."""
    address: str = ""
    """Where the call came from."""
    reason: str = ""
    at: float = 0.0
    request_id: str = ""
    argument: str = ""
    """Of a start: what was asked for, as in the operation's record; and once that is over:"""
    outcome: str = ""
    """``success``, ``failed`` or ``cancelled``. Of what else is done: ``done``, or ``denied``."""
    rows: int | None = None
    bytes: int | None = None
    error_code: str = ""


class NamespaceRecord(Record, kw_only=True):
    """``_namespaces.<name>``: an Iceberg namespace."""

    properties: dict[str, str] = {}


def decode_watermarks(value: bytes) -> Watermarks:
    """Of a missing key's empty value: no watermarks."""
    return decode_plain(value, Watermarks, "watermarks")


def decode_run_ops(value: bytes) -> RunOps:
    """Of a missing key's empty value: nothing runs."""
    return decode_plain(value, RunOps, "runOps")
