"""What is shown of a table whose snapshots other engines wrote."""

from __future__ import annotations

import pytest

from distop.coordinator.views.contents import _count


@pytest.mark.parametrize("value", ["9" * 19, "9" * 5000, "-1", "many", ""])
def test_what_cannot_be_a_count_is_left_out(value: str) -> None:
    """U3: an engine writes into a summary what it likes."""
    assert _count({"total-records": value}, "total-records") is None
    assert _count({"total-records": "9" * 18}, "total-records") == 10**18 - 1
