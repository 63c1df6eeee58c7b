"""Errors that say which field of an argument is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from distop.errors import DistopError, InvalidArgument


@contextmanager
def refused(
    field: str, match: str | None = None, error: type[DistopError] = InvalidArgument
) -> Iterator[pytest.ExceptionInfo[DistopError]]:
    """Expect an error that names this field; ``match``: and whose message holds this."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert caught.value.details["field"] == field, caught.value
