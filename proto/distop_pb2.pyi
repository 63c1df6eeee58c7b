import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OperationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_STATE_UNSPECIFIED: _ClassVar[OperationState]
    RUNNING: _ClassVar[OperationState]
    COMMITTING: _ClassVar[OperationState]
    ABORTING: _ClassVar[OperationState]
    SUCCEEDED: _ClassVar[OperationState]
    FAILED: _ClassVar[OperationState]
    CANCELLED: _ClassVar[OperationState]

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEVERITY_UNSPECIFIED: _ClassVar[Severity]
    NOTICE: _ClassVar[Severity]
    WARNING: _ClassVar[Severity]
    ERROR: _ClassVar[Severity]
OPERATION_STATE_UNSPECIFIED: OperationState
RUNNING: OperationState
COMMITTING: OperationState
ABORTING: OperationState
SUCCEEDED: OperationState
FAILED: OperationState
CANCELLED: OperationState
SEVERITY_UNSPECIFIED: Severity
NOTICE: Severity
WARNING: Severity
ERROR: Severity

class Grant(_message.Message):
    __slots__ = ("who", "role", "tables")
    WHO_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    who: str
    role: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, who: _Optional[str] = ..., role: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ...) -> None: ...

class ListGrantsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGrantsResponse(_message.Message):
    __slots__ = ("grants", "enforced", "subject", "groups")
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    enforced: bool
    subject: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., enforced: _Optional[bool] = ..., subject: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class ChangeGrantsRequest(_message.Message):
    __slots__ = ("add", "remove", "replace", "reason", "requested_by", "call_id")
    ADD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    add: _containers.RepeatedCompositeFieldContainer[Grant]
    remove: _containers.RepeatedCompositeFieldContainer[Grant]
    replace: bool
    reason: str
    requested_by: str
    call_id: str
    def __init__(self, add: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., remove: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., replace: _Optional[bool] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ..., call_id: _Optional[str] = ...) -> None: ...

class OperationOptions(_message.Message):
    __slots__ = ("deadline", "max_job_attempts", "job_backoff", "attempt_timeout", "max_failed_partitions", "retry_for")
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    MAX_JOB_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    JOB_BACKOFF_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_FAILED_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RETRY_FOR_FIELD_NUMBER: _ClassVar[int]
    deadline: _duration_pb2.Duration
    max_job_attempts: int
    job_backoff: _duration_pb2.Duration
    attempt_timeout: _duration_pb2.Duration
    max_failed_partitions: int
    retry_for: _duration_pb2.Duration
    def __init__(self, deadline: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_job_attempts: _Optional[int] = ..., job_backoff: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., attempt_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_failed_partitions: _Optional[int] = ..., retry_for: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class FollowUp(_message.Message):
    __slots__ = ("type", "object", "argument_json", "partitions", "options", "then")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    type: str
    object: str
    argument_json: str
    partitions: _containers.RepeatedScalarFieldContainer[str]
    options: OperationOptions
    then: FollowUp
    def __init__(self, type: _Optional[str] = ..., object: _Optional[str] = ..., argument_json: _Optional[str] = ..., partitions: _Optional[_Iterable[str]] = ..., options: _Optional[_Union[OperationOptions, _Mapping]] = ..., then: _Optional[_Union[FollowUp, _Mapping]] = ...) -> None: ...

class StartOperationRequest(_message.Message):
    __slots__ = ("table", "type", "object", "argument_json", "partitions", "options", "run", "call_id", "started_by", "then", "again_of")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_BY_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    AGAIN_OF_FIELD_NUMBER: _ClassVar[int]
    table: str
    type: str
    object: str
    argument_json: str
    partitions: _containers.RepeatedScalarFieldContainer[str]
    options: OperationOptions
    run: str
    call_id: str
    started_by: str
    then: FollowUp
    again_of: str
    def __init__(self, table: _Optional[str] = ..., type: _Optional[str] = ..., object: _Optional[str] = ..., argument_json: _Optional[str] = ..., partitions: _Optional[_Iterable[str]] = ..., options: _Optional[_Union[OperationOptions, _Mapping]] = ..., run: _Optional[str] = ..., call_id: _Optional[str] = ..., started_by: _Optional[str] = ..., then: _Optional[_Union[FollowUp, _Mapping]] = ..., again_of: _Optional[str] = ...) -> None: ...

class OperationPreview(_message.Message):
    __slots__ = ("table", "type", "preview_json", "revision")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_JSON_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    table: str
    type: str
    preview_json: str
    revision: int
    def __init__(self, table: _Optional[str] = ..., type: _Optional[str] = ..., preview_json: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class JobCounts(_message.Message):
    __slots__ = ("total", "succeeded", "failed", "counting")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    COUNTING_FIELD_NUMBER: _ClassVar[int]
    total: int
    succeeded: int
    failed: int
    counting: bool
    def __init__(self, total: _Optional[int] = ..., succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., counting: _Optional[bool] = ...) -> None: ...

class OperationError(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Pause(_message.Message):
    __slots__ = ("by", "reason", "at", "scope")
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    by: str
    reason: str
    at: _timestamp_pb2.Timestamp
    scope: str
    def __init__(self, by: _Optional[str] = ..., reason: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., scope: _Optional[str] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("name", "table", "type", "object", "instance", "state", "jobs", "run", "started_by", "started_at", "finished_at", "error", "facts_json", "runner", "cancel_requested", "revision", "pause", "max_failed_partitions", "follows", "retry_of", "found", "last_job_at", "completion", "argument_json", "events", "events_left_out", "job_outcomes", "batches")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STARTED_BY_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FACTS_JSON_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    MAX_FAILED_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    RETRY_OF_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    LAST_JOB_AT_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    JOB_OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    name: str
    table: str
    type: str
    object: str
    instance: int
    state: OperationState
    jobs: JobCounts
    run: str
    started_by: str
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    error: OperationError
    facts_json: str
    runner: str
    cancel_requested: bool
    revision: int
    pause: Pause
    max_failed_partitions: int
    follows: str
    retry_of: str
    found: bool
    last_job_at: _timestamp_pb2.Timestamp
    completion: Completion
    argument_json: str
    events: _containers.RepeatedCompositeFieldContainer[Event]
    events_left_out: int
    job_outcomes: str
    batches: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., table: _Optional[str] = ..., type: _Optional[str] = ..., object: _Optional[str] = ..., instance: _Optional[int] = ..., state: _Optional[_Union[OperationState, str]] = ..., jobs: _Optional[_Union[JobCounts, _Mapping]] = ..., run: _Optional[str] = ..., started_by: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[_Union[OperationError, _Mapping]] = ..., facts_json: _Optional[str] = ..., runner: _Optional[str] = ..., cancel_requested: _Optional[bool] = ..., revision: _Optional[int] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., max_failed_partitions: _Optional[int] = ..., follows: _Optional[str] = ..., retry_of: _Optional[str] = ..., found: _Optional[bool] = ..., last_job_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., completion: _Optional[_Union[Completion, _Mapping]] = ..., argument_json: _Optional[str] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., events_left_out: _Optional[int] = ..., job_outcomes: _Optional[str] = ..., batches: _Optional[_Iterable[str]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("at", "what", "by", "about")
    AT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    what: str
    by: str
    about: str
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., what: _Optional[str] = ..., by: _Optional[str] = ..., about: _Optional[str] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("attempts", "step", "error", "at", "parked", "skipped", "skippable", "running", "running_since", "since", "next_at", "until")
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    SKIPPABLE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SINCE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    attempts: int
    step: str
    error: OperationError
    at: _timestamp_pb2.Timestamp
    parked: bool
    skipped: int
    skippable: bool
    running: str
    running_since: _timestamp_pb2.Timestamp
    since: _timestamp_pb2.Timestamp
    next_at: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    def __init__(self, attempts: _Optional[int] = ..., step: _Optional[str] = ..., error: _Optional[_Union[OperationError, _Mapping]] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., parked: _Optional[bool] = ..., skipped: _Optional[int] = ..., skippable: _Optional[bool] = ..., running: _Optional[str] = ..., running_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., next_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetOperationRequest(_message.Message):
    __slots__ = ("name", "wait", "events")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    wait: _duration_pb2.Duration
    events: bool
    def __init__(self, name: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., events: _Optional[bool] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("partition", "attempt", "at", "error", "trace", "output")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    partition: str
    attempt: str
    at: _timestamp_pb2.Timestamp
    error: str
    trace: str
    output: str
    def __init__(self, partition: _Optional[str] = ..., attempt: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ..., trace: _Optional[str] = ..., output: _Optional[str] = ...) -> None: ...

class ListTracesResponse(_message.Message):
    __slots__ = ("traces",)
    TRACES_FIELD_NUMBER: _ClassVar[int]
    traces: _containers.RepeatedCompositeFieldContainer[Trace]
    def __init__(self, traces: _Optional[_Iterable[_Union[Trace, _Mapping]]] = ...) -> None: ...

class ListQuarantinedRowsRequest(_message.Message):
    __slots__ = ("name", "page_size", "page_token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    page_size: int
    page_token: str
    def __init__(self, name: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class QuarantinedRow(_message.Message):
    __slots__ = ("source", "unit", "number", "partition", "column", "reason", "raw", "base64", "header", "cut", "format")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    BASE64_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    source: str
    unit: str
    number: int
    partition: int
    column: str
    reason: str
    raw: str
    base64: str
    header: str
    cut: bool
    format: str
    def __init__(self, source: _Optional[str] = ..., unit: _Optional[str] = ..., number: _Optional[int] = ..., partition: _Optional[int] = ..., column: _Optional[str] = ..., reason: _Optional[str] = ..., raw: _Optional[str] = ..., base64: _Optional[str] = ..., header: _Optional[str] = ..., cut: _Optional[bool] = ..., format: _Optional[str] = ...) -> None: ...

class ListQuarantinedRowsResponse(_message.Message):
    __slots__ = ("rows", "next_page_token")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[QuarantinedRow]
    next_page_token: str
    def __init__(self, rows: _Optional[_Iterable[_Union[QuarantinedRow, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListOperationsRequest(_message.Message):
    __slots__ = ("table", "type", "states", "page_size", "page_token", "since")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    table: str
    type: str
    states: _containers.RepeatedScalarFieldContainer[OperationState]
    page_size: int
    page_token: str
    since: _timestamp_pb2.Timestamp
    def __init__(self, table: _Optional[str] = ..., type: _Optional[str] = ..., states: _Optional[_Iterable[_Union[OperationState, str]]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListOperationsResponse(_message.Message):
    __slots__ = ("operations", "next_page_token")
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    next_page_token: str
    def __init__(self, operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchOperationRequest(_message.Message):
    __slots__ = ("name", "after_revision", "heartbeat", "states_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    STATES_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    after_revision: int
    heartbeat: _duration_pb2.Duration
    states_only: bool
    def __init__(self, name: _Optional[str] = ..., after_revision: _Optional[int] = ..., heartbeat: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., states_only: _Optional[bool] = ...) -> None: ...

class JobUpdate(_message.Message):
    __slots__ = ("partition", "state", "error")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    partition: str
    state: str
    error: str
    def __init__(self, partition: _Optional[str] = ..., state: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class OperationUpdate(_message.Message):
    __slots__ = ("operation", "jobs", "revision")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    operation: Operation
    jobs: _containers.RepeatedCompositeFieldContainer[JobUpdate]
    revision: int
    def __init__(self, operation: _Optional[_Union[Operation, _Mapping]] = ..., jobs: _Optional[_Iterable[_Union[JobUpdate, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class CancelOperationRequest(_message.Message):
    __slots__ = ("name", "reason", "requested_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    requested_by: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ...) -> None: ...

class ResolveOperationRequest(_message.Message):
    __slots__ = ("name", "action", "reason", "requested_by", "call_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    action: str
    reason: str
    requested_by: str
    call_id: str
    def __init__(self, name: _Optional[str] = ..., action: _Optional[str] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ..., call_id: _Optional[str] = ...) -> None: ...

class PauseOperationRequest(_message.Message):
    __slots__ = ("name", "reason", "requested_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    requested_by: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ...) -> None: ...

class ResumeOperationRequest(_message.Message):
    __slots__ = ("name", "reason", "requested_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    requested_by: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("name", "location", "format", "options_json", "created_at", "created_by", "metadata_location", "snapshot_id", "running", "leader", "revision", "pause", "ordering", "next_batch", "next_batch_attempts", "next_batch_error", "uuid", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    METADATA_LOCATION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    ORDERING_FIELD_NUMBER: _ClassVar[int]
    NEXT_BATCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_BATCH_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_BATCH_ERROR_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    location: str
    format: str
    options_json: str
    created_at: _timestamp_pb2.Timestamp
    created_by: str
    metadata_location: str
    snapshot_id: int
    running: _containers.RepeatedScalarFieldContainer[str]
    leader: str
    revision: int
    pause: Pause
    ordering: Ordering
    next_batch: str
    next_batch_attempts: int
    next_batch_error: OperationError
    uuid: str
    error: OperationError
    def __init__(self, name: _Optional[str] = ..., location: _Optional[str] = ..., format: _Optional[str] = ..., options_json: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_by: _Optional[str] = ..., metadata_location: _Optional[str] = ..., snapshot_id: _Optional[int] = ..., running: _Optional[_Iterable[str]] = ..., leader: _Optional[str] = ..., revision: _Optional[int] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., ordering: _Optional[_Union[Ordering, _Mapping]] = ..., next_batch: _Optional[str] = ..., next_batch_attempts: _Optional[int] = ..., next_batch_error: _Optional[_Union[OperationError, _Mapping]] = ..., uuid: _Optional[str] = ..., error: _Optional[_Union[OperationError, _Mapping]] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("table", "mood", "sentence")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    MOOD_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    table: str
    mood: str
    sentence: str
    def __init__(self, table: _Optional[str] = ..., mood: _Optional[str] = ..., sentence: _Optional[str] = ...) -> None: ...

class CreateTableRequest(_message.Message):
    __slots__ = ("name", "location", "format", "options_json", "created_by", "call_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    location: str
    format: str
    options_json: str
    created_by: str
    call_id: str
    def __init__(self, name: _Optional[str] = ..., location: _Optional[str] = ..., format: _Optional[str] = ..., options_json: _Optional[str] = ..., created_by: _Optional[str] = ..., call_id: _Optional[str] = ...) -> None: ...

class GetTableRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class PauseTableRequest(_message.Message):
    __slots__ = ("name", "reason", "requested_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    requested_by: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ...) -> None: ...

class ResumeTableRequest(_message.Message):
    __slots__ = ("name", "reason", "requested_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    requested_by: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ...) -> None: ...

class AlterTableRequest(_message.Message):
    __slots__ = ("name", "changes_json", "run", "reason", "requested_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANGES_JSON_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    changes_json: _containers.RepeatedScalarFieldContainer[str]
    run: str
    reason: str
    requested_by: str
    def __init__(self, name: _Optional[str] = ..., changes_json: _Optional[_Iterable[str]] = ..., run: _Optional[str] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ...) -> None: ...

class DropTableRequest(_message.Message):
    __slots__ = ("name", "purge", "reason", "requested_by", "uuid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PURGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    purge: bool
    reason: str
    requested_by: str
    uuid: str
    def __init__(self, name: _Optional[str] = ..., purge: _Optional[bool] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ..., uuid: _Optional[str] = ...) -> None: ...

class DropTableResponse(_message.Message):
    __slots__ = ("location", "purged")
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    PURGED_FIELD_NUMBER: _ClassVar[int]
    location: str
    purged: bool
    def __init__(self, location: _Optional[str] = ..., purged: _Optional[bool] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTablesResponse(_message.Message):
    __slots__ = ("tables", "next_page_token")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    next_page_token: str
    def __init__(self, tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetWatermarksRequest(_message.Message):
    __slots__ = ("table", "source", "page_size", "page_token")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    table: str
    source: str
    page_size: int
    page_token: str
    def __init__(self, table: _Optional[str] = ..., source: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ChangeWatermarksRequest(_message.Message):
    __slots__ = ("table", "action", "source", "partition", "value", "reason", "requested_by")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    table: str
    action: str
    source: str
    partition: str
    value: str
    reason: str
    requested_by: str
    def __init__(self, table: _Optional[str] = ..., action: _Optional[str] = ..., source: _Optional[str] = ..., partition: _Optional[str] = ..., value: _Optional[str] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "type", "required", "doc")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    DOC_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    required: bool
    doc: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., required: _Optional[bool] = ..., doc: _Optional[str] = ...) -> None: ...

class TableContent(_message.Message):
    __slots__ = ("table", "columns", "partition_by", "rows", "files", "bytes", "loaded_by", "loaded_at", "loaded_rows", "missing")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_BY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADED_BY_FIELD_NUMBER: _ClassVar[int]
    LOADED_AT_FIELD_NUMBER: _ClassVar[int]
    LOADED_ROWS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    table: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    partition_by: _containers.RepeatedScalarFieldContainer[str]
    rows: int
    files: int
    bytes: int
    loaded_by: str
    loaded_at: _timestamp_pb2.Timestamp
    loaded_rows: int
    missing: str
    def __init__(self, table: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., partition_by: _Optional[_Iterable[str]] = ..., rows: _Optional[int] = ..., files: _Optional[int] = ..., bytes: _Optional[int] = ..., loaded_by: _Optional[str] = ..., loaded_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., loaded_rows: _Optional[int] = ..., missing: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("snapshot_id", "parent_id", "committed_at", "change", "operation", "started_by", "added_rows", "removed_rows", "rows", "bytes", "present", "in_history", "refs", "files", "small_files", "delete_files")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    STARTED_BY_FIELD_NUMBER: _ClassVar[int]
    ADDED_ROWS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    IN_HISTORY_FIELD_NUMBER: _ClassVar[int]
    REFS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    SMALL_FILES_FIELD_NUMBER: _ClassVar[int]
    DELETE_FILES_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: int
    parent_id: int
    committed_at: _timestamp_pb2.Timestamp
    change: str
    operation: str
    started_by: str
    added_rows: int
    removed_rows: int
    rows: int
    bytes: int
    present: bool
    in_history: bool
    refs: _containers.RepeatedScalarFieldContainer[str]
    files: int
    small_files: int
    delete_files: int
    def __init__(self, snapshot_id: _Optional[int] = ..., parent_id: _Optional[int] = ..., committed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., change: _Optional[str] = ..., operation: _Optional[str] = ..., started_by: _Optional[str] = ..., added_rows: _Optional[int] = ..., removed_rows: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., present: _Optional[bool] = ..., in_history: _Optional[bool] = ..., refs: _Optional[_Iterable[str]] = ..., files: _Optional[int] = ..., small_files: _Optional[int] = ..., delete_files: _Optional[int] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ("table", "page_size", "page_token")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    table: str
    page_size: int
    page_token: str
    def __init__(self, table: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots", "next_page_token")
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[Snapshot]
    next_page_token: str
    def __init__(self, snapshots: _Optional[_Iterable[_Union[Snapshot, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Watermark(_message.Message):
    __slots__ = ("source", "partition", "value")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    source: str
    partition: str
    value: str
    def __init__(self, source: _Optional[str] = ..., partition: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class GetWatermarksResponse(_message.Message):
    __slots__ = ("watermarks", "revision", "next_page_token")
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    watermarks: _containers.RepeatedCompositeFieldContainer[Watermark]
    revision: int
    next_page_token: str
    def __init__(self, watermarks: _Optional[_Iterable[_Union[Watermark, _Mapping]]] = ..., revision: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "role", "address", "host", "pid", "started_at", "types", "draining", "calls", "version", "held_up")
    ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HELD_UP_FIELD_NUMBER: _ClassVar[int]
    id: str
    role: str
    address: str
    host: str
    pid: int
    started_at: _timestamp_pb2.Timestamp
    types: _containers.RepeatedScalarFieldContainer[str]
    draining: bool
    calls: _containers.RepeatedCompositeFieldContainer[LongCall]
    version: str
    held_up: _containers.RepeatedCompositeFieldContainer[HeldUp]
    def __init__(self, id: _Optional[str] = ..., role: _Optional[str] = ..., address: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., types: _Optional[_Iterable[str]] = ..., draining: _Optional[bool] = ..., calls: _Optional[_Iterable[_Union[LongCall, _Mapping]]] = ..., version: _Optional[str] = ..., held_up: _Optional[_Iterable[_Union[HeldUp, _Mapping]]] = ...) -> None: ...

class HeldUp(_message.Message):
    __slots__ = ("operation", "what", "since")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    operation: str
    what: str
    since: _timestamp_pb2.Timestamp
    def __init__(self, operation: _Optional[str] = ..., what: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class LongCall(_message.Message):
    __slots__ = ("table", "what", "since")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    table: str
    what: str
    since: _timestamp_pb2.Timestamp
    def __init__(self, table: _Optional[str] = ..., what: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DrainCoordinatorRequest(_message.Message):
    __slots__ = ("member", "undo", "reason", "requested_by")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    member: str
    undo: bool
    reason: str
    requested_by: str
    def __init__(self, member: _Optional[str] = ..., undo: _Optional[bool] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ...) -> None: ...

class RemoveKeyRequest(_message.Message):
    __slots__ = ("key", "fix", "requested_by")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    key: str
    fix: bool
    requested_by: str
    def __init__(self, key: _Optional[str] = ..., fix: _Optional[bool] = ..., requested_by: _Optional[str] = ...) -> None: ...

class RemoveKeyResponse(_message.Message):
    __slots__ = ("finding",)
    FINDING_FIELD_NUMBER: _ClassVar[int]
    finding: Finding
    def __init__(self, finding: _Optional[_Union[Finding, _Mapping]] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMembersResponse(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Leader(_message.Message):
    __slots__ = ("table", "member", "address", "epoch")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    table: str
    member: str
    address: str
    epoch: int
    def __init__(self, table: _Optional[str] = ..., member: _Optional[str] = ..., address: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ListLeadersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLeadersResponse(_message.Message):
    __slots__ = ("leaders",)
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    leaders: _containers.RepeatedCompositeFieldContainer[Leader]
    def __init__(self, leaders: _Optional[_Iterable[_Union[Leader, _Mapping]]] = ...) -> None: ...

class DiagnoseRequest(_message.Message):
    __slots__ = ("table", "deep", "fix", "patience", "requested_by")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DEEP_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    table: str
    deep: bool
    fix: bool
    patience: _duration_pb2.Duration
    requested_by: str
    def __init__(self, table: _Optional[str] = ..., deep: _Optional[bool] = ..., fix: _Optional[bool] = ..., patience: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., requested_by: _Optional[str] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("code", "severity", "table", "operation", "sentence", "remedy", "fixable", "fixed", "outcome")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    FIXABLE_FIELD_NUMBER: _ClassVar[int]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    code: str
    severity: Severity
    table: str
    operation: str
    sentence: str
    remedy: str
    fixable: bool
    fixed: bool
    outcome: str
    def __init__(self, code: _Optional[str] = ..., severity: _Optional[_Union[Severity, str]] = ..., table: _Optional[str] = ..., operation: _Optional[str] = ..., sentence: _Optional[str] = ..., remedy: _Optional[str] = ..., fixable: _Optional[bool] = ..., fixed: _Optional[bool] = ..., outcome: _Optional[str] = ...) -> None: ...

class DiagnoseResponse(_message.Message):
    __slots__ = ("findings", "tables", "operations", "done")
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    tables: int
    operations: int
    done: bool
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., tables: _Optional[int] = ..., operations: _Optional[int] = ..., done: _Optional[bool] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("table", "page_size", "page_token", "after")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    table: str
    page_size: int
    page_token: str
    after: str
    def __init__(self, table: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("id", "at", "action", "target", "by", "reason", "run", "argument_json", "outcome", "rows", "bytes", "error_code", "claimed_by", "address", "table", "cursor")
    ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_BY_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    id: str
    at: _timestamp_pb2.Timestamp
    action: str
    target: str
    by: str
    reason: str
    run: str
    argument_json: str
    outcome: str
    rows: int
    bytes: int
    error_code: str
    claimed_by: str
    address: str
    table: str
    cursor: str
    def __init__(self, id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., action: _Optional[str] = ..., target: _Optional[str] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ..., run: _Optional[str] = ..., argument_json: _Optional[str] = ..., outcome: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., error_code: _Optional[str] = ..., claimed_by: _Optional[str] = ..., address: _Optional[str] = ..., table: _Optional[str] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListAuditResponse(_message.Message):
    __slots__ = ("entries", "next_page_token")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    next_page_token: str
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Index(_message.Message):
    __slots__ = ("column", "snapshot_id", "commits_behind", "files", "left_out", "parts", "entries", "bytes", "operation", "built_at", "field_id", "manifest", "sequence_number")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    BUILT_AT_FIELD_NUMBER: _ClassVar[int]
    FIELD_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    column: str
    snapshot_id: int
    commits_behind: int
    files: int
    left_out: int
    parts: int
    entries: int
    bytes: int
    operation: str
    built_at: _timestamp_pb2.Timestamp
    field_id: int
    manifest: str
    sequence_number: int
    def __init__(self, column: _Optional[str] = ..., snapshot_id: _Optional[int] = ..., commits_behind: _Optional[int] = ..., files: _Optional[int] = ..., left_out: _Optional[int] = ..., parts: _Optional[int] = ..., entries: _Optional[int] = ..., bytes: _Optional[int] = ..., operation: _Optional[str] = ..., built_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., field_id: _Optional[int] = ..., manifest: _Optional[str] = ..., sequence_number: _Optional[int] = ...) -> None: ...

class ListIndexesRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class ListIndexesResponse(_message.Message):
    __slots__ = ("indexes",)
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    indexes: _containers.RepeatedCompositeFieldContainer[Index]
    def __init__(self, indexes: _Optional[_Iterable[_Union[Index, _Mapping]]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("name", "type", "argument_json", "queued_by", "queued_at", "attempts", "operation", "error", "state", "finished_at", "rows", "bytes", "files", "together", "decided_by", "in_doubt", "markers_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BY_FIELD_NUMBER: _ClassVar[int]
    QUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    IN_DOUBT_FIELD_NUMBER: _ClassVar[int]
    MARKERS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    argument_json: str
    queued_by: str
    queued_at: _timestamp_pb2.Timestamp
    attempts: int
    operation: str
    error: OperationError
    state: str
    finished_at: _timestamp_pb2.Timestamp
    rows: int
    bytes: int
    files: int
    together: int
    decided_by: str
    in_doubt: bool
    markers_json: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., argument_json: _Optional[str] = ..., queued_by: _Optional[str] = ..., queued_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., attempts: _Optional[int] = ..., operation: _Optional[str] = ..., error: _Optional[_Union[OperationError, _Mapping]] = ..., state: _Optional[str] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., files: _Optional[int] = ..., together: _Optional[int] = ..., decided_by: _Optional[str] = ..., in_doubt: _Optional[bool] = ..., markers_json: _Optional[str] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("batch", "error", "operation", "at")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    batch: str
    error: OperationError
    operation: str
    at: _timestamp_pb2.Timestamp
    def __init__(self, batch: _Optional[str] = ..., error: _Optional[_Union[OperationError, _Mapping]] = ..., operation: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Staged(_message.Message):
    __slots__ = ("batch", "branch", "operation", "snapshot")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    batch: str
    branch: str
    operation: str
    snapshot: str
    def __init__(self, batch: _Optional[str] = ..., branch: _Optional[str] = ..., operation: _Optional[str] = ..., snapshot: _Optional[str] = ...) -> None: ...

class Ordering(_message.Message):
    __slots__ = ("table", "gate", "validation", "late", "together", "max_attempts", "last", "running", "awaiting", "blocked", "revision", "remember", "forgotten", "signals", "failed", "held_by", "before", "staged", "rewritten")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    AWAITING_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REMEMBER_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    REWRITTEN_FIELD_NUMBER: _ClassVar[int]
    table: str
    gate: str
    validation: bool
    late: str
    together: int
    max_attempts: int
    last: str
    running: str
    awaiting: str
    blocked: Block
    revision: int
    remember: int
    forgotten: str
    signals: _containers.RepeatedScalarFieldContainer[str]
    failed: _containers.RepeatedCompositeFieldContainer[Block]
    held_by: str
    before: bool
    staged: Staged
    rewritten: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, table: _Optional[str] = ..., gate: _Optional[str] = ..., validation: _Optional[bool] = ..., late: _Optional[str] = ..., together: _Optional[int] = ..., max_attempts: _Optional[int] = ..., last: _Optional[str] = ..., running: _Optional[str] = ..., awaiting: _Optional[str] = ..., blocked: _Optional[_Union[Block, _Mapping]] = ..., revision: _Optional[int] = ..., remember: _Optional[int] = ..., forgotten: _Optional[str] = ..., signals: _Optional[_Iterable[str]] = ..., failed: _Optional[_Iterable[_Union[Block, _Mapping]]] = ..., held_by: _Optional[str] = ..., before: _Optional[bool] = ..., staged: _Optional[_Union[Staged, _Mapping]] = ..., rewritten: _Optional[_Iterable[str]] = ...) -> None: ...

class EnqueueBatchRequest(_message.Message):
    __slots__ = ("table", "batch", "type", "argument_json", "options", "republish", "requested_by", "call_id", "unordered", "replace", "rewritten_since")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REPUBLISH_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    UNORDERED_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    REWRITTEN_SINCE_FIELD_NUMBER: _ClassVar[int]
    table: str
    batch: str
    type: str
    argument_json: str
    options: OperationOptions
    republish: bool
    requested_by: str
    call_id: str
    unordered: bool
    replace: bool
    rewritten_since: str
    def __init__(self, table: _Optional[str] = ..., batch: _Optional[str] = ..., type: _Optional[str] = ..., argument_json: _Optional[str] = ..., options: _Optional[_Union[OperationOptions, _Mapping]] = ..., republish: _Optional[bool] = ..., requested_by: _Optional[str] = ..., call_id: _Optional[str] = ..., unordered: _Optional[bool] = ..., replace: _Optional[bool] = ..., rewritten_since: _Optional[str] = ...) -> None: ...

class EnqueueBatchResponse(_message.Message):
    __slots__ = ("became", "operation", "late", "markers_json")
    BECAME_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    MARKERS_JSON_FIELD_NUMBER: _ClassVar[int]
    became: str
    operation: str
    late: bool
    markers_json: str
    def __init__(self, became: _Optional[str] = ..., operation: _Optional[str] = ..., late: _Optional[bool] = ..., markers_json: _Optional[str] = ...) -> None: ...

class ListBacklogRequest(_message.Message):
    __slots__ = ("table", "page_size", "page_token", "applied", "unordered", "batch", "first", "last")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    UNORDERED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    table: str
    page_size: int
    page_token: str
    applied: bool
    unordered: bool
    batch: str
    first: str
    last: str
    def __init__(self, table: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., applied: _Optional[bool] = ..., unordered: _Optional[bool] = ..., batch: _Optional[str] = ..., first: _Optional[str] = ..., last: _Optional[str] = ...) -> None: ...

class ListBacklogResponse(_message.Message):
    __slots__ = ("batches", "next_page_token", "ordering")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ORDERING_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[Batch]
    next_page_token: str
    ordering: Ordering
    def __init__(self, batches: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., ordering: _Optional[_Union[Ordering, _Mapping]] = ...) -> None: ...

class SetOrderingRequest(_message.Message):
    __slots__ = ("table", "gate", "validation", "late", "together", "max_attempts", "requested_by", "remember", "call_id", "before")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    REMEMBER_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    table: str
    gate: str
    validation: bool
    late: str
    together: int
    max_attempts: int
    requested_by: str
    remember: int
    call_id: str
    before: bool
    def __init__(self, table: _Optional[str] = ..., gate: _Optional[str] = ..., validation: _Optional[bool] = ..., late: _Optional[str] = ..., together: _Optional[int] = ..., max_attempts: _Optional[int] = ..., requested_by: _Optional[str] = ..., remember: _Optional[int] = ..., call_id: _Optional[str] = ..., before: _Optional[bool] = ...) -> None: ...

class ControlBacklogRequest(_message.Message):
    __slots__ = ("table", "action", "batch", "reason", "requested_by", "call_id", "signal", "branch", "closed_by")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    CLOSED_BY_FIELD_NUMBER: _ClassVar[int]
    table: str
    action: str
    batch: str
    reason: str
    requested_by: str
    call_id: str
    signal: str
    branch: str
    closed_by: str
    def __init__(self, table: _Optional[str] = ..., action: _Optional[str] = ..., batch: _Optional[str] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ..., call_id: _Optional[str] = ..., signal: _Optional[str] = ..., branch: _Optional[str] = ..., closed_by: _Optional[str] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("table", "name", "type", "object", "argument_json", "cron", "when", "added_by", "added_at", "pause", "next_at", "last_at", "started", "operation", "skipped", "skip", "skipped_at", "timezone")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    ADDED_BY_FIELD_NUMBER: _ClassVar[int]
    ADDED_AT_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_AT_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    table: str
    name: str
    type: str
    object: str
    argument_json: str
    cron: str
    when: str
    added_by: str
    added_at: _timestamp_pb2.Timestamp
    pause: Pause
    next_at: _timestamp_pb2.Timestamp
    last_at: _timestamp_pb2.Timestamp
    started: int
    operation: str
    skipped: int
    skip: OperationError
    skipped_at: _timestamp_pb2.Timestamp
    timezone: str
    def __init__(self, table: _Optional[str] = ..., name: _Optional[str] = ..., type: _Optional[str] = ..., object: _Optional[str] = ..., argument_json: _Optional[str] = ..., cron: _Optional[str] = ..., when: _Optional[str] = ..., added_by: _Optional[str] = ..., added_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., next_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started: _Optional[int] = ..., operation: _Optional[str] = ..., skipped: _Optional[int] = ..., skip: _Optional[_Union[OperationError, _Mapping]] = ..., skipped_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., timezone: _Optional[str] = ...) -> None: ...

class AddScheduleRequest(_message.Message):
    __slots__ = ("table", "name", "type", "object", "argument_json", "options", "cron", "when", "requested_by", "call_id", "timezone")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    table: str
    name: str
    type: str
    object: str
    argument_json: str
    options: OperationOptions
    cron: str
    when: str
    requested_by: str
    call_id: str
    timezone: str
    def __init__(self, table: _Optional[str] = ..., name: _Optional[str] = ..., type: _Optional[str] = ..., object: _Optional[str] = ..., argument_json: _Optional[str] = ..., options: _Optional[_Union[OperationOptions, _Mapping]] = ..., cron: _Optional[str] = ..., when: _Optional[str] = ..., requested_by: _Optional[str] = ..., call_id: _Optional[str] = ..., timezone: _Optional[str] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: str
    def __init__(self, table: _Optional[str] = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("schedules", "revision")
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    revision: int
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class RunScheduleRequest(_message.Message):
    __slots__ = ("table", "name", "tick", "requested_by", "call_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    name: str
    tick: str
    requested_by: str
    call_id: str
    def __init__(self, table: _Optional[str] = ..., name: _Optional[str] = ..., tick: _Optional[str] = ..., requested_by: _Optional[str] = ..., call_id: _Optional[str] = ...) -> None: ...

class ControlScheduleRequest(_message.Message):
    __slots__ = ("table", "name", "action", "reason", "requested_by", "call_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    name: str
    action: str
    reason: str
    requested_by: str
    call_id: str
    def __init__(self, table: _Optional[str] = ..., name: _Optional[str] = ..., action: _Optional[str] = ..., reason: _Optional[str] = ..., requested_by: _Optional[str] = ..., call_id: _Optional[str] = ...) -> None: ...
