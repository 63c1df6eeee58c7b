"""Sources that are marked as complete: nothing of one that is being written again gets into the table."""

import os
from pathlib import Path

import pytest

from distop.coordinator.backlog.policy import BatchFailure, failure_of
from distop.errors import InvalidArgument, JobFailed, SourceIncomplete
from distop.metastore.backlog.batches import BatchRecord
from distop.metastore.records.operation import ErrorRecord
from distop.spark_jobs.ingest.operation import Ingest
from support.refusals import refused
from support.sources.ingesting import Ingesting

BATCH = BatchRecord(type="ingest", attempts=1)


class Producer:
    """Writes a batch of two files, by the protocol."""

    def __init__(self, ingesting: Ingesting) -> None:
        self._ingesting = ingesting
        self.files = [ingesting.write(f"id\n{number}\n", f"{number}.csv") for number in (1, 2)]
        self.marker = Path(ingesting.write("", "_SUCCESS"))
        self._seconds = 1_700_000_000
        self.complete()

    @property
    def source(self) -> dict[str, str | list[str]]:
        return {"paths": str(self.marker.parent), "markers": [str(self.marker)]}

    def begin(self, text: str = "id\n11\n") -> None:
        """Take the marker away, and rewrite the first file."""
        self.marker.unlink()
        self._ingesting.write(text, "1.csv")

    def complete(self) -> None:
        """The clock of the file system may be coarse."""
        self._seconds += 1
        self.marker.touch()
        os.utime(self.marker, (self._seconds, self._seconds))


@pytest.fixture
def ingesting(tmp_path: Path) -> Ingesting:
    return Ingesting(tmp_path, {"schema": ["id: int"]})


@pytest.fixture
def producer(ingesting: Ingesting) -> Producer:
    return Producer(ingesting)


def test_a_complete_source_is_ingested(ingesting: Ingesting, producer: Producer) -> None:
    """D3: versions that would not check the marker refuse the operation."""
    assert ingesting.operation.plan(ingesting.request(**producer.source)).layout == 3
    ingesting.ingest(**producer.source)
    assert ingesting.rows("id") == [1, 2]


def test_nothing_begins_without_the_marker(ingesting: Ingesting, producer: Producer) -> None:
    """B12: whatever else is wrong with what is there."""
    producer.begin("what is this\n")
    with pytest.raises(SourceIncomplete, match="_SUCCESS does not exist"):
        ingesting.start(**producer.source)
    producer.complete()
    with pytest.raises(InvalidArgument, match="no column 'what is this'") as caught:
        ingesting.start(**producer.source)
    assert not isinstance(caught.value, SourceIncomplete)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("text", ["id\n11\n", "id\n1\n", "id\n?\n", "", 'id\n"'])
def test_jobs_read_nothing_of_a_source_that_is_written_again(
    ingesting: Ingesting, producer: Producer, text: str, again: bool
) -> None:
    """B12, C5: also when the marker is back, and a half-written file is bad in any other way."""
    arg = ingesting.start(**producer.source)
    producer.begin(text)
    if again:
        producer.complete()
    with pytest.raises(SourceIncomplete, match="was written again" if again else "does not exist"):
        ingesting.run(arg)


def test_a_source_that_changes_against_the_protocol_fails(ingesting: Ingesting, producer: Producer) -> None:
    arg = ingesting.start(**producer.source)
    ingesting.write("id\n11\n", "1.csv")
    with pytest.raises(JobFailed, match="source changed") as caught:
        ingesting.run(arg)
    assert not isinstance(caught.value, SourceIncomplete)


@pytest.mark.parametrize("again", [False, True])
def test_rows_read_before_a_source_is_written_again_are_not_published(
    ingesting: Ingesting, producer: Producer, again: bool
) -> None:
    """B12: it would have to be replaced at once."""
    arg = ingesting.start(**producer.source)
    jobs = ingesting.run(arg)
    producer.begin()
    if again:
        producer.complete()
    with pytest.raises(SourceIncomplete):
        ingesting.finish(arg, jobs)
    producer.complete()
    ingesting.ingest(**producer.source)
    assert sorted(ingesting.rows("id")) == [2, 11]


def test_batches_that_go_together_keep_their_markers() -> None:
    """B14"""
    first, second = ({"paths": [name], "markers": [f"{name}/_SUCCESS"]} for name in "ab")
    both = {"paths": ["a", "b"], "markers": ["a/_SUCCESS", "b/_SUCCESS"]}
    assert Ingest().combine(first, second) == both
    assert Ingest().combine({"paths": "a"}, {"paths": "b"}) == {"paths": ["a", "b"]}


def test_a_topic_has_no_markers(ingesting: Ingesting) -> None:
    with refused("markers", "topic"):
        ingesting.start(kafka={"servers": "nowhere", "topic": "t"}, markers=["/a"])


def test_an_attempt_at_an_incomplete_source_does_not_count() -> None:
    """B9, B12: wherever that was found: at the start, by a job, or by the commit."""
    message = "/b/_SUCCESS does not exist"
    failures = [
        BatchFailure.of(SourceIncomplete(message, hint="wait")),
        failure_of(
            ErrorRecord(code="JOB_FAILED", message="1 of 2 jobs"), {"0": f"SOURCE_INCOMPLETE: {message}"}
        ),
        failure_of(ErrorRecord(code="SOURCE_INCOMPLETE", message=message), {}),
    ]
    for failure in failures:
        assert (failure.code, failure.message.partition(" (")[0]) == ("SOURCE_INCOMPLETE", message)
        assert failure.attempts(BATCH) == 1
        assert not failure.is_final(1, most=1)
    other = failure_of(ErrorRecord(code="JOB_FAILED", message="m"), {"0": "JOB_CRASHED: no disk"})
    assert other.attempts(BATCH) == 2
    assert other.is_final(2, most=2)
