"""The commands that messages and the page show, each whole and quoted for a shell."""

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
    "batches": "distop batch list {}",
    "batches-applied": "distop batch list {} --applied",
    "batches-unordered": "distop batch list {} --unordered",
    "open-gate": "distop backlog open {}",
    "close-gate": "distop backlog set {} --gate closed",
    "validate-branch": "distop table validate {} --branch {} --rule ...",
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
    "executor": "distop executor",
    "doctor": "distop cluster doctor",
    "doctor-fix": "distop cluster doctor --fix",
    "set-rules": "distop table alter {} --checks RULES",
    "quarantine": "distop quarantine list {}",
    "export-quarantine": "distop quarantine export {} {}",
    "replay-quarantine": "distop quarantine replay {} --file {}",
}
"""The commands, by what each does; names take the places of ``{}``. A test has the command line parse each
of them."""


def command(verb: str, *names: str) -> str:
    """A command as it is typed: names may need quotation marks."""
    return COMMANDS[verb].format(*map(shlex.quote, names))


def to_resolve(operation: str, *, skippable: bool) -> str:
    """The commands for the possible decisions about an operation that is parked."""
    verbs = ("retry", "skip", "abort") if skippable else ("retry", "abort")
    return ", or ".join(command(verb, operation) for verb in verbs)


def to_unblock(table: str, batch: str) -> str:
    """The commands for the decisions about a batch that has failed, or blocks its table."""
    return f"{command('retry-batch', table, batch)}, or {command('skip-batch', table, batch)}"
