"""What is shown in listings: places of members, and tables whose snapshots other engines wrote."""

from __future__ import annotations

import base64
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.coordinator.views.contents import _count
from distop.coordinator.views.listing import PageToken
from distop.errors import InvalidArgument
from distop.metastore.tables.audit import Cursor

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=8,
)


def check(text: str) -> None:
    with suppress(InvalidArgument):
        assert 0 < PageToken.decode(text).revision < 2**63


@given(st.text())
def test_any_text_is_no_page_token_or_one_that_makes_sense(text: str) -> None:
    """U3"""
    check(text)


@given(st.binary())
def test_any_bytes_in_base64_are_no_page_token_or_one_that_makes_sense(data: bytes) -> None:
    check(base64.urlsafe_b64encode(data).decode())


@given(JSON)
def test_any_json_is_no_page_token_or_one_that_makes_sense(value: object) -> None:
    check(base64.urlsafe_b64encode(json.dumps(value).encode()).decode())


@given(st.text() | st.from_regex(r"[0-9]{1,30}(\.[0-9a-f-]{0,30})?", fullmatch=True))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    with suppress(InvalidArgument):
        assert str(Cursor.parse(text)).partition(".")[2] == text.partition(".")[2]


def test_a_cursor_is_written_as_it_is_read() -> None:
    text = "12.1700000000000-0a1b2c3d"
    assert str(Cursor.parse(text)) == text


@pytest.mark.parametrize("value", ["9" * 19, "9" * 5000, "-1", "many", ""])
def test_what_cannot_be_a_count_is_left_out(value: str) -> None:
    """U3: an engine writes into a summary what it likes."""
    assert _count({"total-records": value}, "total-records") is None
    assert _count({"total-records": "9" * 18}, "total-records") == 10**18 - 1
