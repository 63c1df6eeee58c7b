"""Named points where a process can be made to die, to pause, or to lose a reply.

Every durable step of the system is between ``reached("<step>.before")`` and ``reached("<step>.after")``.
Unless ``DISTOP_CRASH_POINTS`` is set, reaching one costs a check of an empty string; `make chaos` sets it,
and kills every one of them in turn. The idea is that of etcd's own gofail.

The plan is ``name=action``, several separated by commas, or ``@file``: a file with such a plan, read again
each time, so that running processes can be armed. Actions:

- ``die``: the process is killed (SIGKILL): nothing is flushed, closed, or reported;
- ``lost``: the step was done, and its reply is lost: :class:`~distop.errors.OutcomeUnknown`;
- ``sleep:7``: the whole process is stopped (SIGSTOP) for 7 seconds, all its threads included.

``name=die@3`` fires the third time this process reaches it. With ``DISTOP_CRASH_ONCE`` set to a folder a
point fires once in all, in the first process to reach it: the others continue, as does its successor.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from distop.errors import InvalidArgument, OutcomeUnknown

VARIABLE = "DISTOP_CRASH_POINTS"
ONCE_VARIABLE = "DISTOP_CRASH_ONCE"

_PLAN = os.environ.get(VARIABLE, "")
_hits: Counter[str] = Counter()
_victims: list[int] = []
_ITEM = re.compile(r"(?P<name>[a-z0-9_.]+)=(?P<action>die|lost|sleep:\d+(?:\.\d+)?)(?:@(?P<hit>[1-9]\d*))?")


class Armed(NamedTuple):
    """The action at a point, and the number of the visit that triggers it."""

    action: str
    hit: int = 1


def reached(name: str) -> None:
    """The process has reached this step. ``name`` is a literal, since :func:`points` finds it in the source.

    Raises
    ------
    OutcomeUnknown
        The point is armed to lose the reply of what has just been done.
    """
    if _PLAN:
        _come_by(name)


def parse(plan: str) -> dict[str, Armed]:
    """The points of a plan; raises :class:`~distop.errors.InvalidArgument` if it is invalid."""
    armed = {}
    for item in filter(None, (part.strip() for part in plan.split(","))):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise InvalidArgument(
                f"{item!r} does not arm a crash point", hint="write name=die, name=lost or name=sleep:SECONDS"
            )
        armed[match["name"]] = Armed(match["action"], int(match["hit"] or 1))
    return armed


def _come_by(name: str) -> None:
    armed = parse(_present_plan()).get(name)
    if armed is None:
        return
    _hits[name] += 1
    if _hits[name] >= armed.hit and _is_first(name, armed.action):
        _fire(name, armed.action)


def _present_plan() -> str:
    if not _PLAN.startswith("@"):
        return _PLAN
    try:
        return Path(_PLAN[1:]).read_text()
    except FileNotFoundError:
        return ""


def record_name(name: str, action: str) -> str:
    """The file below ``DISTOP_CRASH_ONCE`` that records that a point has fired, and in which process."""
    return f"{name}={action}"


def _is_first(name: str, action: str) -> bool:
    """Whether no process has fired this point before; records that it has fired now."""
    folder = os.environ.get(ONCE_VARIABLE)
    if not folder:
        return True
    try:
        with Path(folder, record_name(name, action)).open("x") as record:
            record.write(" ".join([str(os.getpid()), *sys.orig_argv]))
    except FileExistsError:
        return False
    return True


def works_for(pid: int) -> None:
    """This process does part of another one's work: the action of a point applies to both."""
    _victims[:] = [pid]


def _fire(name: str, action: str) -> None:
    victims = [*_victims, os.getpid()]  # this one is the last: nothing comes after that
    if action == "die":
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
    elif action == "lost":
        raise OutcomeUnknown(f"the answer was lost at crash point {name}")
    else:
        # A stopped process cannot wake itself.
        seconds, pids = action.partition(":")[2], " ".join(map(str, victims))
        waker = ["/bin/sh", "-c", f"sleep {seconds}; kill -CONT {pids}"]
        # The waker outlives this function, and is left to init if our process dies meanwhile.
        subprocess.Popen(waker, stdin=subprocess.DEVNULL, start_new_session=True)
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
