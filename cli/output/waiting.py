"""Waiting for an operation: its updates, and a word when nobody takes it up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from distop.cli.output.base import Output

if TYPE_CHECKING:
    from distop.client import Client, Operation, OperationUpdate

LOOK_EVERY_S = 5.0
"""How often is asked why an operation does not begin."""


def until_settled(client: Client, out: Output, name: str) -> Iterator[OperationUpdate]:
    """The updates of an operation until it is over, or parked: it would not end by itself then."""
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
    """While nobody runs the operation, say why its table does not move; each reason once."""
    said = ""
    while not over.wait(LOOK_EVERY_S):
        if not latest or latest[0].runner or latest[0].done:
            continue
        try:
            why = client.explain(latest[0].table)
        except Exception:  # whoever follows the operation tells of an outage, and the client may be closed
            continue
        if why.mood in ("waiting", "stuck") and why.sentence != said and not over.is_set():
            said = why.sentence
            out.note(f"{latest[0].table}: {said}")
