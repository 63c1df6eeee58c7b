"""What a worker remembers of its dealings with the sidecar, so that the next sidecar can be told."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from distop.errors import DistopError
from distop.executor.sidecar import wire
from distop.executor.task.session import Session
from distop.metastore.operations.jobs import Mark


@dataclass
class KnownRun:
    """A run as this connection speaks of it."""

    number: int
    operation: str
    token: int
    claims: bool
    sessions: list[Session[Any]] = field(default_factory=list)
    over: str = ""
    held: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Claims at present: partition -> attempt, create revision."""

    def attach(self) -> wire.Attach:
        return wire.Attach(self.number, self.operation, self.token, self.claims)


@dataclass
class Asked:
    """A request that waits for its answer."""

    message: wire.Claim | wire.Release | wire.Save | wire.Tried
    answer: wire.Answer | DistopError | None = None
    arrived: threading.Event = field(default_factory=threading.Event)

    def settle(self, answer: wire.Answer | DistopError) -> None:
        self.answer = answer
        self.arrived.set()


@dataclass(slots=True)
class Sent:
    """A mark without an answer."""

    session: Session[Any]
    number: int
    """What the session calls it."""
    run: KnownRun
    mark: Mark
