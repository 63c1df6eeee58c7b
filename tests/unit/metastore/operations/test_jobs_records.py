"""What a job's record holds, and that it always fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.errors import InvalidArgument, JobResultTooLarge
from distop.metastore.operations.jobs import FAILED, SUCCESS, failure_record, success_record
from distop.metastore.records.operation import MAX_JOB_RECORD_BYTES, JobRecord
from distop.metastore.records.record import decode


def test_a_success_carries_attempt_result_and_time() -> None:
    record = decode(success_record("1-a-1", {"rows": 3}, 12.5), JobRecord)
    assert record == JobRecord(state=SUCCESS, attempt="1-a-1", result={"rows": 3}, at=12.5)


def test_a_result_that_is_too_large_is_refused_with_its_size() -> None:
    with pytest.raises(JobResultTooLarge, match=r"takes 2,\d\d\d bytes, at most 1,024"):
        success_record("1-a-1", {"text": "x" * 2000}, 1.0)


@pytest.mark.parametrize("result", [{"x": object()}, {"x": "\ud800"}, {1: {2: {3j}}}])
def test_a_result_that_is_not_json_is_refused(result: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="not JSON"):
        success_record("1-a-1", result, 1.0)


@given(code=st.text(max_size=20), message=st.text(st.characters(codec=None), max_size=3000))
def test_a_failure_always_fits_and_reads_back(code: str, message: str) -> None:
    value = failure_record("1-a-1", code, message, 1.0)
    record = decode(value, JobRecord)
    assert len(value) <= MAX_JOB_RECORD_BYTES
    assert record.state == FAILED
    whole = f"{code}: {message}".encode(errors="backslashreplace").decode()
    assert record.error == whole or whole.startswith(record.error.removesuffix("…"))


def test_a_failure_is_cut_no_more_than_it_must_be() -> None:
    record = failure_record("1-a-1", "JOB_FAILED", "\x00" * 500, 1.0)
    assert MAX_JOB_RECORD_BYTES - 8 <= len(record) <= MAX_JOB_RECORD_BYTES


@pytest.mark.parametrize("word", ["Straßenbahnhaltestelle", "日本語", "plain", "\\quoted"])
def test_a_failure_that_is_cut_ends_with_a_whole_word(word: str) -> None:
    record = decode(failure_record("1-a-1", "JOB_FAILED", f"{word} " * 1000, 1.0), JobRecord)
    assert record.error.endswith("…")
    assert set(record.error.removesuffix("…").split(" ")[1:]) == {word}
    assert decode(failure_record("a", "C", "short", 1.0), JobRecord).error == "C: short"
