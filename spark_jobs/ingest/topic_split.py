"""One job of an ingest from Kafka: the records of its ranges."""

from __future__ import annotations

from collections.abc import Generator

from distop.operations.job import JobContext
from distop.spark_jobs.formats.bad_rows import BadRowPolicy
from distop.spark_jobs.ingest.plan import IngestPlan, KafkaSource
from distop.spark_jobs.ingest.rows import Conversion, Converted, GoodRows
from distop.spark_jobs.kafka.client import Cluster
from distop.spark_jobs.kafka.offsets import OffsetRange
from distop.spark_jobs.kafka.reader import RangeReader
from distop.spark_jobs.kafka.records import RecordPlace, RecordReader, Records


class TopicSplit:
    """Reads one job's part of a topic.

    Parameters
    ----------
    policy:
        Handles bad records.
    """

    def __init__(self, plan: IngestPlan, source: KafkaSource, policy: BadRowPolicy, job: JobContext) -> None:
        self._plan = plan
        self._source = source
        self._job = job
        self._good_rows = GoodRows(Conversion.to_table(plan), policy, job.raise_if_cancelled)
        self._records = RecordReader(
            source.value,
            plan.wanted,
            metadata=source.metadata,
            csv=plan.csv,
            value_column=source.value_column,
        )
        self.facts: dict[str, int] = {}

    def rows(self) -> Generator[Converted, None, None]:
        """All rows of the split.

        Raises
        ------
        BadRow, OffsetsLost, KafkaUnavailable, Cancelled
        """
        source, tombstones = self._source, 0
        with Cluster(source.servers, source.config, source.timeout_s) as cluster:
            reader = RangeReader(
                cluster, source.topic, skip_gaps=source.skip_gaps, look=self._job.raise_if_cancelled
            )
            for piece in self._plan.pieces(self._job.partition):
                part = source.ranges[piece.file]
                wanted = OffsetRange(part.partition, part.start + piece.start, part.start + piece.end)
                for block in reader.blocks(wanted):
                    kept = block
                    if not source.keep_tombstones:
                        kept = [message for message in block if message.value() is not None]
                        tombstones += len(block) - len(kept)
                    if kept:
                        yield self._good_rows.of(
                            Records(kept), source.url, self._records.convert, self._place
                        )
            if tombstones:
                self.facts["tombstones"] = tombstones
            if reader.skipped:
                self.facts["offsetsSkipped"] = reader.skipped

    def _place(self, records: Records) -> RecordPlace:
        return RecordPlace(self._source.url, records.messages[0].partition() or 0, records.number())
