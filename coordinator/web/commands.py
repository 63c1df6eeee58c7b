"""The commands that the page shows, in one place: a test has the command line itself parse each of them."""

from __future__ import annotations

import shlex

COMMANDS = {
    "start": "distop operation start TABLE TYPE",
    "show": "distop operation show {} --events",
    "watch": "distop operation watch {}",
    "logs": "distop operation logs {}",
    "create table": "distop table create NAME --location URL",
    "show table": "distop table show {}",
    "batches applied": "distop batch list {} --applied",
    "batches unordered": "distop batch list {} --unordered",
    "schedules": "distop schedule list {}",
    "add schedule": "distop schedule add {} NAME --help",
    "doctor": "distop cluster doctor",
    "doctor fix": "distop cluster doctor --fix",
    "compact table": "distop table compact {}",
    "roll back": "distop table rollback {} {}",
    "expire snapshots": "distop table expire-snapshots {}",
}
"""By what each does; names take the places of ``{}``."""


def command(what: str, *names: str) -> str:
    """A command as it is typed: names may need quotation marks."""
    return COMMANDS[what].format(*map(shlex.quote, names))
