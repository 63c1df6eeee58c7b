"""The batches of a backfill: their names, and the argument of each."""

from typing import Any

import pytest

from distop.client import batch_range
from distop.client.backfill import batch_arguments, checked_batches
from distop.errors import InvalidArgument


@pytest.mark.parametrize(
    ("first", "last", "every", "count", "ends"),
    [
        ("2024-01-01", "2024-01-31", "", 31, ("2024-01-01", "2024-01-31")),
        ("2024-02", "2024-03", "day", 60, ("2024-02-01", "2024-03-31")),
        ("2023-12", "2024-02", "", 3, ("2023-12", "2024-02")),
        ("2024-03-31", "2024-03-31", "hour", 24, ("2024-03-31T00", "2024-03-31T23")),
        ("2024-03-30T22", "2024-03-31", "", 26, ("2024-03-30T22", "2024-03-31T23")),
        ("001", "120", "1", 120, ("001", "120")),
        ("0", "9", "4", 3, ("0", "8")),
        ("0001", "9999", "1", 9_999, ("0001", "9999")),
        ("2024-01-31", "2024-01-31", "day", 1, ("2024-01-31", "2024-01-31")),
    ],
)
def test_a_range_is_the_names_from_the_first_to_the_last(
    first: str, last: str, every: str, count: int, ends: tuple[str, str]
) -> None:
    """A9: in the order of their bytes, which is that of the backlog."""
    names = batch_range(first, last, every)
    assert (len(names), (names[0], names[-1])) == (count, ends)
    assert names == sorted(set(names), key=str.encode)


@pytest.mark.parametrize(
    ("first", "last", "every", "field"),
    [
        ("2024-01-31", "2024-01-01", "", "last"),
        ("2024-02-30", "2024-03-01", "", "first"),
        ("2024-1-1", "2024-03-01", "", "first"),
        ("20240101", "20240131", "", "first"),
        ("2024-01-01", "", "", "last"),
        ("2024-01-01", "2024-01-31", "week", "every"),
        ("2024-01-15", "2024-03-15", "month", "every"),
        ("2024-01", "2024-03-15", "", "every"),
        ("1900-01", "2024-01", "day", "last"),
        ("2024-01", "9999-12", "", "last"),
        ("1", "100", "1", "last"),
        ("1", "9", "0", "last"),
        ("9", "1", "1", "last"),
        ("-1", "09", "1", "last"),
        ("00000", "99999", "1", "last"),
        ("1" * 5000, "2" * 5000, "1", "last"),
        ("٠١", "٠٩", "1", "last"),
    ],
)
def test_what_is_no_range_is_refused_by_its_field(first: str, last: str, every: str, field: str) -> None:
    """U3: also one with more than 10,000 batches."""
    with pytest.raises(InvalidArgument) as refused:
        batch_range(first, last, every)
    assert refused.value.details["field"] == field, refused.value


def test_batches_of_a_list_are_ordered_each_once_and_bounded() -> None:
    assert checked_batches(["b", "10", "2", "b"]) == ["10", "2", "b"]
    for bad in ([], [str(number) for number in range(10_001)]):
        with pytest.raises(InvalidArgument):
            checked_batches(bad)


def test_the_argument_of_a_batch_shows_its_name_and_its_time() -> None:
    argument: dict[str, Any] = {
        "paths": ["/in/{{ batch }}", "{{ tick | date('%Y/%m') }}"],
        "mode": "append",
    }
    for name, month in (("2024-01-05", "2024/01"), ("2024-02", "2024/02"), ("2024-03-31T05", "2024/03")):
        [shown] = batch_arguments(argument, [name]).values()
        assert shown == {"paths": [f"/in/{name}", month], "mode": "append"}
    assert list(batch_arguments({"a": "{{ batch }}"}, ["x", "y"]).values()) == [{"a": "x"}, {"a": "y"}]


@pytest.mark.parametrize("text", ["{{ tick }}", "{{ day }}", "{{ batch", "{{ batch | date }}", "no template"])
def test_an_argument_that_cannot_be_rendered_is_refused(text: str) -> None:
    """U3: names that are no time have none; and without a template all batches would be the same."""
    with pytest.raises(InvalidArgument) as refused:
        batch_arguments({"paths": text}, ["x", "y"])
    assert "{{ batch }}" in refused.value.hint
    assert refused.value.details["field"] == "argument"
