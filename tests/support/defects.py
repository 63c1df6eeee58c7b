"""Functions that fail, as by a defect."""

from typing import Any

import pytest


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: Exception) -> None:
    """The next call of a function raises an error; later ones are as before."""
    works, left = getattr(owner, name), [error]

    def function(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop()
        return works(*args, **kwargs)

    monkeypatch.setattr(owner, name, function)
