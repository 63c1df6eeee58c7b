"""Waiting for an operation: its updates, and a note if no executor takes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from distop.cli.output.base import Output

if TYPE_CHECKING:
    from distop.client import Client, Operation, OperationUpdate

LOOK_EVERY_S = 5.0
"""Interval between requests for the reason why an operation does not begin."""


def until_settled(client: Client, out: Output, name: str) -> Iterator[OperationUpdate]:
    """The updates of an operation until it ends or is parked; a parked one needs a decision to end."""
    latest: list[Operation] = []
    over = threading.Event()
    threading.Thread(target=_say_why, args=(client, out, latest, over), daemon=True).start()
    try:
        for update in client.watch(name):
            latest[:] = [update.operation]
            yield update
            if update.operation.parked:
                return
    finally:
        over.set()


def _say_why(client: Client, out: Output, latest: list[Operation], over: threading.Event) -> None:
    """While no executor runs the operation, print why its table does not move; each reason once."""
    said = ""
    while not over.wait(LOOK_EVERY_S):
        if not latest or latest[0].runner or latest[0].done:
            continue
        try:
            why = client.explain(latest[0].table)
        except Exception:  # the follower reports outages, and the client may be closed
            continue
        if why.mood in ("waiting", "stuck") and why.sentence != said and not over.is_set():
            said = why.sentence
            out.note(f"{latest[0].table}: {said}")
