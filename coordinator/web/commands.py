"""The commands that the page shows, in one place: a test has the command line itself parse each of them."""

from __future__ import annotations

import shlex

COMMANDS = {
    "start": "distop start TABLE TYPE",
    "show": "distop show {} --events",
    "watch": "distop watch {}",
    "logs": "distop logs {}",
    "create table": "distop tables create NAME --location URL",
    "show table": "distop tables show {}",
    "batches applied": "distop backlog ls {} --applied",
    "batches unordered": "distop backlog ls {} --unordered",
    "schedules": "distop schedules ls {}",
    "add schedule": "distop schedules add {} NAME --help",
    "doctor": "distop doctor",
    "doctor fix": "distop doctor --fix",
    "compact table": "distop compact {}",
    "roll back": "distop rollback {} {}",
    "expire snapshots": "distop expire-snapshots {}",
}
"""By what each does; names take the places of ``{}``."""


def command(what: str, *names: str) -> str:
    """A command as it is typed: names may need quotation marks."""
    return COMMANDS[what].format(*map(shlex.quote, names))
