"""What can be said to ``format("distop")``."""

import pytest

from distop.spark.target import read_options, split_terms, write_options
from support.refusals import refused


def test_a_write_is_told_by_its_options_however_they_are_spelled() -> None:
    given = {
        "TABLE": "t",
        "Coordinator": "a:1",
        "partitionby": "month(day), bucket(16, id)",
        "CREATE": "true",
    }
    options = write_options(given, overwrite=False)
    assert (options.table, options.coordinator, options.mode) == ("t", "a:1", "append")
    assert options.partition_by == ("month(day)", "bucket(16, id)")
    assert options.create
    assert write_options({"path": "t"}, overwrite=True).mode == "overwrite"
    assert write_options({"table": "t", "mode": "overwrite_partitions"}, overwrite=True).mode == (
        "overwrite_partitions"
    )


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTOP_ADDRESS", "there:7")
    assert read_options({"table": "t"}).coordinator == "there:7"
    assert read_options({"table": "t", "coordinator": "here:7"}).coordinator == "here:7"


@pytest.mark.parametrize(
    ("given", "overwrite", "field"),
    [
        ({}, False, "table"),
        ({"table": "t", "tabel": "t"}, False, "tabel"),
        ({"table": "t", "snapshotId": "1"}, False, "snapshotId"),
        ({"table": "t", "mode": "error"}, False, "mode"),
        ({"table": "t", "mode": "ignore"}, True, "mode"),
        ({"table": "t", "mode": "ignore", "onConflict": "refuse"}, False, "onConflict"),
        ({"table": "t", "create": "yes"}, False, "create"),
        ({"table": "t", "commitTimeout": "soon"}, False, "commitTimeout"),
        ({"table": "t", "storage": "[]"}, False, "storage"),
    ],
)
def test_a_write_without_sense_is_refused_by_name(given: dict[str, str], overwrite: bool, field: str) -> None:
    """U3"""
    with refused(field):
        write_options(given, overwrite=overwrite)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"mode": "append"}, "mode"),
        ({"snapshotId": "first"}, "snapshotId"),
        ({"snapshotId": "9" * 5000}, "snapshotId"),
        ({"startingSnapshot": "earliest"}, "startingSnapshot"),
        ({"startingSnapshot": "9" * 5000}, "startingSnapshot"),
        ({"maxFilesPerTrigger": "0"}, "maxFilesPerTrigger"),
        ({"splitBytes": "nan"}, "splitBytes"),
    ],
)
def test_a_read_that_makes_no_sense_is_refused_by_name(given: dict[str, str], field: str) -> None:
    """U3"""
    with refused(field):
        read_options({"table": "t", **given})


def test_an_empty_branch_or_filter_is_not_taken_for_none() -> None:
    """S2: a variable that was not set must not read the table instead of a branch, or all of its rows."""
    given = {"table": "t", "branch": "", "filter": ""}
    assert (read_options(given).branch, read_options(given).filter) == ("", "")
    assert (read_options({"table": "t"}).branch, read_options({"table": "t"}).filter) == (None, None)


def test_commas_within_parentheses_do_not_part() -> None:
    assert split_terms(" a, bucket[4](b) ,truncate(3, c),") == ("a", "bucket[4](b)", "truncate(3, c)")
    assert split_terms("") == ()
