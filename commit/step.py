"""The contract of a transactional commit step, and how steps are found.

A transactional step writes nothing that anybody sees. It contributes compares and puts to the transaction
that finishes an operation, and so happens exactly once, together with everything else in it. What it prepares
beside (metadata files nobody refers to yet) it can take back once that transaction has certainly failed.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from distop.errors import InvalidArgument, UnknownCommitStep
from distop.metastore.keyspace import TableKeys
from distop.metastore.records import StepRecord, TableRecord
from distop.metastore.txn import KeyValue, Txn
from distop.operations.api import OperationView

GROUP = "distop.commit_steps"
VARIABLE = "DISTOP_COMMIT_STEPS"
"""Environment variable: more steps as ``name=module:Class``, separated by commas."""


@dataclass(frozen=True, kw_only=True)
class FinishContext:
    """What a step builds on, all read at one revision."""

    table: TableRecord
    keys: TableKeys
    head: KeyValue
    """The raw head; missing before anything was published."""
    watermarks: KeyValue
    """The raw watermarks; missing before any was set."""
    view: OperationView
    now: Callable[[], float] = time.time
    """Seconds since the Unix epoch."""


def _nothing() -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """A step's share of the finishing transaction."""

    txn: Txn = Txn()
    """Compares that must hold, and what happens then."""
    facts: dict[str, Any] = field(default_factory=dict)
    """For the history: JSON, numbers beyond 2**53 as strings."""
    discard: Callable[[], None] = _nothing
    """Takes back what was prepared, once the transaction has *certainly* failed; never called in doubt.
    Never raises."""


class TransactionalStep(ABC):
    """One step, made from the argument of its record."""

    def __init__(self, argument: dict[str, Any] | None = None) -> None:
        self.argument = dict(argument or {})

    @abstractmethod
    def prepare(self, context: FinishContext) -> Contribution:
        """Work out this step's share on the given base.

        Runs in a thread, touches no etcd, and is called again on a fresh base when the transaction lost to
        another writer. Raising :class:`~distop.errors.Conflict`, ``InvalidArgument`` or
        ``PreconditionFailed`` ends the operation; anything else is tried again.
        """


class StepRegistry:
    """The steps this process knows: entry points, and steps named by hand. Loaded when first asked for."""

    def __init__(self, extra: Iterable[str] | None = None) -> None:
        named = os.environ.get(VARIABLE, "").split(",") if extra is None else extra
        self._extra = dict(_named(item.strip()) for item in named if item.strip())

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=GROUP)}

    def names(self) -> list[str]:
        """All steps, sorted, without loading them."""
        return sorted({*self._entries, *self._extra})

    def load(self, record: StepRecord) -> TransactionalStep:
        """The step of a record.

        Raises
        ------
        UnknownCommitStep
            No step of this name is registered here; says which are. Nothing is wrong with the operation.
        """
        kind: Any = None
        if record.step in self._extra:
            module, _, name = self._extra[record.step].partition(":")
            kind = getattr(import_module(module), name, None)
        elif record.step in self._entries:
            kind = self._entries[record.step].load()
        if not (isinstance(kind, type) and issubclass(kind, TransactionalStep)):
            raise UnknownCommitStep(
                f"no commit step {record.step!r} is registered here, known are: {', '.join(self.names())}",
                details={"step": record.step},
            )
        return kind(record.argument)


def _named(item: str) -> tuple[str, str]:
    name, equals, target = item.partition("=")
    if not equals or ":" not in target:
        raise InvalidArgument(f"{item!r} names no commit step", hint="write name=module:Class")
    return name, target


@cache
def default_registry() -> StepRegistry:
    """The steps of this process's environment."""
    return StepRegistry()


def load_step(record: StepRecord) -> TransactionalStep:
    """The step of a record; raises :class:`~distop.errors.UnknownCommitStep`."""
    return default_registry().load(record)
