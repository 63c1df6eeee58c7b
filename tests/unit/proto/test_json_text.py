"""JSON survives the way through the API's text fields, and what is none is refused with its path."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.errors import InvalidArgument
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import MAX_DEPTH, from_json, to_json
from support.json_values import JSON, TEXT


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_json_comes_back_equal(value: dict[str, Any]) -> None:
    sent = pb.StartOperationRequest(argument_json=to_json(value, "argument")).SerializeToString()
    assert from_json(pb.StartOperationRequest.FromString(sent).argument_json, "argument") == value


def test_numbers_come_back_as_what_they_were() -> None:
    value = {"a": 3, "b": 2.5, "c": [True, 3.0], "d": 2**53 + 1, "e": -(2**63), "f": 2**64 - 1}
    assert repr(from_json(to_json(value, ""), "")) == repr(value)


def nested(depth: int, of: type) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if of is dict else [value]
    return value


@pytest.mark.parametrize("of", [dict, list])
def test_the_deepest_argument_can_be_read_by_the_other_side(of: type) -> None:
    argument = {"x": nested(MAX_DEPTH - 1, of)}
    assert from_json(to_json(argument, "argument"), "argument") == argument
    with pytest.raises(InvalidArgument, match="nested"):
        to_json({"x": nested(MAX_DEPTH, of)}, "argument")


def test_an_endless_argument_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    with pytest.raises(InvalidArgument, match="nested"):
        to_json(endless, "argument")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("inf"), "JSON"),
        (float("nan"), "JSON"),
        (2**64, "string"),
        (-(2**63) - 1, "string"),
        (b"x", "bytes"),
        ({1: 2}, "no string"),
        ("\udcff", "unicode"),
        ({"\udcff": 1}, "unicode"),
    ],
)
def test_what_is_no_json_is_refused_with_its_path(value: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        to_json({"a": [value]}, "argument")
    assert caught.value.details["field"] == "argument.a[0]"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "argument"),
        ("1", "argument"),
        ("null", "argument"),
        ('{"a": 1} {}', "argument"),
        ('{"a": {"b": 1, "b": 1}}', "argument"),
        ('{"a": ' + "[" * 100_000, "argument"),
        ('{"a": ' + "9" * 5000 + "}", "argument"),
        ('{"a": [NaN]}', "argument.a[0]"),
        ('{"a": 1e999}', "argument.a"),
        ('{"a": 18446744073709551616}', "argument.a"),
        ('{"a": "\\ud800"}', "argument.a"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", "argument.a" + "[0]" * 99),
    ],
)
def test_text_that_is_no_json_is_refused_with_its_path(text: str, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        from_json(text, "argument")
    assert caught.value.details["field"] == field
