"""What stands in etcd, as types.

Values are JSON that an operator can read. Every record carries the version of its layout: a newer layout
that this version cannot honour is refused by name (``CorruptRecord``), unknown optional fields of the same
layout are kept out of the way and ignored.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import msgspec

from distop.errors import CorruptRecord, InvalidArgument
from distop.metastore.records.effects import Effect
from distop.metastore.records.keyspace import OperationId
from distop.metastore.records.options import FollowUp
from distop.metastore.records.options import OperationOptions as OperationOptions
from distop.metastore.records.structs import ready

RUNNING = b"running"
COMMITTING = b"committing"
ABORTING = b"aborting"
"""States of an operation while it has keys; plain text, since transactions compare them."""

MAX_JOB_RECORD_BYTES = 1024
"""A job's record stays under this whatever the job wrote; larger facts belong beside its data."""

MAX_CHECKPOINT_BYTES = 1024
"""A checkpoint stays under this; larger progress belongs beside the job's data."""

# Every type of a record is fixed, so one encoder serves all; sorted keys make equal records equal bytes.
_encoder = msgspec.json.Encoder(order="deterministic")


class Record(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The root of all records. ``version`` is that of the layout."""

    LAYOUT: ClassVar[int] = 1
    # A factory, since omit_defaults would leave a plain default out of the JSON.
    version: int = msgspec.field(default_factory=lambda: 1)


class _Layout(msgspec.Struct):
    version: int = 0


R = TypeVar("R", bound=Record)
_decoders: dict[type[Record], msgspec.json.Decoder[Any]] = {}


def encode(record: Record) -> bytes:
    """The JSON bytes of a record; equal records give equal bytes."""
    return _encoder.encode(record)


def decode(value: bytes, kind: type[R], key: bytes = b"") -> R:
    """Read a record.

    Raises
    ------
    CorruptRecord
        The value is not a record of this kind, or of a newer layout than this version understands.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders.setdefault(kind, msgspec.json.Decoder(ready(kind)))
    try:
        record: R = decoder.decode(value)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, InvalidArgument) as error:
        # Fields of a newer layout may have other types: then the layout is what there is to say.
        _refuse_newer(_layout_of(value), kind, key)
        raise CorruptRecord(f"{key.decode(errors='replace')} holds no {kind.__name__}: {error}") from error
    _refuse_newer(record.version, kind, key)
    return record


def _layout_of(value: bytes) -> int:
    try:
        return msgspec.json.decode(value, type=ready(_Layout)).version
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0


def _refuse_newer(layout: int, kind: type[Record], key: bytes) -> None:
    if layout > kind.LAYOUT:
        raise CorruptRecord(
            f"{key.decode(errors='replace')} has layout {layout} of {kind.__name__}, "
            f"this version understands up to {kind.LAYOUT}",
            hint="upgrade distop on this host",
        )


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


class MemberRecord(Record, kw_only=True):
    """``_coordinators.<id>`` and ``_executors.<id>``: a live process; the key is bound to its lease."""

    id: str
    role: str = ""
    """``executor`` or ``sidecar``; empty: as of older versions, what the key says."""
    address: str = ""
    host: str = ""
    pid: int = 0
    started_at: float = 0.0
    types: list[str] = []
    """Operation types an executor serves."""
    draining: bool = False
    """A coordinator that leads nothing as long as another one can; it still answers calls."""


class LeaderRecord(Record, kw_only=True):
    """``<table>.coordinator``: who leads the table."""

    member: str
    address: str = ""


class RunnerRecord(Record, kw_only=True):
    """``<root>.runner``: which executor runs the operation; the key's create revision is the run token."""

    member: str
    started_at: float = 0.0


class ClaimRecord(Record, kw_only=True):
    """``<root>.<partition>.claim``: the attempt that owns an exclusive job."""

    attempt: str
    member: str = ""


class WatermarkMove(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """One step of a watermark: it must still stand at ``before`` when the operation finishes."""

    before: str | None = None
    after: str
    jobs: list[tuple[int, int]] | None = None
    """The jobs that bring it there, as ranges (from, up to but without) of their places among the operation's
    jobs; it moves only if all of them succeed. ``None``: all jobs of the operation."""


class OperationArg(Record, kw_only=True):
    """``<root>.arg``: the request, as accepted. Fixed from the start of the operation to its end.

    Layout 2 is that of dynamic plans: an older version would take them for operations without jobs.
    """

    LAYOUT: ClassVar[int] = 2
    table: str
    type: str
    instance: int
    object: str = ""
    uuid: str = ""
    """Random; names staged files, so that no two operations ever share a path."""
    argument: dict[str, Any] = {}
    """What the type's ``plan`` made of the caller's argument."""
    partition_count: int = 0
    """Number of jobs."""
    partitions: list[str] | None = None
    """Names of the jobs; ``None`` means "0" to "<partition_count - 1>"."""
    dynamic: bool = False
    """Nobody knows beforehand which jobs there are: see :class:`RunRecord`."""
    watermarks: dict[str, dict[str, WatermarkMove]] = {}
    """source -> partition -> move, applied in the transaction that finishes the operation."""
    options: OperationOptions = msgspec.field(default_factory=OperationOptions)
    request_id: str = ""
    started_at: float = 0.0
    started_by: str = ""
    location: str = ""
    """The table's location at the start."""
    storage: dict[str, Any] = {}
    """The table's storage options at the start, for fsspec."""
    exclusive: bool = False
    """Jobs must be claimed before they run."""
    stages_files: bool = False
    """Jobs leave files under the operation's staging folders, which a collector sweeps after the end."""
    nested_files: bool = False
    """These files may lie in folders below the staging folders."""
    builds_index: bool = False
    """These files belong to the index that is the operation's object."""
    effect: Effect = Effect.REPLACES
    """What the operation does to the table."""
    batches: list[str] = []
    """The batches of the table's backlog that it applies; finishing it takes them out."""
    distop: str = ""
    """The version that started it."""
    then: FollowUp | None = None
    """What its finish starts, if it succeeds."""
    follows: str = ""
    """The operation whose finish has started it."""

    @property
    def id(self) -> OperationId:
        return OperationId(self.table, self.type, self.instance, self.object)

    def partition_names(self) -> list[str]:
        if self.partitions is not None:
            return self.partitions
        return [str(index) for index in range(self.partition_count)]


class JobRecord(Record, kw_only=True):
    """``<root>.<partition>.state``: the one result of a job. Under 1 KiB."""

    state: str
    """``success`` or ``failed``."""
    attempt: str = ""
    """Whose mark it is; a repeated mark recognises itself by it."""
    result: dict[str, Any] = {}
    """What the job reports: counts, and where its manifest lies."""
    error: str = ""
    """Code and message of a failure, cut to fit."""
    at: float = 0.0
    run: int = 0
    """Of a dynamic plan: the token of the run that it belongs to."""


class RunRecord(Record, kw_only=True):
    """``<root>.run``: of a dynamic plan, the run whose results count. Those of any other run do not."""

    token: int
    """Its run token."""
    count: int | None = None
    """How many results it has; ``None``: they are not all there yet. Once it is known it stays."""
    tasks: int = 0
    """How many tasks Spark is to run, as far as is known. For people only."""
    done: int = 0
    """How many of them have ended. For people only."""


class CancelRecord(Record, kw_only=True):
    """``<root>.cancel``: somebody asked for the operation to be cancelled."""

    by: str = ""
    reason: str = ""
    at: float = 0.0


class PauseRecord(Record, kw_only=True):
    """``<root>.pause`` and ``<table>.pause``: somebody has paused the operation, or the table."""

    by: str = ""
    reason: str = ""
    at: float = 0.0


class DropRecord(Record, kw_only=True):
    """``_dropped.<table>``: the table is gone, what it has left is not yet."""

    name: str
    location: str
    storage: dict[str, Any] = {}
    purge: bool = False
    """Whether its files are to go, too."""
    by: str = ""
    at: float = 0.0


class AuditRecord(Record, kw_only=True):
    """``<table>.auditTrail.<id>`` and ``_audit.<id>``: one control action. Written with the action itself."""

    action: str
    """Such as ``start``, ``cancel``, ``pause``."""
    target: str
    """What it was done to: an operation, a table, a member."""
    by: str = ""
    reason: str = ""
    at: float = 0.0
    request_id: str = ""


class ErrorRecord(Record, kw_only=True):
    """``<root>.error``: why an operation aborts."""

    code: str
    message: str
    at: float = 0.0
    facts: dict[str, Any] = {}
    """What the history is to show of it besides; some KiB at most."""


class CompletionRecord(Record, kw_only=True):
    """``<root>.completion``: how completing an operation has failed so far. Absent: it has not."""

    attempts: int = 0
    """Failed attempts since the start or since somebody resolved it; counted across leaders."""
    step: str = ""
    """The commit step that failed last; empty when it was something else."""
    index: int | None = None
    """Where that step stands in the commit sequence."""
    skippable: bool = False
    """Whether that step may be left out."""
    error_code: str = ""
    error: str = ""
    at: float = 0.0
    parked: bool = False
    """No further attempt before somebody resolves it."""
    skipped: list[int] = []
    """Steps of the commit sequence that are not to be executed, as somebody has decided."""


RETRY, SKIP, ABORT = "retry", "skip", "abort"
"""How a parked operation can be resolved."""


class ResolveRecord(Record, kw_only=True):
    """``<root>.resolve``: somebody's decision on a parked operation, for its leader to act on."""

    action: str
    """``retry``, ``skip`` or ``abort``."""
    by: str = ""
    reason: str = ""
    at: float = 0.0


class RequestRecord(Record, kw_only=True):
    """``<table>.request.<id>``: what a request id made, so that a repeat gets the same answer."""

    operation: str
    digest: str
    """Of the request's body; the same id with another body is an error."""
    at: float = 0.0


class ActiveRecord(Record, kw_only=True):
    """``_active.<operation>``: the index entry of an operation that still has keys."""

    type: str


class HistoryRecord(Record, kw_only=True):
    """``<table>.history.<operation>``: what remains of a finished operation."""

    outcome: str
    """``success``, ``failed`` or ``cancelled``."""
    uuid: str = ""
    request_id: str = ""
    started_at: float = 0.0
    started_by: str = ""
    finished_at: float = 0.0
    partition_count: int = 0
    succeeded: int = 0
    failed: int = 0
    error_code: str = ""
    error: str = ""
    facts: dict[str, Any] = {}
    """What its commit steps report: snapshot id, rows, files."""
    follows: str = ""
    """The operation whose finish has started it."""


class NamespaceRecord(Record, kw_only=True):
    """``_namespaces.<name>``: an Iceberg namespace."""

    properties: dict[str, str] = {}


class StepRecord(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """One commit step an operation asks for: the name of a registered step type, and its argument."""

    step: str
    argument: dict[str, Any] = {}
    stage: int = 0
    """Of an external step: those of a stage run side by side, once all steps of lower stages are done."""


Watermarks = dict[str, dict[str, str]]
"""``<table>.watermarks``: source -> partition -> value. Plain JSON object, no envelope."""

RunOps = dict[str, list[str]]
"""``<table>.runOps``: operation type -> slots of its running operations. Plain JSON object."""


def encode_plain(value: Watermarks | RunOps) -> bytes:
    return _encoder.encode(value)


def decode_watermarks(value: bytes) -> Watermarks:
    """Of a missing key's empty value: no watermarks."""
    watermarks: Watermarks = _decode_plain(value, Watermarks, "watermarks")
    return watermarks


def decode_run_ops(value: bytes) -> RunOps:
    """Of a missing key's empty value: nothing runs."""
    run_ops: RunOps = _decode_plain(value, RunOps, "runOps")
    return run_ops


def _decode_plain(value: bytes, kind: Any, what: str) -> Any:
    if not value:
        return {}
    try:
        return msgspec.json.decode(value, type=ready(kind))
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"{what} cannot be read: {error}") from error
