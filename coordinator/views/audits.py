"""The audit trail in the form of the API."""

from __future__ import annotations

from distop.coordinator.views.operations import timestamp
from distop.metastore.tables.audit import Cursor, Entry
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json


def _object(argument: str) -> str:
    """A JSON object. Release 0.2.0 has written the bare name of a backup's file."""
    return argument if not argument or argument.startswith("{") else to_json({"file": argument}, "argument")


def entry_message(entry: Entry) -> pb.AuditEntry:
    """An entry in the form of the API."""
    record = entry.record
    return pb.AuditEntry(
        id=entry.id,
        at=timestamp(record.at),
        action=record.action,
        target=record.target,
        by=record.by,
        reason=record.reason,
        request_id=record.request_id,
        argument_json=_object(record.argument),
        claimed_by=record.claimed,
        address=record.address,
        outcome=record.outcome,
        rows=record.rows,
        bytes=record.bytes,
        error_code=record.error_code,
        table=entry.table,
        cursor=str(Cursor(entry.revision, entry.id)),
    )
