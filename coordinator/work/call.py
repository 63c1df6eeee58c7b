"""A call, and its environment: a thread of the coordinator, or a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from distop.coordinator.work.lease import SharedLease
from distop.metastore import crashpoints
from distop.operations.registry import Registry
from distop.process.serving import alive

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Surroundings:
    """The context of a call."""

    registry: Registry
    check: Callable[[], None]
    """Raises when this process, or its coordinator, may not act any more. Calling it is also a heartbeat: a
    call with heartbeats is not ended for taking long."""


class Call(Protocol[T_co]):
    """A function of a module, or a ``partial`` of one: it must be picklable."""

    def __call__(self, surroundings: Surroundings, /) -> T_co: ...


# -- in a worker ---------------------------------------------------------------------------------------


_registry: Registry
_lease: SharedLease


def begin(operations: Sequence[str] | None, pid: int, lease_file: int) -> None:
    """Work for the coordinator that is this process: with its types, and under its lease."""
    global _registry, _lease
    crashpoints.works_for(pid)
    _registry, _lease = Registry(operations), SharedLease(lease_file)


def load_type(name: str) -> None:
    """Load a type, unless the template has it."""
    _registry.get(name)


def perform(lease: int, call: Call[T_co]) -> T_co:
    """Run a call for a lease of the coordinator."""
    return call(Surroundings(_registry, _lease.check_of(lease, alive)))
