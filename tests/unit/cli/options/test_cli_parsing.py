"""What people write on a command line."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from distop.cli.options.parsing import (
    MAX_ARGUMENT_BYTES,
    parse_assignments,
    parse_duration,
    parse_object,
    parse_properties,
    parse_schema,
    split_list,
)
from distop.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172_800), ("250ms", 0.25)],
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text, "deadline") == seconds


@pytest.mark.parametrize("text", ["", "x", "-5", "10 m", "1h30", "m", "1e3", "nan"])
def test_bad_durations_name_their_field(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_duration(text, "deadline")
    assert caught.value.details["field"] == "deadline"


def test_assignments_are_json_or_else_text() -> None:
    items = ["n=3", "t=true", 'q="3"', "path=/data/2013-01", "zip=007", "none=null", "eq=a=b", "empty="]
    assert parse_assignments(items) == {
        "n": 3,
        "t": True,
        "q": "3",
        "path": "/data/2013-01",
        "zip": "007",
        "none": None,
        "eq": "a=b",
        "empty": "",
    }
    deep = "[" * 100_000
    assert parse_assignments(["a=NaN", f"b={deep}"]) == {"a": "NaN", "b": deep}
    assert parse_assignments(["p=/a", "p=/b", "q=[1]"]) == {"p": ["/a", "/b"], "q": [1]}


@pytest.mark.parametrize("item", ["", "x", "=1", " =1"])
def test_an_assignment_without_a_key_or_an_equals_sign_is_refused(item: str) -> None:
    with pytest.raises(InvalidArgument, match="key=value"):
        parse_assignments([item])


def test_properties_stay_text() -> None:
    assert parse_properties(["a=1", "b=true"]) == {"a": "1", "b": "true"}


def test_an_object_in_a_file_or_on_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"paths": ["/a"]}
    file = tmp_path / "argument.json"
    file.write_text("\ufeff" + json.dumps(value))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(value).encode())))
    assert parse_object(json.dumps(value), "json") == value
    assert parse_object(str(file), "json") == value
    assert parse_object("-", "json") == value


@pytest.mark.parametrize("text", ["{", "/no/such/file", "{} {}", "\x00"])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_object(text, "json")
    assert caught.value.details["field"] == "json"


@pytest.mark.parametrize("content", [b"[1]", b"\xff\xfe", b"{" * 100_000, b" " * (MAX_ARGUMENT_BYTES + 1)])
def test_a_file_that_is_no_json_object_or_too_large_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "argument.json"
    file.write_bytes(content)
    with pytest.raises(InvalidArgument):
        parse_object(str(file), "json")


def test_schemas_keep_the_order_of_their_columns(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    wanted = ["z: long not null", "price: decimal(9,2)", "a: string"]
    assert parse_schema(["z: long not null, price: decimal(9,2)", "a: string"]) == wanted
    for content in (wanted, {"z": "long not null", "price": "decimal(9,2)", "a": "string"}):
        file.write_text(json.dumps(content))
        assert parse_schema([f"@{file}"]) == wanted


@pytest.mark.parametrize("content", [1, [1], {"a": {"b": 1}, "c": [None]}])
def test_a_file_that_holds_no_schema_is_refused(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(content))
    if isinstance(content, dict):
        assert parse_schema([f"@{file}"])[1] == "c: [None]"  # the service says what is wrong with the type
    else:
        with pytest.raises(InvalidArgument):
            parse_schema([f"@{file}"])


def test_commas_in_brackets_separate_nothing() -> None:
    assert split_list("bucket(16, id), truncate[4](name),day") == [
        "bucket(16, id)",
        "truncate[4](name)",
        "day",
    ]
