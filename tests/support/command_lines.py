"""Whether ``distop`` takes a command line."""

from __future__ import annotations

import functools
from typing import Any

import typer
import typer.main

from distop.cli.main import app


@functools.cache
def _tree() -> Any:
    return typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Raises ``typer.TyperException`` if ``distop`` does not take these words."""
    command: Any = _tree()
    context = command.make_context("distop", list(words))
    while hasattr(command, "resolve_command") and (left := [*context._protected_args, *context.args]):
        name, command, rest = command.resolve_command(context, left)
        context = command.make_context(name, rest, parent=context)
