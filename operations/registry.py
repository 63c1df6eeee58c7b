"""Finds operation types: the entry point group ``distop.operations``, and types given by name."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from distop.errors import InvalidArgument, UnknownOperationType
from distop.metastore.records.names import check_type
from distop.metastore.records.operation import Retry, may_run_together
from distop.operations.api import DistributedOperation, Role

GROUP = "distop.operations"
VARIABLE = "DISTOP_OPERATIONS"
"""Environment variable: more types as ``module:Class``, separated by commas. For types without a package."""


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _class_of(item: str) -> type[DistributedOperation]:
    """The class that ``module:Class`` names."""
    module, _, name = item.partition(":")
    try:
        kind = getattr(import_module(module), name, None)
    except (ImportError, ValueError) as error:
        raise InvalidArgument(f"{item!r} cannot be loaded: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, DistributedOperation)):
        raise InvalidArgument(f"{item!r} is not a DistributedOperation", hint="write module:Class")
    return kind


def _let_log(kind: type[DistributedOperation]) -> None:
    """Have the package of a user's type log as much as distop does: other libraries log warnings only."""
    package = logging.getLogger(kind.__module__.partition(".")[0])
    if package.name != "distop" and package.level == logging.NOTSET:
        package.setLevel(logging.getLogger("distop").level or logging.INFO)


class Registry:
    """The operation types that this process knows. Loads a type on first use."""

    def __init__(self, extra: Iterable[str] | None = None) -> None:
        named = os.environ.get(VARIABLE, "").split(",") if extra is None else extra
        self._extra = [item.strip() for item in named if item.strip()]
        self._loaded: dict[str, DistributedOperation] = {}
        self._refused: dict[str, str] = {}

    @cached_property
    def _named(self) -> dict[str, type[DistributedOperation]]:
        classes = {}
        for item in self.extra:
            kind = _class_of(item)
            classes[kind.type] = kind
        return classes

    def names(self) -> list[str]:
        """All names, sorted, without loading the types."""
        return sorted({*_installed(), *self._named})

    def of_users(self) -> dict[str, str]:
        """The modules of the types that are not distop's own, without loading them: by the name of the type,
        or by the setting that names its class. The latter come first: loading another loads them."""
        installed = {name: entry.value for name, entry in _installed().items()}
        named = {item: item for item in self._extra} | installed
        return {name: at.partition(":")[0] for name, at in named.items() if not at.startswith("distop.")}

    @property
    def extra(self) -> list[str]:
        """The types given by name, as ``module:Class``, without refused ones."""
        return [item for item in self._extra if item not in self._refused]

    def load(self, name: str) -> None:
        """Load a type of :meth:`of_users`; raises whatever its module raises."""
        if name in self._extra:
            _class_of(name)
        else:
            self.get(name)

    def refuse(self, name: str, why: str) -> None:
        """Refuse to load this type of :meth:`of_users`."""
        self._refused[name] = why

    def compatible(self, kind: DistributedOperation, other: str) -> bool:
        """Whether operations of both types may run on one table concurrently: their effects allow it, or each
        type names the other. An unknown type is not compatible."""
        if other not in self.names() or other in self._refused:
            return False
        other_kind = self.get(other)
        if may_run_together(kind.effect, other_kind.effect):
            return True
        return other in kind.compatible_types and kind.type in other_kind.compatible_types

    def get(self, name: str) -> DistributedOperation:
        """The type with this name.

        Raises
        ------
        UnknownOperationType
            No such type is registered here; the error lists the known ones.
        """
        if name in self._refused:
            raise UnknownOperationType(
                f"operation type {name!r} cannot be used here: {self._refused[name]}",
                details={"field": "type"},
            )
        if name not in self._loaded:
            kind = self._named.get(name)
            if kind is None and name in _installed():
                kind = _installed()[name].load()
            if kind is None:
                close = get_close_matches(name, self.names())
                known = ", ".join(self.names())
                refused = "".join(f"; {item} cannot be used: {why}" for item, why in self._refused.items())
                raise UnknownOperationType(
                    f"no operation type {name!r} is registered here, known: {known}{refused}",
                    hint=f"did you mean {' or '.join(close)}?" if close else "",
                    details={"field": "type"},
                )
            check_type(kind.type)
            if not isinstance(kind.retry, Retry):
                raise InvalidArgument(f"retry of operation type {name!r} is no distop.operations.Retry")
            if not isinstance(kind.role, Role):
                raise InvalidArgument(f"role of operation type {name!r} is no distop.operations.Role")
            _let_log(kind)
            self._loaded[name] = kind()
        return self._loaded[name]
