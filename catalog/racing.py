"""Commits among others that are faster: which are repeated on the state that those have left."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.table import Table

from distop.catalog.naming import MAX_TRIES
from distop.catalog.pointer import Pointer
from distop.catalog.publishing import Overtaken
from distop.catalog.requests import Change, came_before

MAX_PAUSE_S = 2.0
"""Longest pause after a race was lost. The first is at most as long as the lost try, each next one twice as
long."""

Present = tuple[Table | None, Pointer]
"""A table, if there is one, and what etcd has of it."""


def raced(
    changes: Sequence[Change],
    present: Callable[[], list[Present]],
    publish: Callable[[list[Present]], list[Table]],
) -> list[Table | None]:
    """The tables after the changes.

    Parameters
    ----------
    present:
        Reads the present state of the tables.
    publish:
        Makes the changes, if the state of the tables is still as given. Raises
        :class:`~distop.catalog.publishing.Overtaken` or ``TableAlreadyExistsError`` if it is not.

    Raises what ``publish`` has raised last.
    """
    for number in range(MAX_TRIES):
        began = time.monotonic()
        found = present()
        if came_before([table for table, _ in found], changes):
            break
        try:
            return [*publish(found)]
        except (Overtaken, TableAlreadyExistsError) as lost:
            if number < MAX_TRIES - 1 and isinstance(lost, Overtaken) and lost.repeatable:
                longest = min((time.monotonic() - began) * 2**number, MAX_PAUSE_S)
                time.sleep(random.uniform(0.0, longest))  # not in step with the others
                continue
            found = present()
            if not came_before([table for table, _ in found], changes):
                raise
            break  # the faster one was the same request, sent twice
    return [table for table, _ in found]
