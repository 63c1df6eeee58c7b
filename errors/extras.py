"""The libraries that only some users need: extras of the package, loaded where they are needed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from distop.errors.base import PreconditionFailed


class ExtraMissing(PreconditionFailed):
    """An optional part of distop is not installed here."""

    code = "EXTRA_MISSING"


def require(module: str, extra: str, purpose: str) -> None:
    """Make sure that a library of an extra of distop is installed, without loading it.

    Parameters
    ----------
    extra:
        Its name in ``pyproject.toml``, such as ``spark``.
    purpose:
        What needs the library, as the subject of a sentence.

    Raises
    ------
    ExtraMissing
        The library is not installed; says how to install it.
    """
    if find_spec(module) is None:
        package = module.replace("_", "-")
        raise ExtraMissing(
            f"{purpose} needs the package {package}, which is not installed here",
            hint=f"pip install 'distop[{extra}]'",
            details={"extra": extra, "package": package},
        )


def library(module: str, extra: str, purpose: str) -> Any:
    """Import a library of an extra of distop; parameters and errors as of :func:`require`."""
    require(module, extra, purpose)
    return import_module(module)
