"""Which operation types an executor serves: the requested ones that can be loaded here."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from distop.errors import UnknownOperationType
from distop.operations import DistributedOperation, Registry

log = logging.getLogger(__name__)


class ServedTypes:
    """The types of one executor, loaded.

    Parameters
    ----------
    wanted:
        Their names; ``None``: all that are installed here, except those that only the program that starts an
        operation can run.

    Loading imports user code, which may fail in any way: such a type is left to other executors, and logged
    once. So create it in a thread, not on an event loop.

    Raises
    ------
    UnknownOperationType
        A type that was requested by name cannot be loaded.
    """

    def __init__(self, registry: Registry, wanted: Sequence[str] | None = None) -> None:
        self._loaded: dict[str, DistributedOperation] = {}
        for name in registry.names() if wanted is None else wanted:
            try:
                kind = registry.get(name)
                if wanted is not None or not kind.hosted:
                    self._loaded[name] = kind
            except Exception as error:
                if wanted is not None:
                    raise UnknownOperationType(
                        f"operation type {name!r} cannot be loaded: {error}"
                    ) from error
                log.warning("type_not_loadable", extra={"type": name, "error": str(error)})

    @classmethod
    def only(cls, kind: DistributedOperation) -> ServedTypes:
        """Only this type, with this object as its implementation."""
        served = cls(Registry([]), [])
        served._loaded[kind.type] = kind
        return served

    @property
    def names(self) -> list[str]:
        """The names of its types, sorted."""
        return sorted(self._loaded)

    def get(self, name: str) -> DistributedOperation | None:
        """The type of this name, if it is served here."""
        return self._loaded.get(name)
