"""What a runner is given: its options, the operation types that it serves, and the counters that it keeps."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from distop.errors import UnknownOperationType
from distop.metastore.records.names import OperationId
from distop.operations import DistributedOperation, Registry

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """How many operations a runner takes, and how long it waits for what."""

    max_operations: int = 4
    """How many operations it runs at the same time at most."""
    lease_ttl_s: int = 5
    """Seconds after which another runner takes over from one that vanished."""
    resync_s: float = 10.0
    """How often it lists everything again, in seconds; shortened at random."""
    stop_s: float = 3.0
    """How long tasks may take to end, in seconds, after a request to stop."""
    rest_s: float = 30.0
    """How long it leaves an operation that it could not finish to other executors, in seconds."""
    only: OperationId | None = None
    """The only operation it serves; ``None``: all operations of its types."""


@dataclass
class Tally:
    """Runs by operation type, of which an executor serves a fixed set. Used only on its event loop."""

    running: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By type and end: ``settled``, ``over``, ``left``, or ``broken`` if nothing can be launched any more."""


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
