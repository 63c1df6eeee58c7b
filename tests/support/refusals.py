"""Errors: which field of an argument is wrong, and what the log says."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from distop.errors import DistopError, InvalidArgument


@contextmanager
def refused(
    field: str = "",
    match: str | None = None,
    error: type[DistopError] = InvalidArgument,
    **details: object,
) -> Iterator[pytest.ExceptionInfo[DistopError]]:
    """Expect an error of this class, and so of its code, that names this field and has these details.

    ``match`` is for what only the message says: a pattern of the words that tell the error from others.
    """
    with pytest.raises(error, match=match) as caught:
        yield caught
    expected = {name: str(value) for name, value in details.items()} | ({"field": field} if field else {})
    assert caught.value.details | expected == caught.value.details, caught.value


def traced(caplog: pytest.LogCaptureFixture, event: str) -> type[BaseException] | None:
    """The class of the error whose stack trace the last line of this event has; ``None`` without one."""
    infos = [record.exc_info for record in caplog.records if record.getMessage() == event]
    return infos[-1][0] if infos and infos[-1] else None
