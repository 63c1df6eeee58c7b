"""Errors of both distop and pyiceberg: for programs that know only one of the two.

Methods of the catalog raise pyiceberg's own exceptions where one fits. Otherwise
they raise an error of :mod:`distop.errors`, with its code and hint, that is also the nearest of pyiceberg's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from pyiceberg import exceptions as iceberg_errors

from distop.errors import DistopError, EtcdOutOfSpace, Kind, OutcomeUnknown

_THEIRS: dict[Kind, type[Exception]] = {
    Kind.INVALID: ValueError,
    Kind.NOT_FOUND: iceberg_errors.NoSuchTableError,
    Kind.EXISTS: iceberg_errors.TableAlreadyExistsError,
    # Nothing has happened: pyiceberg may try again, and removes the files that it has written.
    Kind.PRECONDITION: iceberg_errors.CommitFailedException,
    Kind.CONFLICT: iceberg_errors.CommitFailedException,
    Kind.EXHAUSTED: iceberg_errors.ServiceUnavailableError,
    Kind.UNAVAILABLE: iceberg_errors.ServiceUnavailableError,
    Kind.DEADLINE: iceberg_errors.ServiceUnavailableError,
    Kind.DENIED: iceberg_errors.ForbiddenError,
    Kind.UNAUTHENTICATED: iceberg_errors.ForbiddenError,
}

C = TypeVar("C", bound=type)


def for_pyiceberg(catalog: C) -> C:
    """A class whose public methods raise each error of distop also as one of pyiceberg."""
    for name, member in list(vars(catalog).items()):
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(catalog, name, _raising_both(member))
    return catalog


def _raising_both(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except DistopError as error:
            raise both(error).with_traceback(error.__traceback__) from error.__cause__
        except StopIteration as error:  # pyiceberg looks for schemas, specs and so on with next()
            raise ValueError("it names a part of the table's metadata that is not there") from error

    return call


def both(error: DistopError, theirs: type[Exception] | None = None) -> DistopError:
    """The same error, as one of pyiceberg's, too: ``theirs``, or the nearest."""
    if theirs is not None:
        return _made(type(error), theirs, error.message, error.hint, error.details)
    if isinstance(
        error,
        (
            iceberg_errors.NoSuchTableError,
            iceberg_errors.NoSuchNamespaceError,
            iceberg_errors.NoSuchViewError,
        ),
    ):
        return error
    if isinstance(error, OutcomeUnknown) and not isinstance(error, EtcdOutOfSpace):
        theirs = iceberg_errors.CommitStateUnknownException
    else:
        theirs = _THEIRS.get(error.kind, iceberg_errors.ServerError)
    return error if isinstance(error, theirs) else both(error, theirs)


@functools.cache
def _class(own: Any, theirs: Any) -> type[DistopError]:
    def reduce(self: DistopError) -> tuple[Any, ...]:
        return _made, (own, theirs, self.message, self.hint, self.details), vars(self)

    return cast(
        type[DistopError],
        type(own.__name__, (own, theirs), {"__doc__": own.__doc__, "__reduce__": reduce}),
    )


def _made(own: Any, theirs: Any, message: str, hint: str, details: dict[str, str]) -> DistopError:
    return _class(own, theirs)(message, hint=hint, details=details)
