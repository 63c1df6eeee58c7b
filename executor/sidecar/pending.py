"""A worker's state towards the sidecar, to be sent to the next sidecar."""

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
    """A run on this connection."""

    number: int
    operation: str
    token: int
    claims: bool
    sessions: list[Session[Any]] = field(default_factory=list)
    over: str = ""
    held: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Present claims: partition -> attempt, create revision."""

    def attach(self) -> wire.Attach:
        return wire.Attach(self.number, self.operation, self.token, self.claims)


@dataclass
class Asked:
    """An unanswered request."""

    message: wire.Claim | wire.Release | wire.Save | wire.Tried
    answer: wire.Answer | DistopError | None = None
    arrived: threading.Event = field(default_factory=threading.Event)

    def settle(self, answer: wire.Answer | DistopError) -> None:
        self.answer = answer
        self.arrived.set()


@dataclass(slots=True)
class Sent:
    """An unanswered mark."""

    session: Session[Any]
    number: int
    """The session's number for it."""
    run: KnownRun
    mark: Mark
