r"""The ``distop`` command: its command groups, error handling and exit code.

A command line is a noun and then a verb, as with kubectl and gh: ``distop table create``, ``distop operation
watch``. There is one way to write each.

- Nouns are singular; what a verb acts on is its first argument: ``distop batch retry TABLE BATCH``.
- ``list`` shows many, ``show`` one. Batches, schedules and grants are added and removed (``add``,
  ``remove``); tables have the verbs of SQL (``create``, ``alter``, ``drop``).
- A type of operations that distop provides is a verb of ``table``, with the type's name: ``distop table
  ingest``, ``distop table expire-snapshots``; each field of its argument is an option or an argument. Those
  that only programs start (Spark's writes, ``noop``) are none. ``distop operation start`` starts any type.
- What publishes batches (``distop batch add``, ``replace``, ``backfill``) has the options of an ingest, too.
  Other types have ``--type``, and their argument by name, as with ``operation start``.
- A program that runs in the foreground is a noun alone: ``distop dev``, ``distop coordinator``. Only
  ``distop alert run`` has a verb, since alerts can be listed, too.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from distop.cli.commands import begin, services
from distop.cli.options.session import (
    ADDRESS_HELP,
    DEFAULT_ADDRESS,
    DEFAULT_TIMEOUT_S,
    OUTPUT_HELP,
    TIMEOUT_HELP,
    remember,
)
from distop.cli.output import Format, make_output
from distop.cli.output.exits import EPILOG, INTERRUPTED, UsageFault, exit_code
from distop.errors import DistopError
from distop.proto.identity import own_version

NOUNS = {
    "Work": {
        "table": ("table_operations:group", "Create, change and show tables; start operations on one."),
        "operation": ("operations:group", "Start, list, follow and end operations of any type."),
        "batch": ("backlog:batch_group", "Batches of a table, applied strictly in order."),
        "backlog": ("backlog:backlog_group", "How a table's batches are applied, and its gate."),
        "schedule": ("schedules:group", "Schedules that start operations, at times or on a condition."),
        "quarantine": (
            "quarantine:group",
            "Rows that an ingest with --on-bad-rows quarantine could not read: list, mend and ingest them.",
        ),
        "snapshot": ("history:snapshot_group", "The snapshots that a table still has."),
        "watermark": ("history:watermark_group", "How far each source of a table has been ingested."),
    },
    "Installation": {
        "cluster": ("cluster:group", "The installation: its members, its health, its backup."),
        "alert": ("alerts:group", "What fails, is parked, blocked or late, sent to a webhook."),
        "grant": (
            "access:grant_group",
            (
                "Access control. Each role includes those before it: reader (look), operator (start, cancel, "
                "pause, enqueue, approve), writer (create, alter, write), admin (drop, resolve, drain, "
                "repair, grant)."
            ),
        ),
        "audit": ("access:audit_group", "Who did what, and when."),
    },
}
"""The nouns, by panel of the help: where their verbs are, below ``cli/commands``, and the help of each."""

PANELS = (services.BEGIN, *NOUNS, services.PANEL)
"""In the order of the help."""


class _Noun(TyperGroup):
    """A noun. Its module is imported when one of its verbs is needed: it loads the client, and so gRPC, which
    other commands, the help and the services would pay for."""

    def __init__(self, source: str, **settings: Any) -> None:
        super().__init__(no_args_is_help=True, **settings)
        self._source = source
        del self.commands  # the property below

    @cached_property
    def commands(self) -> Any:  # type: ignore[override]
        module, _, group = self._source.partition(":")
        verbs = getattr(import_module(f"distop.cli.commands.{module}"), group)
        return typer.main.get_group(verbs).commands


class _Distop(TyperGroup):
    """Ends with an exit code that says what happened; prints a traceback only for a defect of distop."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        nouns = {
            noun: _Noun(source, name=noun, help=text, rich_help_panel=panel)
            for panel, known in NOUNS.items()
            for noun, (source, text) in known.items()
        }
        self.commands = {
            name: command
            for panel in PANELS
            for name, command in {**self.commands, **nouns}.items()
            if vars(command)["rich_help_panel"] == panel
        }

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        extra |= {"standalone_mode": False}
        try:
            sys.exit(super().main(words, **extra) or 0)
        except DistopError as error:
            failure = error
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "distop"
            failure = UsageFault(error.format_message().strip(), hint=f"see {command} --help")
        except typer.Abort:
            sys.exit(INTERRUPTED)
        except Exception as error:
            failure = DistopError(
                f"{type(error).__name__}: {error}",
                hint="this is a defect of distop",
                details={"traceback": traceback.format_exc()},
            )
        make_output(_wanted(words)).error(failure)
        sys.exit(exit_code(failure))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        verb = args[0]
        if verb not in self.commands and not ctx.resilient_parsing:
            nouns = [noun for noun, group in self.commands.items() if verb in getattr(group, "commands", ())]
            if nouns:
                lines = [f"distop {noun} {verb}" for noun in nouns]
                raise UsageFault(f"{verb} needs a noun before it", hint=f"did you mean {' or '.join(lines)}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    pretty_exceptions_enable=False,
    cls=_Distop,
    no_args_is_help=False,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(begin.app)
app.add_typer(services.app)


@app.callback(invoke_without_command=True)
def distop(
    ctx: typer.Context,
    address: Annotated[
        str,
        typer.Option("--address", "-a", metavar="HOST:PORT", envvar="DISTOP_ADDRESS", help=ADDRESS_HELP),
    ] = DEFAULT_ADDRESS,
    output: Annotated[
        Format, typer.Option("--output", "-o", envvar="DISTOP_OUTPUT", help=OUTPUT_HELP)
    ] = "table",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help=TIMEOUT_HELP)] = DEFAULT_TIMEOUT_S,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Operations over partitioned tables, exactly once.

    Begin with: distop dev. It says what to type in another terminal.

    These options may also follow the name of the command.
    """
    remember(ctx, address=address, output=output, timeout_s=timeout)
    if version:
        make_output(output).facts("distop", {"version": own_version()})
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")


def main() -> None:
    """The entry point of the console script."""
    app(prog_name="distop")


def _wanted(words: Sequence[str]) -> Format:
    """How errors are printed, also those of a command line that could not be parsed."""
    wanted = os.environ.get("DISTOP_OUTPUT", "table")
    for index, word in enumerate(words):
        if word in ("-o", "--output"):
            wanted = words[index + 1] if index + 1 < len(words) else wanted
        elif word.startswith(("--output=", "-o")):
            wanted = word.removeprefix("--output=").removeprefix("-o")
    return "json" if wanted == "json" else "yaml" if wanted == "yaml" else "table"


if __name__ == "__main__":
    main()
