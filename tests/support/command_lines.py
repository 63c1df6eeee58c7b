"""Whether ``distop`` takes a command line, a whole one or one that stands in a sentence."""

import functools
import re
from collections.abc import Iterator
from typing import Any

import typer
import typer.main

from distop.cli.main import app


@functools.cache
def _tree() -> Any:
    return typer.main.get_command(app)


def leaves() -> Iterator[tuple[list[str], Any]]:
    """All commands but nouns, each with the words behind ``distop`` that name it."""
    for name, command in _tree().commands.items():
        verbs = getattr(command, "commands", {})
        yield from (([name, verb], verbs[verb]) for verb in verbs) if verbs else [([name], command)]


def parse(words: list[str]) -> None:
    """Raises ``typer.TyperException`` if ``distop`` does not take these words."""
    command: Any = _tree()
    context = command.make_context("distop", list(words))
    while hasattr(command, "resolve_command") and (left := [*context._protected_args, *context.args]):
        name, command, rest = command.resolve_command(context, left)
        context = command.make_context(name, rest, parent=context)


END = re.compile(r"[;:`()<>\[\]{}|\"]|[.,](?=\s|$)|$")
"""Where a command line ends that stands in a sentence."""


def begins(word: str) -> bool:
    """Whether a command line, right or wrong, begins with ``distop`` and this word; a sentence may, too.

    Wrong are verbs without their noun, and nouns in the plural.
    """
    nouns = _tree().commands
    verbs = {verb for noun in nouns.values() for verb in getattr(noun, "commands", ())}
    return word in nouns or word in verbs or word.removesuffix("s") in nouns


def problem(text: str) -> str:
    """Why ``distop`` does not take the command line at the beginning of ``text``; empty: it does.

    Only its noun, its verb and its options are looked at: anything else may be a placeholder, or belong to
    the sentence. ``text`` begins behind ``distop``.
    ``retry|skip`` is a pipe, and no choice of two.
    """
    command: Any = _tree()
    rest, path = text, "distop"
    while hasattr(command, "commands"):
        verb = re.match(r"\s+([a-z-]+)", rest)
        if verb is None:
            return ""  # a noun on its own, or with a placeholder for its verb
        if verb[1] not in command.commands:
            return f"{path} has no {verb[1]}"
        command, rest, path = command.commands[verb[1]], rest[verb.end() :], f"{path} {verb[1]}"
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    line = rest[: END.search(rest).start()]  # type: ignore[union-attr]
    if rest.startswith("|", len(line)) and not line.endswith(" "):
        return f"{path}{line} is piped"
    unknown = [word for word in re.findall(r"(?<=\s)--[a-z][a-z-]*", line) if word not in options]
    return f"{path} has no {', '.join(unknown)}" if unknown else ""
