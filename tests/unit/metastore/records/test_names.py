"""Names that a new table may have."""

from __future__ import annotations

import pytest

from distop.errors import InvalidName
from distop.metastore.records.names import check_new_name


@pytest.mark.parametrize("name", ["orders", "a.b.c", "b c", "Zürich", "flüge/2024", "表"])
def test_plain_names_are_taken(name: str) -> None:
    assert check_new_name(name, "name") == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (".", "empty part"),
        ("..", "empty part"),
        ("a..b", "empty part"),
        (".a", "empty part"),
        ("a.", "empty part"),
        (" ", "empty part"),
        ("a. .b", "empty part"),
        ("a/..", "empty part"),
        ("a.%2E", "consists of dots"),
        ("%2E%2E.a", "consists of dots"),
        ("a//b", "path"),
        ("/a", "path"),
        (" a", "blank"),
        ("a ", "blank"),
        ("a\0b", r"U\+0000"),
        ("a\x1b[31mb", r"U\+001B"),
        ("a\nb", r"U\+000A"),
        ("a\u202eb", r"U\+202E"),
        ("a\u200bb", r"U\+200B"),
        ("a\u00a0b", r"U\+00A0"),
        ("Zu\u0308rich", "NFC"),
    ],
)
def test_names_that_read_as_others_are_refused(name: str, says: str) -> None:
    """U3: by field, and in words that say what is wrong."""
    with pytest.raises(InvalidName, match=says) as caught:
        check_new_name(name, "name")
    assert caught.value.details["field"] == "name"
