"""Records of a table in etcd, apart from its operations, and of namespaces and views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from distop.metastore.records.names import OperationId
from distop.metastore.records.record import Record, decode_plain

Watermarks = dict[str, dict[str, str]]
"""source -> partition -> value. Plain JSON object, no envelope; see ``watermarks.py``."""

RunOps = dict[str, list[str]]
"""``<table>.runOps``: operation type -> slots of its running operations. Plain JSON object."""


class TableRecord(Record, kw_only=True):
    """``<table>.table``: what a table is."""

    name: str
    location: str
    """URL of the folder (any fsspec file system) for the table's files."""
    format: str = "iceberg"
    """``iceberg`` (default), ``files`` or ``delta``."""
    options: dict[str, Any] = {}
    """Format options; for Iceberg ``schema``, ``partitionBy`` and ``properties``."""
    created_at: float = 0.0
    created_by: str = ""
    uuid: str = ""
    found_empty: bool = False
    """Whether its folder was empty before its creator wrote there: then all of it belongs to the table, even
    if the owner file is still missing."""
    altered: list[str] = []
    """The call of its creation and the runs of its last alterations. Each changes the record, which every
    start compares."""


class Head(Record, kw_only=True):
    """``<table>.head``: the published state. One key, so that a reader needs one read."""

    metadata_location: str
    """Of an Iceberg table; otherwise empty."""
    snapshot_id: int | None = None
    operation: str = ""
    """Who moved it: an operation id, or ``foreign`` for a program that wrote through the catalog."""
    layout: dict[str, Any] = {}
    """Columns and partitioning of a table that has no metadata of its own (format ``files``)."""


class IndexRecord(Record, kw_only=True):
    """``<table>.index.<column>``: the published state of an index of a column."""

    column: str
    field_id: int
    """Field id of the column: names may be reused."""
    manifest: str
    """Location of the list of its parts and of the data files that they cover."""
    snapshot_id: int
    """The snapshot whose files it covers."""
    sequence_number: int = 0
    """The sequence number of that snapshot in its Iceberg metadata."""
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
    """``_dropped.<table>``: no table has this name any more; its remaining keys are not removed yet."""

    name: str
    location: str
    uuid: str = ""
    storage: dict[str, Any] = {}
    purge: bool = False
    """Whether its files are to be removed, too."""
    renamed_to: str = ""
    """The table's new name: history and audit trail are moved there."""
    by: str = ""
    at: float = 0.0


class ViewRecord(Record, kw_only=True):
    """``_views.<name>``: an Iceberg view. Its content is in its metadata file."""

    location: str
    """URL of its folder, which no table or other view shares."""
    metadata_location: str
    uuid: str
    """Of this key, not of the view: distinguishes this attempt from another one to register the same file."""
    created_at: float = 0.0
    created_by: str = ""


class LocationRecord(Record, kw_only=True):
    """``_locations.<place>``: the owner of a folder."""

    table: str
    uuid: str


class AnswerRecord(Record, kw_only=True):
    """``_answers.<key>``: a request of the catalog with an idempotency key was done, a form of the page was
    sent, or somebody has signed in there. Deleted with its lease."""

    digest: str
    """Digest of the request; of a form who acts on it."""
    result: str = ""
    """Location of the changed table's metadata; empty: it has another answer. Of a form where one sees its
    effect; empty: that is not known. Of a session its sealed token."""


class AuditRecord(Record, kw_only=True):
    """``<table>.auditTrail.<id>`` and ``_audit.<id>``: one control action. Written with the action itself.
    ``_denied.<id>``: a refused one."""

    action: str
    """Such as ``start``, ``cancel``, ``pause``."""
    target: str
    """The object of the action: an operation, a table, a member."""
    by: str = ""
    """Who did it: the verified name, or otherwise the name that the caller stated."""
    claimed: str = ""
    """The name that the caller stated, where :attr:`by` is verified."""
    address: str = ""
    """The address of the caller."""
    reason: str = ""
    at: float = 0.0
    run: str = msgspec.field(default="", name="requestId")
    argument: str = ""
    """Of a start: the argument, as in the operation's record; and once the operation is over:"""
    outcome: str = ""
    """``success``, ``failed`` or ``cancelled``. Of other actions: ``done``, or ``denied``."""
    rows: int | None = None
    bytes: int | None = None
    error_code: str = ""


class AlertRecord(Record, kw_only=True):
    """``_alerts.<name>``: an alert that was delivered, and whose condition has not ended. It is removed when
    its end has been delivered, too."""

    kind: str
    """``failed``, ``parked``, ``blocked`` or ``late``."""
    table: str
    operation: str = ""
    batch: str = ""
    since: float = 0.0
    """When the condition began, in seconds since the Unix epoch. Another time is another occurrence, which is
    delivered again."""
    code: str = ""
    message: str = ""
    command: str = ""
    """What to do about it: a ``distop`` command."""
    revision: int = 0
    """Of a late watermark: at which revision it was written. Of a failure: that of its history."""
    delivered_at: float = 0.0


class AlertCursor(Record, kw_only=True):
    """``_alertCursor``: up to which revision every operation that failed was delivered."""

    revision: int
    at: float = 0.0


class NamespaceRecord(Record, kw_only=True):
    """``_namespaces.<name>``: an Iceberg namespace."""

    properties: dict[str, str] = {}


def decode_watermarks(value: bytes) -> Watermarks:
    """The watermarks in a value: source, partition, value. The empty value of a missing key has none."""
    return decode_plain(value, Watermarks, "watermarks")


def decode_run_ops(value: bytes) -> RunOps:
    """The running operations in a value of ``runOps``: slots by type. The empty value of a missing key has
    none."""
    return decode_plain(value, RunOps, "runOps")


def running_operations(table: str, run_ops: bytes) -> Iterator[OperationId]:
    """The running operations of a table, from the value of its ``runOps``."""
    for type_name, slots in decode_run_ops(run_ops).items():
        for slot in slots:
            yield OperationId.from_slot(table, type_name, slot)
