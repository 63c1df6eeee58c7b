"""The content of a source or a table prevents the operation."""

from __future__ import annotations

from typing import Any

from distop.errors.base import Conflict, InvalidArgument, PreconditionFailed
from distop.errors.jobs import JobFailed


class SourceUnreadable(InvalidArgument):
    """A source path cannot be read."""

    code = "SOURCE_UNREADABLE"


class SourceEmpty(InvalidArgument):
    """The source holds no files."""

    code = "SOURCE_EMPTY"


class SourceIncomplete(PreconditionFailed, JobFailed):
    """The files of a source are not complete, or were written again while they were read."""

    code = "SOURCE_INCOMPLETE"
    retryable = True
    default_hint = "its producer writes the marker once all files are there"


class AlreadyIngested(PreconditionFailed):
    """The source was already ingested, according to its watermark."""

    code = "ALREADY_INGESTED"


class StreamGap(PreconditionFailed):
    """Batches of a streaming query before this one are missing in the table."""

    code = "STREAM_GAP"


class WatermarkConflict(Conflict):
    """The watermark moved under the operation."""

    code = "WATERMARK_CONFLICT"


class HeadConflict(Conflict):
    """The table was changed meanwhile, and the operation's mode does not allow that."""

    code = "HEAD_CONFLICT"


class SchemaConflict(Conflict):
    """The columns of the table have changed meanwhile, and the operation's files no longer fit."""

    code = "SCHEMA_CONFLICT"
    retryable = True
    default_hint = "start the operation again: it will use the table's present columns"


class TableNotEmpty(Conflict):
    """The table already holds data, but the operation requires an empty one."""

    code = "TABLE_NOT_EMPTY"


class ValidationFailed(PreconditionFailed):
    """Rows break rules that they must keep.

    Parameters
    ----------
    facts:
        Facts for the history: JSON.
    """

    code = "VALIDATION_FAILED"

    def __init__(
        self,
        message: str = "",
        *,
        hint: str = "",
        details: dict[str, str] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, details=details)
        self.facts = dict(facts or {})


class TooManyBadRows(ValidationFailed, JobFailed):
    """More rows of the source are bad than the ingest allows."""

    code = "TOO_MANY_BAD_ROWS"
    default_hint = "correct the source, or allow more with --max-bad-rows or --max-bad-share"


class WriteTooOld(PreconditionFailed):
    """The write began so long ago that its files may have been removed."""

    code = "WRITE_TOO_OLD"
    default_hint = "write the rows again"


class WriteGivenUp(PreconditionFailed):
    """The write was abandoned before it was published."""

    code = "WRITE_GIVEN_UP"
    default_hint = "write the rows again"


class BadRow(JobFailed):
    """A row of the source cannot be parsed or cast."""

    code = "BAD_ROW"
    default_hint = "correct the file, or choose --on-bad-rows quarantine"


class KafkaUnavailable(PreconditionFailed):
    """The brokers of a Kafka cluster do not answer, or lack something that is needed."""

    # Not the kind that a client takes for an unreachable coordinator, and retries with another one.

    code = "KAFKA_UNAVAILABLE"
    retryable = True
    default_hint = "check that the brokers run and can be reached from here, then try again"


class OffsetsLost(JobFailed):
    """Records of a Kafka topic that the operation needs are no longer in the topic."""

    code = "OFFSETS_LOST"
    default_hint = "missing records are lost: skip them with --kafka-on-gap skip"
