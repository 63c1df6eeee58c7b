"""The commands that the page shows, in one place: a test has the command line itself parse each of them."""

from __future__ import annotations

import shlex

COMMANDS = {
    "start": "distop operation start TABLE TYPE",
    "show": "distop operation show {} --events",
    "watch": "distop operation watch {}",
    "logs": "distop operation logs {}",
    "cancel": "distop operation cancel {}",
    "pause": "distop operation pause {}",
    "resume": "distop operation resume {}",
    "retry": "distop operation resolve {} retry",
    "skip": "distop operation resolve {} skip",
    "abort": "distop operation resolve {} abort",
    "create-table": "distop table create NAME --location URL",
    "show-table": "distop table show {}",
    "pause-table": "distop table pause {}",
    "resume-table": "distop table resume {}",
    "compact-table": "distop table compact {}",
    "expire": "distop table expire-snapshots {}",
    "find-orphans": "distop table remove-orphans {}",
    "remove-orphans": "distop table remove-orphans {} --no-dry-run",
    "roll-back": "distop table rollback {} {}",
    "batches-applied": "distop batch list {} --applied",
    "batches-unordered": "distop batch list {} --unordered",
    "open-gate": "distop backlog open {}",
    "close-gate": "distop backlog set {} --gate closed",
    "approve-batch": "distop batch approve {} {}",
    "approve-branch": "distop batch approve {} {} --branch {}",
    "retry-batch": "distop batch retry {} {}",
    "skip-batch": "distop batch skip {} {}",
    "remove-batch": "distop batch remove {} {}",
    "replace-batch": "distop batch replace {} {}",
    "schedules": "distop schedule list {}",
    "add-schedule": "distop schedule add {} NAME --help",
    "pause-schedule": "distop schedule pause {} {}",
    "resume-schedule": "distop schedule resume {} {}",
    "run-schedule": "distop schedule run {} {} --tick {}",
    "doctor": "distop cluster doctor",
    "doctor-fix": "distop cluster doctor --fix",
    "set-rules": "distop table alter {} --checks RULES",
    "quarantine": "distop quarantine list {}",
    "export-quarantine": "distop quarantine export {} {}",
    "replay-quarantine": "distop quarantine replay {} --file {}",
}
"""By what each does; names take the places of ``{}``."""


def command(verb: str, *names: str) -> str:
    """A command as it is typed: names may need quotation marks."""
    return COMMANDS[verb].format(*map(shlex.quote, names))
